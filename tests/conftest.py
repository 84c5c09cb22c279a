"""What every test may use: notes that reach the terminal, and the seeds of the simulation."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.pgbouncer import PgBouncer
from tests.postgres import PostgresServer

DEFAULT_SEEDS = 200


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the long tests."""
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


@pytest.fixture
def note(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Give a function that prints one line at the end of the test run, also on success and from parallel processes.

    For counts a reader should see (how many worlds were swept, how often each fault happened), not for logging.
    """

    def add(text: str) -> None:
        request.node.user_properties.append(("note", text))

    return add


@pytest.fixture
def files_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Temporary files lie in memory, where the machine has a place for that: for logic, not for what a disk does."""
    place = Path("/dev/shm")
    if place.is_dir() and os.access(place, os.W_OK):
        monkeypatch.setattr(tempfile, "tempdir", str(place))


@pytest.fixture(scope="session")
def sim_seeds() -> Sequence[int]:
    """Give the seeds to simulate: the one `make sim SEED=n` names, else a fixed range.

    `PERDURE_SIM_SEEDS=n` sets the length of the range.
    """
    chosen = os.environ.get("PERDURE_SIM_SEED")
    if chosen:
        return [int(chosen)]
    return range(int(os.environ.get("PERDURE_SIM_SEEDS") or DEFAULT_SEEDS))


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """Give a running PostgreSQL, one for each test process; every `url()` of it is a store of its own."""
    server = PostgresServer()
    try:
        server.start()
        yield server
    finally:
        server.remove()


@pytest.fixture(scope="session")
def pooler(postgres: PostgresServer) -> Iterator[PgBouncer]:
    """Give a PgBouncer in transaction mode before that server, one for each test process."""
    bouncer = PgBouncer(postgres)
    try:
        bouncer.start()
        yield bouncer
    finally:
        bouncer.remove()


POSTGRES = ("postgres", "postgres-pooler")
"""The ways to a store in PostgreSQL that tests take: directly, and through the pooler."""


@pytest.fixture(params=POSTGRES)
def postgres_url(request: pytest.FixtureRequest, postgres: PostgresServer) -> str:
    """Give the URL of a new store in PostgreSQL; each test runs once a way there is to it."""
    if request.param == "postgres":
        return postgres.url()
    bouncer: PgBouncer = request.getfixturevalue("pooler")
    return bouncer.through(postgres.url())


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the notes; they travel with the test reports, so it does not matter which process ran the test."""
    lines: list[str] = []
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport) and report.when == "call":
                lines += [f"{report.nodeid}: {text}" for name, text in report.user_properties if name == "note"]
    if lines:
        terminalreporter.section("notes")
        for line in sorted(lines):
            terminalreporter.line(line)
