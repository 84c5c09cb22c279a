"""E-11: why each step of the current topology ran, will run, or never will."""

from __future__ import annotations

from hypothesis import given

from perdure.core.explain import Explanation, StepExplanation, explain
from perdure.core.operations import EndedOp, FailOp, RunOp, UnwindOp
from perdure.core.retry import Retry
from tests.core.build import Life
from tests.core.pasts import failed, past, stopped, unwound
from tests.core.strategies import lives


def told(life: Life, text: str | None = None) -> Explanation:
    if text is not None:
        life.deploy(text)
    return explain(life.p, life.topology)


def fates(life: Life, text: str | None = None) -> str:
    return " ".join(f"{s.step}={s.fate}" for s in told(life, text).steps)


def unwinds(life: Life, text: str | None = None) -> str:
    return " ".join(f"{s.step}={s.unwind}" for s in told(life, text).steps if s.unwind is not None)


def of(life: Life, step: str) -> StepExplanation:
    found = told(life)
    return next(s for s in (*found.steps, *found.gone) if s.step == step)


def test_a_run_that_never_started() -> None:
    """E-11, E-9."""
    assert fates(Life("A B& C~")) == "A=ahead B=ahead C=retired"
    assert of(Life("A&"), "A").why == "it will run if its condition holds"
    assert told(Life("A B")).frontier == -1


def test_a_run_on_its_way() -> None:
    """E-11: succeeded, unresolved, ahead, skipped by condition."""
    life = past("A B& C D", "skip:B ok raises dies")
    assert fates(life) == "A=succeeded B=skipped C=unresolved D=ahead"
    assert told(life).next == RunOp("C", 2, 3, started=True)
    assert told(life).frontier == 1
    assert (of(life, "C").attempts, of(life, "A").attempts, of(life, "D").attempts) == (2, 1, 0)
    assert of(life, "B").why == "its condition was false"


def test_inserted_behind_and_ahead() -> None:
    """E-11, E-7: what stands behind the frontier or the pinned step never runs."""
    life = stopped("A B C", 2)
    assert fates(life, "X A Y B Z C") == "X=passed A=succeeded Y=passed B=succeeded Z=ahead C=ahead"
    life = past("A B C", "ok dies")
    assert fates(life, "X A Y B Z C") == "X=passed A=succeeded Y=passed B=unresolved Z=ahead C=ahead"


def test_passed_for_good() -> None:
    """E-7, E-11: recorded as passed, it never runs wherever it stands now."""
    life = stopped("A B", 1)
    life.deploy("X A B")
    life.claim()
    assert life.p.passed == {"X"}
    assert fates(life, "A B X C") == "A=succeeded B=unresolved X=passed C=ahead"


def test_retired_is_said_of_what_never_started_unless_it_was_recorded_as_passed() -> None:
    """E-11, E-9: behind the frontier too; the record of being passed weighs more."""
    life = stopped("A B", 1)
    assert fates(life, "X~ A Y~ B") == "X=retired A=succeeded Y=retired B=ahead"
    life.claim()
    assert life.p.passed == {"X", "Y"}
    assert fates(life, "X~ A Y~ B Z~") == "X=passed A=succeeded Y=passed B=unresolved Z=retired"
    life = stopped("A B", 1)
    assert fates(life, "A~ B~") == "A=succeeded B=retired", "a retired success stays one"


def test_a_step_that_is_gone_is_told_apart() -> None:
    """E-11."""
    life = stopped("A B C", 2)
    found = told(life, "B C")
    assert [(s.step, s.position, s.fate) for s in found.gone] == [("A", None, "succeeded")]
    assert found.gone[0].why.endswith("it is no longer in the pipeline")


def test_forward_work_that_was_never_reached() -> None:
    """E-11, U-1."""
    life = past("A* B C", "ok fails")
    assert fates(life) == "A=succeeded B=failed C=unreached"
    life = past("A B C", "ok cancel late")
    assert fates(life) == "A=succeeded B=canceled C=unreached"
    assert of(life, "B").in_doubt
    life = past("A", "ok")
    assert fates(life, "A B") == "A=succeeded B=unreached", "M-12: the run has ended"


def test_what_an_operator_did() -> None:
    """E-11, R-17."""
    life = Life("A B C")
    life.resolve("value")
    assert of(life, "A").why == "an operator gave its value"
    life.claim()
    life.resolve("skip")
    assert (of(life, "B").fate, of(life, "B").why) == ("skipped", "an operator passed over it")
    assert of(life, "B").in_doubt


def test_going_back() -> None:
    """E-11, U-2, U-5, U-7: what was, is, will and will not be undone."""
    life = failed("A* B C* D* E", 4)
    assert unwinds(life) == "A=will-unwind B=not-declared C=will-unwind D=will-unwind"
    assert told(life).unwind_frontier is None
    life.claim()
    assert unwinds(life) == "A=will-unwind B=not-declared C=will-unwind D=unwinding"
    life.fails()
    assert unwinds(life) == "A=will-unwind B=not-declared C=unwinding D=unwind-failed"
    assert told(life).unwind_frontier == 2
    life.ok()
    assert unwinds(life) == "A=unwinding B=not-declared C=unwound D=unwind-failed"
    assert told(life).next == UnwindOp("A", 0, 2, in_doubt=False)
    assert (of(life, "A").unwind_attempts, of(life, "E").unwind) == (1, None)


def test_behind_the_unwind_frontier() -> None:
    """E-11, U-5: switched on too late, or moved there."""
    life = unwound("A* B C*", 2, 1)
    assert unwinds(life, "A* B* C*") == "A=unwound B=crossed"
    life = unwound("A* B* C", 2, 1)
    assert unwinds(life, "B* C A*") == "B=unwound A=crossed"
    assert told(life).next == FailOp()


def test_doubt_going_back() -> None:
    """E-11, U-12."""
    life = past("A B C", "ok hold never")
    life.release()
    assert unwinds(life, "A B*? C") == "A=not-declared B=will-unwind"
    assert unwinds(life, "A B* C") == "A=not-declared", "its first handler is not for a step in doubt"


def test_when_and_whether() -> None:
    """E-11, R-4."""
    life = Life("A", Retry(initial=10, cap=10, jitter=0))
    life.claim()
    life.raises()
    assert told(life).due_us == life.p.due_us > life.now_us
    life = past("A", "ok")
    assert told(life).next == EndedOp()


@given(lives())
def test_explaining_covers_every_step_and_agrees_with_what_is_next(life: Life) -> None:
    """E-11: and changes nothing."""
    version = life.p.version
    found = told(life)
    assert tuple(s.step for s in found.steps) == life.topology.ids
    assert {s.step for s in found.gone} == {*life.p.forward, *life.p.unwind} - set(life.topology.ids)
    assert all(s.why for s in (*found.steps, *found.gone))
    assert found.next == life.next
    if isinstance(found.next, RunOp):
        fate = found.steps[found.next.position].fate
        assert fate == ("unresolved" if found.next.started else "ahead")
    elif isinstance(found.next, UnwindOp):
        assert found.steps[found.next.position].unwind in ("unwinding", "will-unwind")
    assert life.p.version == version
