"""`perdure workers`, runs that wait for a worker, and what `doctor` says of a server [R-2, R-3, D-4]."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from perdure.cli import examine_server
from perdure.cli.connect import shown_url
from perdure.cli.exits import Exit
from perdure.ports.store import Deployment, WorkerRow
from perdure.runtime.workforce import WorkerInfo, WorkerState
from perdure.storage import open_store
from perdure.storage.memory import MemoryData, MemoryStore
from perdure.storage.postgres.place import Place
from perdure.storage.postgres.queries import is_pooled
from perdure.storage.postgres.session import Session
from perdure.storage.sqlite.owner import Ownership
from perdure.testing.conformance.lab import Draft
from tests.cli.harness import Cli, records
from tests.cli.project import SETTINGS, SHOP
from tests.pgbouncer import PgBouncer
from tests.postgres import PostgresServer

HOUR_US = 3_600_000_000
LEASE_US = 15_000_000


@pytest.fixture
def url(folder: Path, postgres: PostgresServer) -> str:
    """Give the URL of a store on a server, with an application for it in the folder, and a run that is due."""
    url = postgres.url()
    (folder / "shop.py").write_text(SHOP.replace("sqlite:///shop.db", url))
    (folder / "pyproject.toml").write_text(SETTINGS)
    return url


def register(url: str, *rows: WorkerRow) -> None:
    """Workers that have just renewed their leases; one that is dead is buried."""

    async def work() -> None:
        store = open_store(url)
        await store.open(owner=None)
        await store.deploy(Deployment("job", 1, "digest", b"[]", 0, "ada"))
        for row in rows:
            await store.register(row)
            if row.dead:
                await store.bury(row.id, 0)
        await store.close()

    asyncio.run(work())


def worker(id: str, serves: dict[str, int], *, dead: bool = False, seen_us: int | None = None) -> WorkerRow:
    now_us = time.time_ns() // 1_000
    seen_us = now_us if seen_us is None else seen_us
    return WorkerRow(id, "host-1", 77, now_us - HOUR_US, serves, "b1", seen_us=seen_us, dead=dead, lease_us=LEASE_US)


def test_who_works_on_a_store(url: str, cli: Cli) -> None:
    """D-4: superseded generations stand in brackets; the dead are shown when asked for."""
    assert cli("workers").out == "no workers\n"
    assert "`perdure worker APP --processes N` starts some" in cli("workers").err
    register(
        url,
        worker("w-new", {"job": 1, "other": 3}),
        worker("w-old", {"job": 0}, seen_us=1),
        worker("w-dead", {"job": 1}, dead=True),
    )
    shown = cli("workers").out
    assert "w-dead" not in shown
    assert "job 1, other 3" in shown
    assert "job (0)" in shown
    assert "silent" in shown
    assert "60 min ago" in shown
    assert "1 worker with a superseded generation, in brackets" in shown
    found = {each["id"]: each for each in records(cli("workers", "--all", "--json").json()["workers"])}
    assert {id: each["state"] for id, each in found.items()} == {
        "w-new": "alive", "w-old": "silent", "w-dead": "dead",
    }  # fmt: skip
    assert found["w-old"]["superseded"] == ["job"]
    assert (found["w-new"]["lease_s"], found["w-new"]["host"], found["w-new"]["runs"]) == (15.0, "host-1", 0)


def test_a_run_shows_what_worker_it_waits_for(url: str, cli: Cli) -> None:
    """D-4: in every command that shows runs, and nowhere in the store."""
    assert cli("submit", "job", '{"name": "x"}').code == Exit.OK
    lacks = "waits for a worker; none is alive"
    shown = cli("show", "last")
    assert lacks in shown.out
    register(url, worker("w1", {"other": 1}))
    lacks = "waits for a worker that serves pipeline job; 1 worker serves others"
    assert cli("show", "last", "--json").json()["waits_for_worker"] == lacks
    assert cli("explain", "last", "--json").json()["waits_for_worker"] == lacks
    assert f"({lacks})" in cli("explain", "last").out
    (run,) = records(cli("list", "--json").json()["runs"])
    assert (run["waits_for_worker"], run["reason"]) == (lacks, None)
    assert "waits for" in cli("list").out
    register(url, worker("w1", {"job": 1}))
    assert cli("show", "last", "--json").json()["waits_for_worker"] is None
    assert "waits for" not in cli("explain", "last").out


def test_deploying_says_which_workers_are_behind(url: str, cli: Cli) -> None:
    """D-5: what the registry has is not what the application is, so it becomes a new generation."""
    register(url, worker("w1", {"job": 1}), worker("w2", {"other": 1}))
    answer = cli("deploy", "--force")
    assert answer.code == Exit.OK
    assert "1 worker with another generation" in answer.err
    again = cli("deploy", "--json").json()
    assert again["superseded_workers"] == ["w1"]


def test_the_engine_of_a_file_is_the_one_worker(shop: Path, cli: Cli) -> None:
    assert cli("workers", "--json").json() == {"workers": []}
    owner = Ownership.take(shop / "shop.db", "w-file")
    try:
        (only,) = records(cli("workers", "--json").json()["workers"])
        assert (only["id"], only["state"], only["lease_s"], only["seen_at"]) == ("w-file", "alive", None, None)
        assert "w-file" in cli("workers").out
    finally:
        owner.release()
    assert cli("show", "last", "--json").json()["waits_for_worker"] is None


def checks(cli: Cli, *arguments: str) -> dict[str, tuple[str, str]]:
    """Verdicts and findings by check."""
    lines = cli("doctor", *arguments, "--json").json_lines()
    return {str(line["check"]): (str(line["verdict"]), str(line["found"])) for line in lines}


def test_doctor_on_a_server(url: str, cli: Cli) -> None:
    assert cli("submit", "job", '{"name": "x"}').code == Exit.OK
    register(url, worker("w1", {"job": 1}), worker("w2", {}, dead=True))
    found = checks(cli)
    assert {name for name, (verdict, _) in found.items() if verdict != "ok"} <= {"round trip", "durability"}
    assert found["workers"][1] == "1 alive, 1 dead"
    assert found["clock"][1] == "as the store's"
    assert found["pooler"][1] == "none"
    assert found["runs"][1] == "1 ready"
    assert "(schema s" in found["store"][1]


async def test_doctor_says_what_worker_overdue_runs_wait_for() -> None:
    """D-4: of those alone that nobody can take."""
    store = MemoryStore(MemoryData(shared=True))
    await store.open(owner=None)
    await store.register(worker("w1", {"job": 1}))
    runs: list[str] = []
    for n, pipeline in enumerate(("job", "other", "other")):
        draft = Draft(f"run-{n}", pipeline=pipeline)
        await store.append(draft.submit())
        runs.append(draft.run_id)
    (check,) = await examine_server.check_lacking(store, runs)
    assert check.found == "2 overdue runs: waits for a worker that serves pipeline other; 1 worker serves others"


def test_doctor_names_the_pooler(url: str, pooler: PgBouncer, cli: Cli) -> None:
    """One that the URL does not name refuses the connection as a rule, and then the advice is the store's."""
    pooled = pooler.through(url)
    verdict, found = checks(cli, "--store", pooled)["pooler"]
    assert (verdict, found.partition(";")[0]) == ("ok", "in transaction mode")
    verdict, found = checks(cli, "--store", pooled.removesuffix("&pooler=transaction"))["store"]
    assert verdict == "fail"
    assert "a pooler stands between: add ?pooler=transaction to the URL" in found
    assert examine_server.check_pooler("unnamed").verdict == "warn"


async def test_a_pooler_is_told_from_a_server(url: str, pooler: PgBouncer) -> None:
    """It makes up its own process numbers, whatever else it lets through."""
    for place, pooled in ((url, False), (pooler.through(url), True)):
        session = await Session.connect(Place.of(place))
        assert await is_pooled(session) is pooled
        session.drop()


def info(state: WorkerState, *superseded: str) -> WorkerInfo:
    return WorkerInfo("w", "host", 1, state, 0, 0, 1, {}, superseded, "", 0)


@pytest.mark.parametrize(
    ("workers", "verdict", "found"),
    [
        ([], "ok", "none; `perdure worker APP` starts some"),
        ([info("alive"), info("draining"), info("dead"), info("alive")], "ok", "2 alive, 1 draining, 1 dead"),
        ([info("alive"), info("silent")], "warn", "1 alive, 1 silent"),
        ([info("silent")], "warn", "1 silent"),
    ],
)
def test_what_doctor_says_of_workers(workers: Sequence[WorkerInfo], verdict: str, found: str) -> None:
    check = examine_server.check_workers(workers)
    assert (check.verdict, check.found) == (verdict, found)


def test_what_doctor_says_of_superseded_generations() -> None:
    """D-4: usual while a deployment is under way."""
    found = examine_server.check_generations([info("alive", "a"), info("alive", "a", "b"), info("dead", "c")])
    assert [check.found for check in found] == [
        "2 workers with a superseded one of a",
        "1 worker with a superseded one of b",
    ]


@pytest.mark.parametrize(
    ("ahead_us", "verdict", "found"),
    [
        (900_000, "ok", "as the store's"),
        (-3_000_000, "ok", "3 s behind the store's, which counts"),
        (HOUR_US, "warn", "60 min ahead of the store's, which counts"),
    ],
)
def test_what_doctor_says_of_the_clock(ahead_us: int, verdict: str, found: str) -> None:
    check = examine_server.check_clock(ahead_us)
    assert (check.verdict, check.found) == (verdict, found)


def test_what_doctor_says_of_a_server_far_away_and_of_commits() -> None:
    assert [examine_server.check_answers([ms] * 3).verdict for ms in (0.3, 40.0)] == ["ok", "warn"]
    assert [examine_server.check_commit(setting).verdict for setting in ("on", "off")] == ["ok", "fail"]


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("sqlite:///a.db", "sqlite:///a.db"),
        ("postgresql://ada@host/db?schema=s", "postgresql://ada@host/db?schema=s"),
        ("postgresql://ada:secret@host:5432/db?schema=s", "postgresql://ada:***@host:5432/db?schema=s"),
        ("postgresql:///db?password=secret&schema=s", "postgresql:///db?schema=s"),
    ],
)
def test_a_password_is_not_shown(url: str, shown: str) -> None:
    assert shown_url(url) == shown
