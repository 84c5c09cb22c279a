"""What tests of retention work with: runs of every kind that have ended, and archives and stores that die in a call."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from perdure import Fail, Run, step
from perdure.ports.store import LoadedRun, RunTail, Store
from perdure.storage.archives.folder import FolderArchive
from perdure.storage.memory import MemoryData, MemoryStore
from perdure.storage.postgres import PostgresStore
from perdure.storage.sqlite import SqliteStore
from perdure.testing.clock import VirtualSystem, run_virtual
from tests.runtime.lab import Inv, World, app, line


@step("first/v1")
async def first(inv: Inv) -> None:
    await inv.memo("Ä→😀", lambda: "\n\u2028\x00", type=str)


@step("second/v1")
async def second(inv: Inv) -> None:
    if inv.attempt == 1:
        raise OSError("down")
    if inv.input == "fails":
        raise Fail("no-money")


Sent: TypeAlias = tuple[str, dict[str, str]]
"""Input and annotations of a run."""


@functools.cache
def ended_runs() -> tuple[LoadedRun, ...]:
    """Whole runs as a store reads them: succeeded, failed, canceled; about something, annotated, prioritized."""
    return runs_of([*((f"number {n}", {"n": str(n)}) for n in range(4)), ("fails", {})], priority=3, canceled=True)


def runs_of(sent: Sequence[Sent], *, priority: int = 0, canceled: bool = False) -> tuple[LoadedRun, ...]:
    """Submit these one after the other, and one that is canceled; as they are when all have ended."""
    found: list[LoadedRun] = []

    async def work(system: VirtualSystem) -> None:
        pipeline = line(first, second, resource=_resource)
        world = World(system)
        async with world.engine(app(pipeline)) as engine:
            runs: list[Run[None]] = []
            for text, annotations in sent:
                runs.append(await engine.submit(pipeline, text, annotations=annotations, priority=priority))
                await runs[-1].result()
                await system.sleep(10)
            if canceled:
                runs.append(await engine.submit(pipeline, "later", delay=1000))
                await runs[-1].cancel()
                await runs[-1].result()
            for run in runs:
                loaded = await engine.store.load_all_rows(run.id)
                assert loaded is not None
                found.append(loaded)

    run_virtual(work)
    return tuple(found)


def _resource(text: str) -> str:
    return f"<{text}>"


async def fill(store: Store, runs: Sequence[LoadedRun] | None = None) -> None:
    """Put these runs, or those of `ended_runs`, into an open store."""
    for run in ended_runs() if runs is None else runs:
        assert await store.insert_ended(run.row.run, run.row.state, run.row.ended_us or 0, run.rows)


async def content(store: Store, runs: Sequence[LoadedRun] | None = None) -> dict[str, object]:
    """Those runs of `fill` that an open store has, but for their numbers."""
    found: dict[str, object] = {}
    for run in ended_runs() if runs is None else runs:
        loaded = await store.load_all_rows(run.row.run.run_id)
        if loaded is not None:
            row = loaded.row
            found[row.run.run_id] = row.run, row.state, row.ended_us, loaded.rows
    return found


def everything(runs: Sequence[LoadedRun] | None = None) -> dict[str, object]:
    """What `content` gives of a store with all of them."""
    runs = ended_runs() if runs is None else runs
    return {run.row.run.run_id: (run.row.run, run.row.state, run.row.ended_us, run.rows) for run in runs}


# --- dying


class Killed(Exception):
    """The process was killed here."""


class Fate:
    """Says when to die: before or after a call that writes; they are counted from one."""

    def __init__(self, moment: int) -> None:
        self.moment = moment
        self.passed = 0

    def __call__(self) -> None:
        self.passed += 1
        if self.passed == self.moment:
            raise Killed(f"at moment {self.moment}")


class DyingFolder(FolderArchive):
    """A folder whose process dies around a write."""

    def __init__(self, path: Path, fate: Fate) -> None:
        super().__init__(path)
        self._fate = fate

    async def write(self, name: str, data: bytes, /) -> bool:
        self._fate()
        written = await super().write(name, data)
        self._fate()
        return written


class DyingMemory(MemoryStore):
    """A store whose process dies around a removal, as the other two."""

    def __init__(self, data: MemoryData, fate: Fate) -> None:
        super().__init__(data)
        self._fate = fate

    async def remove_runs(self, runs: Sequence[RunTail], /) -> int:
        self._fate()
        removed = await super().remove_runs(runs)
        self._fate()
        return removed


class DyingSqlite(SqliteStore):
    """See `DyingMemory`."""

    def __init__(self, path: Path, fate: Fate) -> None:
        super().__init__(path)
        self._fate = fate

    async def remove_runs(self, runs: Sequence[RunTail], /) -> int:
        self._fate()
        removed = await super().remove_runs(runs)
        self._fate()
        return removed


class DyingPostgres(PostgresStore):
    """See `DyingMemory`."""

    fate: Fate

    async def remove_runs(self, runs: Sequence[RunTail], /) -> int:
        self.fate()
        removed = await super().remove_runs(runs)
        self.fate()
        return removed
