"""Connections that outlive their stores, for tests that open one store after the other at one place."""

from __future__ import annotations

from typing import Any, TypeAlias

import psycopg
from psycopg.pq import TransactionStatus

Connection: TypeAlias = psycopg.AsyncConnection[tuple[Any, ...]]


class Spare:
    """Connections that nobody uses just now. All that is given back has come from one place."""

    def __init__(self) -> None:
        self._idle: list[Connection] = []
        self._over = False

    def give(self, con: Connection) -> bool:
        """Keep a connection for the next store; false if it is of no use to anybody."""
        if self._over or con.closed or con.broken or con.pgconn.transaction_status != TransactionStatus.IDLE:
            return False
        self._idle.append(con)
        return True

    async def take(self) -> Connection | None:
        """A connection that listens to nothing and is in no transaction, if there is one."""
        while self._idle:
            con = self._idle.pop()
            try:
                await con.execute(b"UNLISTEN *", prepare=False)
            except psycopg.Error:
                con.pgconn.finish()
                continue
            return con
        return None

    def close(self) -> None:
        """Let go of all of them, and keep none that comes later."""
        self._over = True
        for con in self._idle:
            con.pgconn.finish()
        self._idle = []
