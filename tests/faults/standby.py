"""A standby of a server of `tests/postgres.py`, by streaming replication, which may be promoted."""

from __future__ import annotations

import shutil
from urllib.parse import quote

from tests.postgres import PostgresServer


class Standby(PostgresServer):
    """A replica in a folder of its own.

    Args:
        primary: runs when this one is started for the first time; None: it is one itself at first.
    """

    def __init__(self, primary: PostgresServer | None) -> None:
        super().__init__(settings={"wal_retrieve_retry_interval": "100ms"})
        self._primary = primary

    def start(self) -> None:
        if self._primary is not None and not self.data.exists():
            base = ("-h", str(self._primary.folder), "-U", "perdure", "-D", str(self.data))
            self._run("pg_basebackup", *base, "-R", "-X", "stream", "-c", "fast")
        super().start()

    def follow(self, primary: PostgresServer) -> None:
        """Forget all it had, and become a replica of another server. It has to be stopped."""
        shutil.rmtree(self.data, ignore_errors=True)
        self._primary = primary
        self.start()

    def caught_up(self) -> None:
        """Return when all that was committed on the primary by now is here, too."""
        assert self._primary is not None
        there = self._primary.sql("SELECT pg_current_wal_lsn()").strip()
        while self.sql(f"SELECT pg_last_wal_replay_lsn() >= '{there}'").strip() != "t":
            pass

    def cut_off(self) -> None:
        """Receive nothing more from the primary: what is committed there from now on is lost with it."""
        self.sql("ALTER SYSTEM SET primary_conninfo = ''")
        self.sql("SELECT pg_reload_conf()")
        while self.sql("SELECT count(*) FROM pg_stat_wal_receiver").strip() != "0":
            pass

    def promote(self) -> None:
        """Make it a primary; returns when it takes writes."""
        self.sql("SELECT pg_promote()")


def both(first: PostgresServer, second: PostgresServer, *, schema: str, options: str = "") -> str:
    """A URL that names two servers."""
    folders = quote(f"{first.folder},{second.folder}", safe=",")
    return f"postgresql://perdure@/postgres?host={folders}&schema={schema}{options}"
