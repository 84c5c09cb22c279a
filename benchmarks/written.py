"""What a PostgreSQL server has counted for the tables of one store, and which transactions wrote its journal."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import psycopg

from perdure.storage.postgres.place import Place

PATIENCE_S = 20.0
OURS = "perdure-counted"
"""The name under which what is counted connects; the server has all of its counts once it has disconnected."""


class Written(msgspec.Struct, frozen=True):
    """Rows of one table that were inserted, updated and deleted, and how many of the updates left the indexes alone."""

    inserted: int
    updated: int
    deleted: int
    hot: int


def counted_url(url: str) -> str:
    """The URL for a store whose writes are to be counted."""
    return f"{url}{'&' if '?' in url else '?'}application_name={OURS}"


class Counters:
    """A look at a store from outside, by a connection of its own.

    Args:
        url: of the store; its tables are there.
    """

    def __init__(self, url: str) -> None:
        self._place = Place.of(url)
        self._con = psycopg.Connection[tuple[Any, ...]].connect(self._place.conninfo, autocommit=True)

    def close(self) -> None:
        """Disconnect."""
        self._con.close()

    def tables(self) -> dict[str, Written]:
        """By table, everything ever written, once whoever wrote has disconnected.

        Raises:
            TimeoutError: somebody is still connected.
        """
        self._wait_until_alone()
        rows = self._con.execute(
            "SELECT relname, n_tup_ins, n_tup_upd, n_tup_del, n_tup_hot_upd FROM pg_stat_user_tables "
            "WHERE schemaname = %s",
            (self._place.schema,),
        )
        return {name: Written(*counts) for name, *counts in rows.fetchall()}

    def scanned(self) -> dict[str, int]:
        """By table, rows read by looking at every row of the table, once whoever read has disconnected.

        Raises:
            TimeoutError: somebody is still connected.
        """
        self._wait_until_alone()
        rows = self._con.execute(
            "SELECT relname, seq_tup_read FROM pg_stat_user_tables WHERE schemaname = %s", (self._place.schema,)
        )
        return {name: int(read) for name, read in rows.fetchall()}

    def read_from(self, index: str) -> int:
        """Entries of an index that were looked at, once whoever looked has disconnected.

        Raises:
            TimeoutError: somebody is still connected.
        """
        self._wait_until_alone()
        return self._number(
            "SELECT idx_tup_read FROM pg_stat_user_indexes WHERE schemaname = %s AND indexrelname = %s",
            self._place.schema,
            index,
        )

    def analyze(self) -> None:
        """Let the planner know how many rows the tables have now, as the server does by itself each minute."""
        self._con.execute("ANALYZE")

    def commits(self) -> int:
        """Transactions that wrote rows of the journal which are there."""
        return self._number(f'SELECT count(DISTINCT xmin::text) FROM "{self._place.schema}".journal')

    def rows(self) -> int:
        """Rows of the journal."""
        return self._number(f'SELECT count(*) FROM "{self._place.schema}".journal')

    def wal_bytes(self) -> int:
        """Where the write-ahead log of the server ends."""
        return self._number("SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint")

    def bytes(self) -> int:
        """What the tables of the store and their indexes have on disk."""
        return self._number(
            "SELECT coalesce(sum(pg_total_relation_size(oid)), 0)::bigint FROM pg_class "
            "WHERE relnamespace = %s::regnamespace AND relkind = 'r'",
            self._place.schema,
        )

    def is_there(self) -> bool:
        """Whether the schema is."""
        return self._number("SELECT 1 FROM pg_namespace WHERE nspname = %s", self._place.schema) == 1

    def remove(self) -> None:
        """Remove the schema, with all that is in it."""
        self._con.execute(f'DROP SCHEMA IF EXISTS "{self._place.schema}" CASCADE'.encode())

    def _wait_until_alone(self) -> None:
        until_s = time.monotonic() + PATIENCE_S
        while self._number("SELECT count(*) FROM pg_stat_activity WHERE application_name = %s", OURS):
            if time.monotonic() > until_s:
                raise TimeoutError("whoever wrote is still connected to the server")

    def _number(self, sql: str, *values: str) -> int:
        row = self._con.execute(sql.encode(), values or None).fetchone()
        return 0 if row is None or row[0] is None else int(row[0])
