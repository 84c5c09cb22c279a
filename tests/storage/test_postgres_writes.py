"""What a clean run costs a PostgreSQL server, and who is told of it: counted by the server, not by us [J-12, R-8]."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing, contextmanager

import pytest
from msgspec.structs import replace

from benchmarks.pipelines import app_of, trivial
from benchmarks.runs import measure_slice
from benchmarks.written import Counters, Written, counted_url
from perdure.ports.changes import ANYTHING, LATER_US, Change
from perdure.ports.store import Append, Conflict, IndexState, Snapshot
from perdure.storage.postgres.entries import Entry, PutSnapshot, SetIndex, told
from perdure.storage.postgres.jobs import Job, Work
from perdure.storage.postgres.single import Single, divide, is_single
from perdure.testing.conformance.lab import ENDED, READY, T0, Draft, claimed, loaded, owned, put, submitted
from tests.postgres import PostgresServer
from tests.storage.helpers import soon
from tests.storage.test_postgres import opened
from tests.storage.test_postgres_turns import park

RUNS, STEPS = 4, 5


@contextmanager
def counters(url: str) -> Generator[Counters]:
    with closing(Counters(url)) as found:
        yield found


async def test_what_a_clean_run_writes(postgres: PostgresServer) -> None:
    """[J-12] A step is one row inserted and none updated; a run is one index row, updated once, when it ends."""
    url = postgres.url()
    pipeline = trivial(STEPS)
    async with app_of(pipeline, counted_url(url)).engine():
        pass  # the pipeline is deployed
    with counters(url) as server:
        before = server.tables()
        async with app_of(pipeline, counted_url(url)).engine() as engine:
            await measure_slice(engine, pipeline, RUNS, concurrency=1)
        after = server.tables()
        assert server.commits() == server.rows() == RUNS * (STEPS + 1)
    assert _more(before, after, "journal") == Written(RUNS * (STEPS + 1), 0, 0, 0)
    assert _more(before, after, "run") == Written(RUNS, RUNS, 0, 0)
    changed = {name for name in after if _more(before, after, name) != Written(0, 0, 0, 0)}
    assert changed == {"journal", "run", "worker"}


async def test_a_table_that_has_grown_is_not_read_whole(postgres: PostgresServer) -> None:
    """Plans are kept: one made while the tables were all but empty must not read every row of them later [R-1]."""
    url = postgres.url()
    pipeline = trivial(STEPS)
    async with app_of(pipeline, counted_url(url)).engine() as engine:
        await measure_slice(engine, pipeline, 2, concurrency=1)
    with counters(url) as server:
        server.analyze()
        before = server.scanned()
        async with app_of(pipeline, counted_url(url)).engine() as engine:
            await measure_slice(engine, pipeline, 200, concurrency=32)
        read = {name: rows - before[name] for name, rows in server.scanned().items()}
    assert {name for name, rows in read.items() if rows > 50} == set()


async def test_runs_that_others_own_are_not_looked_at(postgres: PostgresServer) -> None:
    """Plans are kept: one made while nobody owned a run must not look at each owned one later, to claim one [R-1]."""
    url = postgres.url(schema="owned")
    async with opened(counted_url(url), "w1") as engine:
        one, another = await submitted(engine, "one"), await submitted(engine, "another")
        postgres.sql("ANALYZE owned.run")
        await put(engine, one, one.claim())
        await put(engine, one, one.next())
        park(postgres, "owned", 2_000, worker="'w9'", due_us="NULL")
        claims = [draft.claim(token=2) for draft in (one, another)]
        for draft, future in zip((one, another), [engine.append(claim) for claim in claims], strict=True):
            draft.accept(claims[draft is another], await soon(future))
        await put(engine, one, one.next())
        gone = another.next(index=ENDED)
        assert await soon(engine.append(gone)) == Conflict()
    with counters(url) as server:
        assert server.read_from("run_owned") < 100


async def test_commits_are_shared(postgres: PostgresServer) -> None:
    """Runs at the same time share commits: far fewer than each would need alone."""
    url = postgres.url()
    pipeline = trivial(STEPS)
    async with app_of(pipeline, url).engine() as engine:
        await measure_slice(engine, pipeline, 64, concurrency=32)
    with counters(url) as server:
        assert server.rows() == 64 * (STEPS + 1)
        assert server.commits() < 64 * (STEPS + 1) / 4


def _more(before: dict[str, Written], after: dict[str, Written], table: str) -> Written:
    old, new = before.get(table, Written(0, 0, 0, 0)), after[table]
    return Written(new.inserted - old.inserted, new.updated - old.updated, new.deleted - old.deleted, new.hot - old.hot)


# --- groups that are one statement, without locks beforehand


async def test_an_owners_end_and_a_wait_for_it_see_each_other(postgres: PostgresServer) -> None:
    """One process ends its run by one statement, a second registers that a run waits for it, both at once [R-16]."""
    url = postgres.url()
    async with opened(url, "w1") as engine, opened(url, "w2") as other:
        for n in range(12):
            target, waiter = await claimed(engine, f"target-{n}"), await claimed(other, f"waiter-{n}")
            ends = target.next(token=1, index=replace(ENDED, token=1), at_us=T0 + 50)
            waiting = IndexState("ready", token=1, generation=1, awaits=(target.run_id,), need=1, at_us=T0 + 77)
            waits = waiter.next(token=1, index=waiting)
            assert is_single(ends)
            assert not is_single(waits)
            first, second = engine.append(ends), other.append(waits)
            target.accept(ends, await soon(first))
            waiter.accept(waits, await soon(second))
            assert (await loaded(engine, waiter)).row.state.due_us in (T0 + 50, T0 + 77), f"turn {n}"


async def test_an_owners_end_passes_its_slot_on(postgres: PostgresServer) -> None:
    """One process ends its run by one statement, a second submits one that waits for its slot, both at once [R-5]."""
    url = postgres.url()
    async with opened(url, "w1") as engine, opened(url) as client:
        for n in range(12):
            holder, waiter = await claimed(engine, f"holder-{n}", slot=f"slot-{n}"), Draft(f"w-{n}", slot=f"slot-{n}")
            waiter.new = replace(waiter.new, waits="queue")
            ends = holder.next(token=1, index=replace(ENDED, token=1), at_us=T0 + 50)
            comes = waiter.submit(IndexState("ready"))
            assert is_single(ends)
            first, second = engine.append(ends), client.append(comes)
            holder.accept(ends, await soon(first))
            waiter.accept(comes, await soon(second))
            row = (await loaded(engine, waiter)).row
            assert (row.waiting, row.state.due_us is None) == (False, False), f"turn {n}"


async def test_a_refused_submission_hurts_no_other(postgres: PostgresServer) -> None:
    """Of new runs in one statement the one whose slot is taken learns who has it; the others are there [R-5]."""
    async with opened(postgres.url(), "w1") as engine:
        holder = await submitted(engine, "holder", slot="taken")
        drafts = [Draft("one"), Draft("two", slot="taken"), Draft("three", slot="free")]
        sent = [draft.submit(owned()) for draft in drafts]
        assert all(map(is_single, sent))
        one, two, three = [await soon(future) for future in [engine.append(append) for append in sent]]
        drafts[0].accept(sent[0], one)
        drafts[2].accept(sent[2], three)
        assert getattr(two, "run_id", None) == holder.run_id
        assert await engine.load("two") is None


FIRST = Draft("run").submit(READY)
LATER = replace(READY, due_us=T0 + LATER_US)


def _step(index: IndexState | None, *, token: int = 1, run: int = 1) -> Append:
    return replace(FIRST, run_id=f"run-{run}", locator=run, new=None, first_seq=2, token=token, index=index)


ABOUT = Change(runs=("run-1",))
BOTH = replace(ABOUT, due=True, outside=True)
CASES: dict[str, tuple[Entry, bool, Change | None]] = {
    "a step": (_step(None), True, None),
    "an end": (_step(ENDED), True, ABOUT),
    "a release that is due": (_step(READY), True, replace(ABOUT, due=True)),
    "a release that is due later": (_step(LATER), True, ABOUT),
    "a release that is due later, with its ledger": (_step(replace(LATER, ledger=b"l")), True, ABOUT),
    "a release without a time": (_step(replace(READY, due_us=None)), True, ANYTHING),
    "an invalid run": (_step(replace(LATER, status="invalid")), True, replace(ABOUT, due=True)),
    "a wait for a run": (_step(replace(LATER, awaits=("other",), due_us=None)), False, ANYTHING),
    "a claim": (_step(owned()), True, None),
    "a fact from outside": (_step(None, token=0), False, replace(ABOUT, outside=True)),
    "a fact from outside that makes it due later": (
        _step(LATER, token=0),
        False,
        replace(ABOUT, due=True, outside=True),
    ),
    "a run that its submitter goes on with": (replace(FIRST, index=owned()), True, None),
    "a run for whoever is free": (FIRST, True, Change(due=True)),
    "a run for later": (replace(FIRST, index=LATER), True, None),
    "a run that waits for its slot": (replace(FIRST, new=replace(Draft("run").new, waits="queue")), False, ANYTHING),
    "an index state": (SetIndex(1, READY, 1), False, ANYTHING),
    "a snapshot": (PutSnapshot(1, Snapshot(1, b"h", 1, 1, b"s")), False, None),
}
"""Entries; whether each is one statement by itself; what others are told of it."""


@pytest.mark.parametrize("name", CASES)
def test_who_is_told_of_what(name: str) -> None:
    """Others are told where they may have to act soon, and no more often: commits queue for a notification [R-16]."""
    entry, alone, change = CASES[name]
    assert is_single(entry) == alone
    assert told((entry,)) == change


def _queued(*entries: Entry | Work) -> list[Job]:
    return [(None, entry, "w1") for entry in entries]


def test_what_goes_in_one_round_trip_overtakes_nothing_of_its_run() -> None:
    """A second append to a run would not see the first one, nor what is done beforehand [J-2]."""
    index, end, step = SetIndex(3, READY, 1), _step(ENDED, run=2), _step(None, run=1)
    new = replace(FIRST, run_id="new", index=owned())
    jobs = _queued(step, end, index, _step(None), _step(ENDED, run=3), new, FIRST, FIRST)
    quick, rest = divide(jobs, lambda job: False)
    assert quick == [jobs[0], jobs[1], jobs[5], jobs[6]]
    assert rest == [jobs[2], jobs[3], jobs[4], jobs[7]]
    group = Single.of(quick)
    assert (group.steps, group.rests, group.new, group.ledgers) == ([step], [end], [new, FIRST], None)
    assert group.change == Change(due=True, runs=("run-2",))
    assert divide(jobs[:2], lambda job: False) == (jobs[:2], [])
    assert divide(jobs[:2], lambda job: job is jobs[0]) == ([jobs[1]], [jobs[0]])
