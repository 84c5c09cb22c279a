"""A PgBouncer of our own for tests, in transaction mode, before a server of `tests/postgres.py`; on a socket too."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from urllib.parse import quote

import psycopg

from tests.postgres import NOBODY, PostgresServer, as_nobody

PLACES = ("/usr/sbin", "/usr/local/sbin", "/usr/local/bin", "/opt/homebrew/bin")
"""Where it lies on systems that keep it off a user's path."""
POOL = 20
"""Connections to the server that all clients share."""
STARTED_S = 20.0


class PgBouncer:
    """A pooler that gives a server connection for one transaction at a time. It refuses to run as root, too."""

    def __init__(self, server: PostgresServer) -> None:
        self._program = _program()
        self._server = server
        self._process: subprocess.Popen[bytes] | None = None
        self.folder = Path(tempfile.mkdtemp(prefix="perdure-pb-", dir="/tmp"))

    def start(self) -> None:
        """Start it; returns when it carries a query to the server."""
        (self.folder / "users").write_text('"perdure" ""\n')
        (self.folder / "ini").write_text(
            f"""
            [databases]
            * = host={self._server.folder}
            [pgbouncer]
            listen_addr =
            listen_port = 5432
            unix_socket_dir = {self.folder}
            auth_type = trust
            auth_file = {self.folder}/users
            logfile = {self.folder}/log
            pool_mode = transaction
            default_pool_size = {POOL}
            max_client_conn = 500
            """
        )
        if os.getuid() == 0:
            os.chown(self.folder, NOBODY, NOBODY)
        self._process = subprocess.Popen(
            [self._program, "-q", str(self.folder / "ini")],
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            **as_nobody(),
        )
        give_up = time.monotonic() + STARTED_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > give_up:
                log = self.folder / "log"
                raise RuntimeError(f"pgbouncer does not start: {log.read_text() if log.exists() else 'no log'}")

    def _answers(self) -> bool:
        try:
            with psycopg.connect(host=str(self.folder), user="perdure", dbname="postgres", connect_timeout=2) as con:
                con.execute(b"SELECT 1", prepare=False)
        except psycopg.OperationalError:
            return False
        return True

    def stop(self) -> None:
        """Kill it; its clients and the server lose their connections."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def remove(self) -> None:
        """Stop it, and remove all it had."""
        self.stop()
        shutil.rmtree(self.folder)

    def through(self, url: str) -> str:
        """The same store, by way of the pooler."""
        return f"{url.replace(_host(self._server.folder), _host(self.folder))}&pooler=transaction"


def _host(folder: Path) -> str:
    return f"host={quote(str(folder), safe='')}&"


def _program() -> str:
    found = shutil.which("pgbouncer") or shutil.which("pgbouncer", path=os.pathsep.join(PLACES))
    if found is None:
        raise RuntimeError("pgbouncer is not installed: run `sh tools/servers.sh`, which installs it or says how")
    return found
