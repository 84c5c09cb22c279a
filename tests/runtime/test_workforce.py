"""Who works on a store, what worker a run waits for, and workers that are known to be dead [R-2, R-3, D-4]."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from perdure import Succeeded, WorkerInfo, WorkerState, step
from perdure.ports.store import IndexState, NewRun, RunRow, WorkerRow
from perdure.runtime.workforce import (
    bury_known_dead,
    is_waiting_for_worker,
    missing_owner,
    missing_worker,
    worker_info,
)
from perdure.storage.memory import MemoryData, MemoryStore
from perdure.testing.clock import VirtualSystem
from tests.runtime.lab import SECOND_US, Gate, Inv, app, line, virtually
from tests.runtime.test_rolling import versions
from tests.runtime.test_workers import Shared

NOW_US = 1_000 * SECOND_US
ROW = WorkerRow("w1", "host", 7, 0, {"payout": 5, "refund": 2}, seen_us=NOW_US, lease_us=15 * SECOND_US)
RUN = NewRun("run-1", "default", "payout", "", None, False, b"", 0)


@pytest.mark.parametrize(
    ("row", "state"),
    [
        (ROW, "alive"),
        (replace(ROW, seen_us=NOW_US - ROW.lease_us), "alive"),
        (replace(ROW, seen_us=NOW_US - ROW.lease_us - 1), "silent"),
        (replace(ROW, draining=True), "draining"),
        (replace(ROW, draining=True, seen_us=0), "silent"),
        (replace(ROW, draining=True, dead=True), "dead"),
        (replace(ROW, lease_us=0, seen_us=0), "alive"),
    ],
)
def test_the_state_of_a_worker(row: WorkerRow, state: WorkerState) -> None:
    """R-3: silence is measured by the store's clock, in lengths of the worker's own lease."""
    assert worker_info(row, {}, NOW_US).state == state


def test_what_a_worker_serves_and_what_of_it_is_superseded() -> None:
    """D-4."""
    info = worker_info(ROW, {"payout": 6, "refund": 2, "other": 9}, NOW_US)
    assert (info.serves, info.superseded, info.seen_us) == ({"payout": 5, "refund": 2}, ("payout",), NOW_US)
    assert worker_info(replace(ROW, lease_us=0), {}, NOW_US).seen_us is None


def workers(*generations: int | None, state: WorkerState = "alive") -> list[WorkerInfo]:
    """Workers with these generations of the pipeline; None: one that does not serve it."""
    return [
        WorkerInfo(f"w{n}", "host", n, state, 0, 0, 1, {} if g is None else {"payout": g}, (), "", 0)
        for n, g in enumerate(generations)
    ]


@pytest.mark.parametrize(
    ("generation", "working", "text"),
    [
        (7, workers(5, 7), ""),
        (7, workers(8), ""),
        (0, workers(1), ""),
        (7, workers(5, 5), "waits for a worker that has generation 7 of pipeline payout; 2 workers have generation 5"),
        (
            7,
            [*workers(6, 5, None), *workers(7, state="dead"), *workers(7, state="draining")],
            "waits for a worker that has generation 7 of pipeline payout; 1 worker has generation 5, 1 worker has "
            "generation 6",
        ),
        (0, workers(None), "waits for a worker that serves pipeline payout; 1 worker serves others"),
        (3, workers(None, None), "waits for a worker that serves pipeline payout; 2 workers serve others"),
        (3, workers(3, state="silent"), "waits for a worker; none is alive"),
        (0, [], "waits for a worker; none is alive"),
    ],
)
def test_what_worker_a_run_waits_for_in_words(generation: int, working: Sequence[WorkerInfo], text: str) -> None:
    """D-4: one that may not take it, and one that begins nothing more, do not count."""
    assert missing_worker("payout", generation, working) == text


@pytest.mark.parametrize(
    ("working", "text"),
    [
        (workers(1), ""),
        (workers(1, state="draining"), ""),
        ([*workers(1, state="dead"), *workers(None, 1)[1:]], ""),
        (workers(1, state="dead"), "waits for a worker; its own, w0, is dead, and no other is alive"),
        ([], "waits for a worker; its own, w0, is dead, and no other is alive"),
        (workers(1, state="silent"), "waits for a worker; its own, w0, is silent, and no other is alive"),
        (
            [*workers(1, state="silent"), *workers(None, 1)[1:]],
            "its worker w0 is silent; it goes on when another finds that one dead",
        ),
    ],
)
def test_what_a_run_waits_for_whose_worker_does_not_answer(working: Sequence[WorkerInfo], text: str) -> None:
    """R-3: what a dead one had goes on at once where there is anybody."""
    assert missing_owner("w0", working) == text


@pytest.mark.parametrize(
    ("state", "waiting", "expected"),
    [
        (IndexState("ready", due_us=NOW_US), False, True),
        (IndexState("ready", due_us=NOW_US + 1), False, False),
        (IndexState("ready"), False, False),
        (IndexState("ready", due_us=NOW_US), True, False),
        (IndexState("ready", due_us=NOW_US, worker="w1"), False, False),
        (IndexState("running", worker="w1"), False, False),
        (IndexState("held"), False, False),
        (IndexState("invalid", due_us=NOW_US), False, False),
    ],
)
def test_only_a_run_that_is_due_waits_for_a_worker(state: IndexState, waiting: bool, expected: bool) -> None:
    """Whoever waits for its time, its slot, other runs or a person does not."""
    assert is_waiting_for_worker(RunRow(1, RUN, state, None, False, waiting), NOW_US) is expected


@virtually
async def test_a_run_says_what_worker_it_waits_for_until_there_is_one(system: VirtualSystem) -> None:
    """D-4: computed when it is read; `info` and `list` say it; a held pipeline is another reason."""
    gate = Gate()
    old, new, _ = versions(gate)

    @step("one/v1")
    async def one(inv: Inv) -> None: ...

    other = line(one, id="other")
    world = Shared(system)
    async with world.client(app(old, other)) as client, world.engine(app(old)) as older:
        async with world.engine(app(new), drain_timeout=0) as engine:
            run = await engine.submit(new, "x")
            await gate.reached.wait()
            assert (await client.info(run.id)).waits_for_worker == ""
        lacks = "waits for a worker that has generation 2 of pipeline line; 1 worker has generation 1"
        assert (await client.info(run.id)).waits_for_worker == lacks
        lost = await client.submit(other, "y")
        shown = {info.run_id: info.waits_for_worker for info in await client.list()}
        assert shown == {
            run.id: lacks,
            lost.id: "waits for a worker that serves pipeline other; 1 worker serves others",
        }
        await client.hold_pipeline("other")
        assert (await client.info(lost.id)).waits_for_worker == ""
        (only,) = await client.workers()
        assert (only.id, only.state, only.serves, only.superseded) == (older.worker, "alive", {"line": 1}, ("line",))
        gate.go.set()
        async with world.engine(app(new)):
            assert isinstance(await client.result(run.id, timeout=60), Succeeded)
            assert (await client.info(run.id)).waits_for_worker == ""


class Beating(MemoryStore):
    """A last renewal of the worker arrives between the look and the burial."""

    renewals = 0

    async def bury(self, worker: str, beat: int, /) -> bool:
        if self.renewals:
            self.renewals -= 1
            await self.renew(worker, NOW_US)
        return await super().bury(worker, beat)


@pytest.mark.parametrize("renewals", [0, 2])
async def test_who_is_known_to_be_dead_is_buried_whatever_was_on_its_way(renewals: int) -> None:
    """R-3: its last renewals may still arrive; then it is dead for good, and only once."""
    store = Beating(MemoryData(shared=True))
    await store.open(owner=None)
    await store.register(ROW)
    store.renewals = renewals
    assert await bury_known_dead(store, "w1") == 0
    assert [row.dead for row in await store.workers()] == [True]
    assert await bury_known_dead(store, "w1") is None
    assert await bury_known_dead(store, "nobody") is None
