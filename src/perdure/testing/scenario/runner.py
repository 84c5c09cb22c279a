"""Running scenario files on the core, on the memory store, or on SQLite."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Literal, TypeAlias, assert_never

import msgspec

from perdure.storage import open_store
from perdure.storage.memory import MemoryData, MemoryStore
from perdure.testing.clock import VirtualSystem, run_virtual
from perdure.testing.scenario.core import CoreDriver
from perdure.testing.scenario.engine import EngineDriver
from perdure.testing.scenario.model import Scenario
from perdure.testing.scenario.parser import read_files
from perdure.testing.scenario.report import Difference

On: TypeAlias = Literal["core", "memory", "sqlite"]
PLACES: tuple[On, ...] = ("core", "memory", "sqlite")


class Report(msgspec.Struct, frozen=True):
    """How many scenarios ran, and the first difference if there was one."""

    ran: int
    difference: Difference | None


def run_files(paths: Sequence[str], on: On, *, progress: Callable[[int, int], None] | None = None) -> Report:
    """Run the scenarios of the files in order, up to the first difference.

    Args:
        on: `core`: the pure core; `memory`: the engine on the memory store with a virtual clock; `sqlite`: the engine
            on a SQLite file of its own for each scenario, closed and reopened at every restart and crash.
        progress: called with (scenarios done, scenarios in all).

    Raises:
        ScenarioError: a line is malformed; says which and what was expected there.
        OSError: a file cannot be read.
    """
    return run_scenarios(read_files(paths), on, progress=progress)


def run_scenarios(
    scenarios: Iterable[Scenario], on: On, *, progress: Callable[[int, int], None] | None = None
) -> Report:
    """Run parsed scenarios; see `run_files`."""
    todo = list(scenarios)
    for done, scenario in enumerate(todo):
        try:
            run_one(scenario, on)
        except Difference as difference:
            return Report(done + 1, difference)
        if progress is not None:
            progress(done + 1, len(todo))
    return Report(len(todo), None)


def run_one(scenario: Scenario, on: On) -> None:
    """Run one scenario.

    Raises:
        Difference: something else was chosen.
    """
    match on:
        case "core":
            CoreDriver(scenario).run()
        case "memory":
            run_virtual(lambda system: _on_memory(scenario, system))
        case "sqlite":
            with tempfile.TemporaryDirectory(prefix="perdure-scenario-") as folder:
                asyncio.run(_on_sqlite(scenario, Path(folder) / "scenario.db"))
        case _ as unreachable:
            assert_never(unreachable)


async def _on_memory(scenario: Scenario, system: VirtualSystem) -> None:
    data = MemoryData()
    await EngineDriver(scenario, lambda: MemoryStore(data), system).run()


async def _on_sqlite(scenario: Scenario, path: Path) -> None:
    await EngineDriver(scenario, lambda: open_store(f"sqlite:///{path}")).run()
