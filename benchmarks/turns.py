"""Programs that take turns on one PostgreSQL server, each in processes of its own; what each slice cost the server."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from benchmarks.children import Child, Part, cpu_of_tree_s
from benchmarks.written import Counters
from tests.postgres import PostgresServer

SETTINGS = {"shared_buffers": "512MB", "max_wal_size": "4GB"}


@dataclass(frozen=True)
class Turn:
    """One slice of one program, of all its processes together."""

    runs: int
    wall_s: float
    client_cpu_s: float
    server_cpu_s: float
    wal_bytes: int
    p50_ms: float
    p99_ms: float

    @property
    def runs_per_s(self) -> float:
        """By the clock on the wall."""
        return self.runs / self.wall_s


@dataclass
class Program:
    """Processes that work together; `concurrency` is of all of them.

    Attributes:
        turns: what was measured.
        url: of its store, where it is ours.
        steps: of a run.
    """

    name: str
    children: Sequence[Child]
    concurrency: int
    runs: int
    url: str = ""
    steps: int = 5
    turns: list[Turn] = field(default_factory=list[Turn])


Start: TypeAlias = Callable[[], list[Child]]


class Server:
    """A server of our own that syncs, with a look at it from outside."""

    def __init__(self) -> None:
        self.postgres = PostgresServer(fsync=True, settings=SETTINGS)
        self.postgres.start()
        pid = (self.postgres.data / "postmaster.pid").read_text(encoding="utf-8").split()[0]
        self._pid = int(pid)
        self._look = Counters(self.postgres.url(schema="looking"))
        self._numbers = 0

    def close(self) -> None:
        """Stop it; nothing is left of it."""
        self._look.close()
        self.postgres.remove()

    def database(self, name: str) -> str:
        """A URL of a new database."""
        self._numbers += 1
        self.postgres.sql(f"CREATE DATABASE {name}_{self._numbers}")
        return f"postgresql://perdure@/{name}_{self._numbers}?host={self.postgres.folder}"

    def turn(self, program: Program) -> Turn:
        """One slice, by all processes of a program at once."""
        count = len(program.children)
        cpu_s, wal = cpu_of_tree_s(self._pid), self._look.wal_bytes()
        for child in program.children:
            child.ask(max(1, program.runs // count), max(1, program.concurrency // count))
        parts: list[Part] = [child.answer() for child in program.children]
        turn = Turn(
            sum(part.runs for part in parts),
            max(part.wall_s for part in parts),
            sum(part.cpu_s for part in parts),
            cpu_of_tree_s(self._pid) - cpu_s,
            self._look.wal_bytes() - wal,
            max(part.p50_ms for part in parts),
            max(part.p99_ms for part in parts),
        )
        program.turns.append(turn)
        return turn


@contextmanager
def server() -> Generator[Server]:
    """A server for a while."""
    with closing(Server()) as found:
        yield found


@contextmanager
def folder() -> Generator[Path]:
    """A folder for a while."""
    with tempfile.TemporaryDirectory(prefix="perdure-bench-") as name:
        yield Path(name)
