"""Waits for messages and for runs: no call, no attempt, no doubt; whatever comes first ends them [B-7, B-15, R-13]."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from perdure.core import admission
from perdure.core import facts as f
from perdure.core.explain import explain
from perdure.core.operations import HeldOp, InvalidOp, RunOp, WaitOp
from perdure.core.plan import Closed, Opening, Parked, RunEnd
from perdure.core.projection import dump, restore
from perdure.core.reconciler import reconcile
from perdure.core.signature import decode_ledger, projection_of, sign
from tests.core.build import RUN, Life, content, names, submitted

SECOND_US = 1_000_000
OVER = ["AttemptStarted", "ContinuationCreated"]
"""How the append begins with which a worker takes up a run whose wait is over [J-16]."""


def waiting(text: str = "A@ B", lasts_us: int = 0, *, awaits: tuple[str, ...] = ("go",), need: int = 0) -> Life:
    """A run that waits in its first step, for `go` or for some runs."""
    life = Life(text)
    life.author.openings["A"] = Opening(lasts_us, awaits, need)
    life.claim()
    return life


def for_runs(*awaits: str, need: int | None = None, lasts_us: int = 0, text: str = "A# B") -> Life:
    return waiting(text, lasts_us, awaits=awaits, need=len(awaits) if need is None else need)


def comes(life: Life, payload: bytes = b"5") -> None:
    """What the run waits for comes."""
    if life.p.forward["A"].shape == "message":
        life.send("go", payload)
    else:
        life.ends_of = {run_id: RunEnd("succeeded", payload) for run_id in life.p.forward["A"].awaits}


BOTH = pytest.mark.parametrize("wait", [waiting, lambda: for_runs("r1", "r2")], ids=["message", "runs"])
Waiter = Callable[[], Life]


# --- how it opens and how it ends


def test_a_wait_opens_and_rests_in_the_append_of_the_success_before_it() -> None:
    """J-12, J-16, B-20: no append of its own, and no worker is held."""
    life = Life("A B@ C")
    life.author.openings["B"] = Opening(SECOND_US, ("go",))
    life.claim()
    now_us = life.now_us
    plan = life.ok()
    assert names(plan.facts) == ["Succeeded A", "Parked B", "Suspended B"]
    assert plan.facts[1] == f.OperationParked("B", now_us + SECOND_US, "message", ("go",))
    assert plan.rest == Parked(now_us + SECOND_US, why="waits for message 'go'")
    assert life.claim().facts == []  # D-8: nothing has come


def test_a_message_ends_it_in_the_append_of_the_claim() -> None:
    """B-24, J-12: one wait costs a run one commit, and its state is the message."""
    life = waiting()
    life.send("go", b'{"x":1}', "k")
    plan = life.claim()
    assert names(plan.facts) == [*OVER, "Woken A", "Succeeded A", "Reserved B"]
    assert plan.facts[2] == f.OperationWoken("A", "message", "k")
    assert plan.next == RunOp("B", 1, 1, started=False)
    assert (life.p.state("A"), life.p.attempts("forward", "A"), life.p.messages) == (b'{"x":1}', 0, {"go": []})


def test_an_early_message_is_there_when_the_wait_opens() -> None:
    """B-24: nothing is suspended then, and no claim is needed."""
    life = Life("A B@ C")
    life.author.openings["B"] = Opening(0, ("go",))
    life.send("go", b"1")
    life.send("other", b"2")
    life.claim()
    assert names(life.ok().facts) == ["Succeeded A", "Parked B", "Woken B", "Succeeded B", "Reserved C"]
    assert life.p.state("B") == b"1"
    assert [m.payload for m in life.p.messages["other"]] == [b"2"]


def test_awaits_of_one_name_consume_one_message_each_in_order_of_arrival() -> None:
    """B-24."""
    life = Life("A@ B@ C@ D")
    life.author.openings = {step: Opening(0, ("go",)) for step in "ABC"}
    life.send("go", b"1", "z")
    life.send("go", b"2", "a")
    plan = life.claim()
    assert [life.p.state(step) for step in "ABC"] == [b"1", b"2", None]
    assert isinstance(plan.rest, Parked)
    life.send("go", b"3")
    assert life.claim().next == RunOp("D", 3, 1, started=False)
    assert life.p.state("C") == b"3"


def test_a_message_counts_once_per_key_and_is_refused_after_the_end() -> None:
    """B-24: also when it has been consumed by then."""
    life = waiting()
    for _ in range(2):
        assert isinstance(life.send("go", b"1", "k"), admission.Admitted | admission.Duplicate)
    assert len(life.p.messages["go"]) == 1
    assert isinstance(life.send("go", b"2", "k"), admission.Taken)
    life.claim()
    assert isinstance(life.send("go", b"1", "k"), admission.Duplicate)
    life.ok()
    assert isinstance(life.send("go", b"9"), admission.Taken)
    assert life.p.ended is not None


def test_a_message_that_cannot_be_read_makes_the_run_invalid_and_stays() -> None:
    """D-1, D-8: nothing is written; once the code reads it, it is consumed."""
    life = waiting()
    life.send("go")
    life.author.broken.add("message A")
    for _ in range(2):
        plan = life.claim()
        assert plan.facts == []
        assert isinstance(plan.rest, InvalidOp)
    life.author.broken.clear()
    assert life.claim().next == RunOp("B", 1, 1, started=False)


@pytest.mark.parametrize(("need", "enough"), [(2, 2), (1, 1)], ids=["all", "any"])
def test_it_waits_for_as_many_runs_as_it_needs(need: int, enough: int) -> None:
    """R-13: all of them, or any; the state names every one, in order."""
    life = for_runs("r2", "r1", need=need)
    assert life.claim().rest == Parked(0, ("r2", "r1"), need, f"waits for {need} of 2 runs")
    ends = [("r1", RunEnd("failed", failure=f.Failure("X", "no"))), ("r2", RunEnd("succeeded", b"[1]"))]
    for i, (run_id, end) in enumerate(ends):
        life.ends_of[run_id] = end
        assert (life.claim().next is not None) is (i + 1 >= enough)
        if i + 1 >= enough:
            break
    state = json.loads(life.p.state("A") or b"")
    assert [entry["run_id"] for entry in state] == ["r2", "r1"]
    assert state[1]["status"] == "failed"
    assert state[1]["failure"]["message"] == "no"
    assert (state[0]["status"], state[0]["output"]) == (("succeeded", [1]) if enough == 2 else ("live", None))


def test_runs_that_are_missing_or_have_ended_and_no_runs_at_all_keep_nobody_waiting() -> None:
    """R-13: a missing target wakes at once."""
    assert for_runs().op == RunOp("B", 1, 1, started=False)
    life = Life("A# B")
    life.author.openings["A"] = Opening(0, ("r1", "r2"), 2)
    life.ends_of = {"r1": RunEnd("missing"), "r2": RunEnd("canceled")}
    plan = life.claim()
    assert names(plan.facts) == ["AttemptStarted", "Parked A", "Woken A", "Succeeded A", "Reserved B"]
    assert [entry["status"] for entry in json.loads(life.p.state("A") or b"")] == ["missing", "canceled"]


# --- time-outs


@BOTH
@pytest.mark.parametrize("substitute", [None, b'"none came"'])
def test_a_time_out_fails_it_or_gives_a_declared_value(wait: Waiter, substitute: bytes | None) -> None:
    """B-8: reason `await-timeout`; nothing was called, so nothing is in doubt. Runs are told as they are."""
    shape = wait().p.forward["A"].shape
    life = waiting(lasts_us=SECOND_US) if shape == "message" else for_runs("r1", lasts_us=SECOND_US)
    if substitute is not None:
        life.author.timeouts["A"] = substitute
    due_us = life.p.forward["A"].until_us
    life.now_us = due_us - 1
    assert life.claim().facts == []
    life.now_us = due_us
    plan = life.claim()
    if substitute is None:
        assert names(plan.facts)[2] == "Failed A"
        assert life.p.failure is not None
        assert life.p.failure.reason == "await-timeout"
        assert isinstance(life.p.ended, f.RunFailed)
        assert life.p.ended.in_doubt == ()
        return
    assert names(plan.facts) == [*OVER, "Woken A", "Succeeded A", "Reserved B"]
    assert plan.facts[2] == f.OperationWoken("A", "time")
    state = life.p.state("A") or b""
    assert state == substitute if shape == "message" else json.loads(state)[0]["status"] == "live"


@BOTH
def test_what_comes_before_the_time_out_is_planned_wins_over_it(wait: Waiter) -> None:
    """B-7, B-8: both may be there when the run is claimed; exactly one ends the wait."""
    shape = wait().p.forward["A"].shape
    life = waiting(lasts_us=SECOND_US) if shape == "message" else for_runs("r1", lasts_us=SECOND_US)
    life.now_us += 5 * SECOND_US
    comes(life)
    assert life.claim().next == RunOp("B", 1, 1, started=False)
    assert life.p.failure is None


def test_after_the_time_out_a_message_waits_for_the_next_await() -> None:
    """B-24, B-7: it does not wake what is over."""
    life = waiting("A@ B@ C", SECOND_US)
    life.author.openings["B"] = Opening(0, ("go",))
    life.author.timeouts["A"] = b"0"
    life.now_us += SECOND_US
    life.claim()
    assert life.p.pin == "B"
    life.send("go", b"1")
    life.claim()
    assert (life.p.state("A"), life.p.state("B")) == (b"0", b"1")


# --- circles


def test_a_wait_that_closes_a_circle_fails() -> None:
    """R-13: reason `await-cycle`, in the append that was refused before, without doubt."""
    life = Life("A* B# C")
    life.author.openings["B"] = Opening(0, ("r1",), 1)
    life.claim()
    life.cycle = True
    plan = life.ok()
    assert names(plan.facts) == ["Succeeded A", "Parked B", "Failed B", "Reserved A"]
    assert life.p.failure is not None
    assert life.p.failure.reason == "await-cycle"
    assert not life.p.forward["B"].in_doubt


@pytest.mark.parametrize("text", ["A@ B# C", "A# B# C", "A% B# C"])
def test_a_circle_fails_the_wait_that_closes_it_and_no_other(text: str) -> None:
    """R-13: a wait that is over by then ends as it would without the circle, in the same append."""
    life = Life(text)
    life.author.naps_us = 0
    life.author.openings["A"] = Opening(0, ("go",), 0)
    life.author.openings["B"] = Opening(0, ("r1",), 1)
    life.send("go")
    life.cycle = True
    life.claim()
    assert life.p.forward["A"].status == "succeeded"
    assert life.p.failure is not None
    assert (life.p.failure.step, life.p.failure.reason) == ("B", "await-cycle")


def test_a_circle_is_told_at_a_claim_too() -> None:
    """R-13, D-8."""
    life = for_runs("r1")
    life.cycle = True
    assert names(life.claim().facts)[:3] == [*OVER, "Failed A"]
    life = Life("A@ B")
    life.author.openings["A"], life.cycle = Opening(0, ("go",)), True
    assert isinstance(life.claim().rest, Parked), "a message closes no circle"


# --- cancel, hold, drain, operators


@BOTH
def test_a_cancel_ends_it_without_doubt(wait: Waiter) -> None:
    """R-12: on a held run, too; though what it waits for has come. What follows is held."""
    life = wait()
    life.hold()
    comes(life)
    life.cancel()
    assert names(life.claim().facts) == [*OVER, "Failed A"]
    life.release()
    life.claim()
    assert isinstance(life.p.ended, f.RunFailed)
    assert (life.p.ended.failure.kind, life.p.ended.in_doubt) == ("canceled", ())


@BOTH
def test_held_it_does_not_end_until_it_is_released(wait: Waiter) -> None:
    """R-17."""
    life = wait()
    life.hold()
    comes(life)
    plan = life.claim()
    assert isinstance(plan.rest, HeldOp)
    assert plan.facts == []
    life.release()
    assert life.claim().next == RunOp("B", 1, 1, started=False)


@BOTH
def test_a_release_or_retry_does_not_wake_it_nor_makes_it_wait_longer(wait: Waiter) -> None:
    """B-20, R-17."""
    life = wait()
    rest = life.claim().rest
    life.retry()
    life.hold()
    life.release()
    plan = life.claim()
    assert (plan.facts, plan.rest) == ([], rest)


@BOTH
def test_a_worker_that_drains_opens_none_and_ends_none(wait: Waiter) -> None:
    """R-6: another does, later."""
    life = wait()
    comes(life)
    life.may_start = False
    plan = life.claim()
    assert (plan.facts, plan.rest) == ([], Closed())
    life.may_start = True
    assert life.claim().next is not None
    fresh = Life("A@ B")
    fresh.may_start = False
    assert isinstance(fresh.claim().rest, Closed)


@BOTH
@pytest.mark.parametrize(("how", "status"), [("value", "succeeded"), ("skip", "skipped"), ("fail", "failed")])
def test_an_operator_resolves_it(wait: Waiter, how: f.Resolution, status: str) -> None:
    """R-17, U-9, J-16: without doubt; the next segment begins with the next claim."""
    life = wait()
    assert isinstance(life.resolve(how, "A", b"null"), admission.Admitted)
    assert (life.p.forward["A"].status, life.p.forward["A"].in_doubt) == (status, False)
    plan = life.claim()
    assert names(plan.facts)[:2] == OVER
    assert (life.p.ended is not None) is (how == "fail")


@BOTH
def test_abandoned_it_leaves_no_doubt(wait: Waiter) -> None:
    """D-7, U-9."""
    life = wait()
    life.abandon()
    assert isinstance(life.p.ended, f.RunFailed)
    assert life.p.ended.in_doubt == ()


# --- deployments


@BOTH
def test_it_pins_goes_on_retired_and_its_removal_makes_the_run_invalid(wait: Waiter) -> None:
    """E-2, E-3, E-9."""
    life = wait()
    comes(life)
    sign = "@" if life.p.forward["A"].shape == "message" else "#"
    life.deploy(f"N B A{sign}~")
    assert life.next == WaitOp("A", 2, life.p.forward["A"].shape, open=True)  # type: ignore[arg-type] # a wait's
    life.deploy("N B")
    assert isinstance(life.next, InvalidOp)
    assert life.next.reason == "step-missing"
    assert life.claim().facts == []
    life.deploy(f"A{sign}~ N B")
    assert life.claim().next == RunOp("N", 1, 1, started=False)


@BOTH
def test_what_it_waits_for_is_settled_when_it_opens(wait: Waiter) -> None:
    """B-20: name, runs and time are not asked again; the declared value is the code's of now [B-8]."""
    life = wait()
    entry = life.p.forward["A"]
    life.author.openings["A"] = Opening(1, ("other",), 1)
    life.restart()
    life.now_us += 10 * SECOND_US
    assert life.claim().facts == []
    assert life.p.forward["A"] == entry
    assert life.author.asked.count("open A") == 1
    comes(life)
    assert life.claim().next == RunOp("B", 1, 1, started=False)


SIGNS = ["", "%", "@", "#", "+", "$", "=", "^"]


@pytest.mark.parametrize("before", SIGNS)
def test_another_shape_under_its_id_makes_the_run_invalid_while_it_is_open(before: str) -> None:
    """D-1, B-20: and only then; a cancel does not mind [R-12]."""
    for after in SIGNS:
        life = Life(f"A{before} B")
        items = (b"1",)
        life.author.openings["A"] = Opening(SECOND_US, ("go",), 1, items, "p")
        life.claim()
        life.restart()
        life.deploy(f"A{after} B")
        if after == before:
            assert not isinstance(life.next, InvalidOp)
            continue
        assert isinstance(life.next, InvalidOp)
        assert life.next.reason == "shape-changed"
        assert life.claim().facts == []
        life.cancel()
        life.claim()
        assert isinstance(life.p.ended, f.RunFailed)
        assert life.p.ended.in_doubt == (("A",) if before in ("", "+", "$", "=", "^") else ())


def test_an_opening_that_raises_makes_the_run_invalid_and_writes_nothing_more() -> None:
    """D-1, D-8."""
    life = Life("A B@ C")
    life.author.broken.add("open B")
    life.claim()
    plan = life.ok()
    assert names(plan.facts) == ["Succeeded A"]
    assert isinstance(plan.rest, InvalidOp)
    assert life.claim().facts == []
    life = waiting("A@ B&")
    life.author.broken.add("B")
    life.resolve("value", "A", b"1")
    assert life.claim().facts == []
    assert life.p.suspended
    life.author.broken.clear()
    assert names(life.claim().facts) == [*OVER, "Reserved B"]


# --- what is known of it


@BOTH
def test_a_snapshot_and_a_ledger_in_the_middle_say_the_same(wait: Waiter) -> None:
    """J-8, D-6."""
    life = wait()
    life.send("early", b"1", "k")
    life.send("early", b"2")
    again = restore(dump(life.p), 0, life.p.row_seq, life.p.row_hash)
    assert content(again) == content(life.p)
    ledger = projection_of(decode_ledger(sign(life.p)[1]))
    for text in ("A@ B", "A# B", "A B", "B", "A@~ B", "N A# B"):
        life.deploy(text)
        for cancel in (False, True):
            if cancel and life.p.cancel is None:
                life.cancel()
                ledger = projection_of(decode_ledger(sign(life.p)[1]))
            assert reconcile(ledger, life.topology) == reconcile(life.p, life.topology)
        life.p.cancel = None
        ledger = projection_of(decode_ledger(sign(life.p)[1]))


def test_explain_says_what_it_waits_for() -> None:
    """E-11."""
    life = waiting()
    assert explain(life.p, life.topology).steps[0].why == "it waits for message 'go', and pins the run"
    comes(life)
    life.claim()
    assert explain(life.p, life.topology).steps[0].why == "its wait for message 'go' is over"
    life = for_runs("r1", "r2", "r3", "r4")
    assert explain(life.p, life.topology).steps[0].why == "it waits for runs: r1, r2, r3 ..., and pins the run"
    comes(life)
    life.claim()
    assert explain(life.p, life.topology).steps[0].why == "its wait for runs is over"
    for wait in (waiting, for_runs):
        life = wait()
        if life.p.pin == "A":
            life.resolve("skip", "A")
            assert explain(life.p, life.topology).steps[0].why == "an operator passed over it"


def test_a_deadline_cancels_it() -> None:
    """R-12."""
    life = Life("A@", submission=submitted(deadline_us=50_000))
    life.author.openings["A"] = Opening(0, ("go",))
    life.claim()
    life.now_us = 50_000
    life.claim()
    assert isinstance(life.p.ended, f.RunFailed)
    assert (life.p.run_id, life.p.ended.failure.reason) == (RUN, "deadline")
