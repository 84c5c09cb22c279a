"""Each numbered rule of U as a table: what a failed run with this past does next, and what its end names."""

from __future__ import annotations

import pytest

from perdure.core.facts import RunFailed
from perdure.core.operations import UnwindOp
from perdure.core.reconciler import Lists, in_doubt
from tests.core.build import Life
from tests.core.pasts import ACTS, HOW, brief, failed, past, resolved_with_a_value, stopped, then, unwound

# --- unwind -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("acts", "expected"),
    [
        ("ok fails", "unwind A 2"),
        ("ok never", "unwind A 2"),
        ("ok resolve:fail", "unwind A 2"),
        ("ok cancel raises", "unwind A 2"),
        ("ok cancel claim", "unwind A 2"),
        ("ok raises dies", "run B 3"),
    ],
)
def test_unwinding_starts_when_a_forward_operation_has_failed(acts: str, expected: str) -> None:
    """U-1: for good, by an operator, or by a cancel."""
    life = past("A* B", acts)
    life.restart()
    assert brief(life.next) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A B C", "fail"),
        ("A* B C", "unwind A 1"),
        ("A* B* C*", "unwind B 1"),
        ("A* B*~ C", "unwind B 1"),
        ("B* A* C", "unwind A 1"),
        ("B C A*", "unwind A 1"),
        ("A* C", "unwind A 1"),
        ("B* C", "unwind B 1"),
        ("A B X* C", "fail"),
    ],
)
def test_what_had_its_effect_and_can_be_unwound_now_is_unwound_in_reverse_order(text: str, expected: str) -> None:
    """U-2 (1) to (3), U-3: order and flags of now; retirement does not matter; what never ran is not unwound."""
    assert then(failed("A B C", 2), text) == expected


def test_skipped_passed_and_failed_steps_are_not_unwound() -> None:
    """U-2, E-12, M-9."""
    life = stopped("A B& C", 1)
    life.author.false.add("B")
    life.deploy("X* A B& C")
    life.claim()
    life.hold()
    life.fails()
    life.release()
    assert life.p.passed == {"X"}
    assert then(life, "X* A B* C*") == "fail"


def test_a_resolved_unwind_is_not_done_again() -> None:
    """U-2 (5), U-8: succeeded, failed by its own word, or resolved by an operator; the walk goes on."""
    for act in (Life.ok, Life.fails, resolved_with_a_value):
        life = failed("A* B* C", 2)
        life.claim()
        act(life)
        assert life.op == UnwindOp("A", 0, 1, False)
        life.restart()
        assert then(life, "B* A* C") == "unwind A 2"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A* B* C D", "unwind B 1"),
        ("B* A* C D", "unwind A 1"),
        ("A* C* B* D", "unwind A 1"),
        ("C A* B* D", "fail"),
        ("A* D B* C", "unwind A 1"),
        ("B* C D A*", "unwind B 1"),
        ("B* A*", "invalid no-safe-unwind-frontier"),
    ],
)
def test_nothing_at_or_after_a_crossed_step_is_unwound(text: str, expected: str) -> None:
    """U-2 (4), U-4, U-5: C was unwound, which crossed C and D."""
    life = unwound("A* B* C* D", 3, 1)
    assert life.p.crossed == {"C", "D"}
    assert then(life, text) == expected


def test_a_step_that_becomes_eligible_behind_the_frontier_never_unwinds() -> None:
    """U-5: its flag was off when the walk went by."""
    life = unwound("A* B C", 2, 1)
    assert life.p.crossed == {"A", "B", "C"}
    assert then(life, "A* B* C") == "fail"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A B C", "fail"),
        ("C", "invalid no-safe-unwind-frontier"),
        ("", "invalid no-safe-unwind-frontier"),
        ("A", "fail"),
        ("X B~", "fail"),
    ],
)
def test_successes_that_are_nowhere_leave_no_safe_unwind_frontier(text: str, expected: str) -> None:
    """U-6: even if nothing is left to unwind."""
    assert then(failed("A B C", 2), text) == expected


def test_crossed_steps_that_are_nowhere_leave_no_safe_unwind_frontier() -> None:
    """U-6."""
    life = unwound("A* B* C", 2, 1)
    assert life.p.crossed == {"B", "C"}
    assert then(life, "A*") == "invalid no-safe-unwind-frontier"
    assert then(life, "A* C") == "unwind A 1"


def test_skips_and_doubt_ask_for_no_unwind_frontier() -> None:
    """U-6: nor do they serve as one."""
    life = failed("A& B", 0, skips="A")
    assert then(life, "X") == "fail"
    life = past("A*? B", "resolve:skip hold fails")
    life.release()
    assert life.p.forward["A"].in_doubt
    assert then(life, "X") == "fail"
    life = failed("A B& C", 1, skips="B")
    assert then(life, "B C") == "invalid no-safe-unwind-frontier"


@pytest.mark.parametrize("text", ["A* B* C", "B* A* C", "C B* A*", "B*~", "X B*"])
def test_the_unwind_reserved_last_pins_wherever_it_stands(text: str) -> None:
    """U-7: before any frontier is asked for [U-6]."""
    life = failed("A* B* C", 2)
    life.claim()
    life.restart()
    assert then(life, text) == "unwind B 2"


@pytest.mark.parametrize(
    ("text", "expected"),
    [("A* B C", "unwind A 1"), ("A* C", "unwind A 1"), ("A C", "fail"), ("X", "invalid no-safe-unwind-frontier")],
)
def test_an_unwind_that_cannot_be_done_any_more_is_dropped(text: str, expected: str) -> None:
    """U-7: removed or switched off; until another is reserved it comes back when its handler does."""
    life = failed("A* B* C", 2)
    life.claim()
    life.restart()
    assert then(life, text) == expected
    assert then(life, "A* B* C") == "unwind B 2"


@pytest.mark.parametrize("how", ["reserved", "resolved"])
def test_an_earlier_unwind_is_dropped_for_good(how: str) -> None:
    """U-7: once another one was reserved or resolved."""
    life = failed("A* B* C", 2)
    life.claim()
    life.restart()
    life.deploy("A* B C")
    if how == "reserved":
        life.claim()
        life.restart()
        assert then(life, "A* B* C") == "unwind A 2"
    else:
        life.resolve("value", "A")
        assert then(life, "A* B* C") == "fail"
    assert Lists(life.p, life.topology).half_unwound[-1:] == ("B",)


@pytest.mark.parametrize(
    ("act", "expected"),
    [("ok", "unwind A 1"), ("raises", "unwind B 2"), ("fails", "unwind A 1"), ("late", "unwind B 2")],
)
def test_how_an_unwind_ends(act: str, expected: str) -> None:
    """U-8: an ordinary exception is tried again, `Fail` is recorded and the walk goes on."""
    life = failed("A* B* C", 2)
    life.claim()
    life.hold()
    ACTS[act](life)
    life.release()
    assert brief(life.next) == expected
    assert [f.step for f in life.p.unwind_failures] == (["B"] if act == "fails" else [])


@pytest.mark.parametrize("when", ["before", "while"])
def test_unwinding_is_not_canceled(when: str) -> None:
    """U-11: a cancel that was pending or comes meanwhile changes nothing in it."""
    life = failed("A* B* C", 2)
    if when == "before":
        life.cancel()
        life.claim()
    else:
        life.claim()
        life.cancel()
    life.raises()
    assert life.op == UnwindOp("B", 1, 2, False)
    life.ok()
    life.ok()
    assert isinstance(life.p.ended, RunFailed)
    assert life.p.ended.failure.kind != "canceled"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A* B*? C", "unwind B 1 in doubt"),
        ("A* B* C", "unwind A 1"),
        ("A* B C", "unwind A 1"),
        ("A B*?~ C", "unwind B 1 in doubt"),
    ],
)
@pytest.mark.parametrize("act", ["never", "cancel late", "resolve:skip fails"])
def test_a_step_in_doubt_is_unwound_by_its_second_handler(act: str, text: str, expected: str) -> None:
    """U-12, U-9: only if it says now that it can."""
    words = act.split()
    life = past("A B C", " ".join(["ok", *words[:-1], "hold", words[-1]]))
    life.release()
    assert life.p.forward["B"].in_doubt
    assert then(life, text) == expected


def test_a_step_that_failed_by_its_own_word_is_not_unwound() -> None:
    """M-9, U-12: it has cleaned up; also when a cancel made its `Fail` a cancellation [R-12]."""
    for acts in ("ok hold fails", "ok cancel hold fails"):
        life = past("A B C", acts)
        life.release()
        assert then(life, "A B*? C") == "fail"


def test_a_success_unwinds_by_its_first_handler_though_it_has_two() -> None:
    """U-12."""
    life = failed("A*? B", 1)
    assert life.next == UnwindOp("A", 0, 1, in_doubt=False)


# --- the four lists ---------------------------------------------------------------------------------------------------


def lists(life: Life, text: str) -> str:
    """The lists in a word: `doubt B; left A`."""
    life.deploy(text)
    found = Lists(life.p, life.topology)
    named = (
        ("doubt", found.in_doubt),
        ("half", found.half_unwound),
        ("left", found.uncompensated),
        ("gone", found.unavailable),
    )
    return "; ".join(f"{name} {' '.join(ids)}" for name, ids in named if ids)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A* B C", "left A"),
        ("A B* C", "left B; gone A"),
        ("A B C", "gone A"),
        ("B C", "gone A"),
        ("A* B* C*", "left A B"),
        ("C* B* A*", "left A B"),
    ],
)
def test_what_is_not_undone_is_left_or_gone(text: str, expected: str) -> None:
    """U-9: it can be unwound now, or could be in some generation; what never could is no loss."""
    assert lists(failed("A* B C", 2), text) == expected


def test_every_generation_counts_for_what_is_gone() -> None:
    """U-9, D-4: also one that was deployed while nothing happened to the run."""
    life = failed("A B C", 2)
    assert lists(life, "A B C") == ""
    life.deploy("A B* C")
    assert lists(life, "A B C") == "gone B"


@pytest.mark.parametrize(
    ("act", "expected"),
    [("ok", "left A"), ("fails", "left A B"), ("raises", "half B; left A B"), ("resolve", "left A")],
)
def test_only_a_success_undoes(act: str, expected: str) -> None:
    """U-9, U-8, R-17: a failed unwind leaves its step, an unresolved one is half done."""
    life = failed("A* B* C", 2)
    life.claim()
    life.hold()
    if act == "resolve":
        life.resolve("value")
    else:
        ACTS[act](life)
    assert lists(life, "A* B* C") == expected


@pytest.mark.parametrize(
    ("acts", "expected"),
    [
        ("ok never", "B"),
        ("ok cancel raises", "B"),
        ("ok cancel late", "B"),
        ("ok cancel claim", "B"),
        ("ok cancel fails", ""),
        ("ok fails", ""),
        ("ok resolve:fail", "B"),
        ("ok resolve:skip fails", "B"),
        ("ok resolve:value fails", ""),
    ],
)
def test_in_doubt_is_what_was_started_and_not_ended_by_its_own_word(acts: str, expected: str) -> None:
    """U-9, M-9, R-12, R-17."""
    life = past("A B C", acts)
    assert " ".join(in_doubt(life.p)) == expected


def test_what_was_never_started_is_in_no_doubt() -> None:
    """U-9, R-12, R-17: canceled, skipped or failed by an operator without an attempt."""
    for act in ("value", "skip", "fail"):
        life = Life("A B")
        life.resolve(HOW[act])
        assert in_doubt(life.p) == ()
    life = Life("A B")
    life.cancel()
    life.claim()
    assert isinstance(life.p.ended, RunFailed)
    assert life.p.ended.in_doubt == ()


@pytest.mark.parametrize(
    ("former", "text", "expected"),
    [
        ("A B C", "A B*? C", "doubt B; left B"),
        ("A B C", "A B* C", "doubt B"),
        ("A B* C", "A B C", "doubt B"),
        ("A B*? C", "A B C", "doubt B; gone B"),
        ("A B*? C", "A C", "doubt B; gone B"),
        ("A B*? C", "A B* C", "doubt B"),
    ],
)
def test_doubt_needs_the_second_handler_to_be_left_or_gone(former: str, text: str, expected: str) -> None:
    """U-9, U-12: a first handler does not help a step in doubt."""
    life = past("A B C", "ok hold never")
    life.deploy(former)
    assert lists(life, text) == expected
