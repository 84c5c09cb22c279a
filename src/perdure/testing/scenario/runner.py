"""Running scenario files on the core, on the memory store, on SQLite, or on the store that a URL names."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Literal, TypeAlias, TypeGuard, assert_never
from urllib.parse import quote, unquote, urlsplit

import msgspec

from perdure.errors import InvalidArgument, StoreUnusable
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


def is_place(on: str) -> TypeGuard[On]:
    """Whether it is one of the places that have a name; anything else is the URL of a store."""
    return on in PLACES


def run_files(paths: Sequence[str], on: str, *, progress: Callable[[int, int], None] | None = None) -> Report:
    """Run the scenarios of the files in order, up to the first difference.

    Args:
        on: `core`: the pure core; `memory`: the engine on the memory store with a virtual clock; `sqlite`: the engine
            on a SQLite file of its own for each scenario, closed and reopened at every restart and crash; or the URL of
            a store in SQLite or PostgreSQL: as `sqlite`, in a file beside the one it names, or in a new schema of its
            database that is emptied after each scenario. What is at the URL itself is left alone, and what was made is
            removed.
        progress: called with (scenarios done, scenarios in all).

    Raises:
        ScenarioError: a line is malformed; says which and what was expected there.
        OSError: a file cannot be read.
        InvalidArgument: `on` names no place.
        StoreUnavailable, StoreUnusable: nothing can be made there.
    """
    return run_scenarios(read_files(paths), on, progress=progress)


def run_scenarios(
    scenarios: Iterable[Scenario], on: str, *, progress: Callable[[int, int], None] | None = None
) -> Report:
    """Run parsed scenarios; see `run_files`."""
    todo = list(scenarios)
    told = progress or _nobody
    if not is_place(on):
        return asyncio.run(_on_url(todo, on, told))
    for done, scenario in enumerate(todo):
        try:
            run_one(scenario, on)
        except Difference as difference:
            return Report(done + 1, difference)
        told(done + 1, len(todo))
    return Report(len(todo), None)


def _nobody(_done: int, _all: int) -> None:
    return


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
    await EngineDriver(scenario, lambda: open_store(f"sqlite:///{quote(str(path))}")).run()


async def _on_url(scenarios: Sequence[Scenario], url: str, progress: Callable[[int, int], None]) -> Report:
    async with _places(url) as run:
        for done, scenario in enumerate(scenarios):
            try:
                await run(scenario)
            except Difference as difference:
                return Report(done + 1, difference)
            progress(done + 1, len(scenarios))
    return Report(len(scenarios), None)


Run: TypeAlias = Callable[[Scenario], Awaitable[None]]


def _places(url: str) -> AbstractAsyncContextManager[Run]:
    """Gives what runs a scenario on an empty store beside the one that a URL names."""
    open_store(url)  # says what is wrong with it
    match urlsplit(url).scheme:
        case "sqlite":
            return _beside_file(url)
        case "postgresql" | "postgres":
            return _beside_schema(url)
        case _:
            raise InvalidArgument(f"{url!r}: scenarios run on core, on memory, and on URLs of SQLite and PostgreSQL")


@asynccontextmanager
async def _beside_file(url: str) -> AsyncGenerator[Run]:
    parts = urlsplit(url)
    path = Path(unquote(parts.path)[1:])
    try:
        with tempfile.TemporaryDirectory(prefix=f"{path.name}-", dir=path.parent) as folder:

            async def run(scenario: Scenario) -> None:
                with tempfile.TemporaryDirectory(dir=folder) as own:
                    beside = f"sqlite:///{quote(own)}/scenario.db?{parts.query}"
                    await EngineDriver(scenario, lambda: open_store(beside)).run()

            yield run
    except OSError as error:
        raise StoreUnusable(f"no file can be made beside {path}: {error.strerror}") from error


@asynccontextmanager
async def _beside_schema(url: str) -> AsyncGenerator[Run]:
    from perdure.storage.postgres.throwaway import throwaway

    async with throwaway(url) as there:

        async def run(scenario: Scenario) -> None:
            await EngineDriver(scenario, there.store).run()
            await there.empty()

        yield run
