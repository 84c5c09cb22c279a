"""D-6: every edit of a pipeline, and what it means for runs at every place."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.check import CheckReport, LedgerRuns, PipelineCheck, check_pipeline
from perdure.core.drain import Drain
from perdure.core.future import Candidate, Reads
from perdure.core.signature import ledger_of
from tests.core.build import Life, topology
from tests.core.pasts import brief, past, stopped
from tests.core.strategies import TOPOLOGIES, lives

Reading = dict[str, Reads]


def check(lives: Sequence[tuple[int, Life]], deployed: str, new: str, reads: Reading | None = None) -> PipelineCheck:
    """Check so many runs at each of these places."""
    runs = [LedgerRuns(ledger_of(life.p), count, f"run-{i}", 100 + i) for i, (count, life) in enumerate(lives)]
    current = topology(deployed)
    return check_pipeline("p", runs, Candidate(current, reads), Candidate(topology(new, current), reads))


# A* and B* can be undone. Places: nothing started, between A and B, B unresolved, B failed and A is unwinding.
PLACES = {
    "new": Life("A* B* C"),
    "between": stopped("A* B* C", 1),
    "at B": past("A* B* C", "ok"),
    "behind B": stopped("A* B* C", 2),
    "at C": past("A* B* C", "ok ok"),
    "unwinding": past("A* B* C", "ok fails"),
    "canceling": past("A* B* C", "ok cancel"),
    "held": past("A* B* C", "ok hold"),
}
NO_CHANGE = "goes on unchanged"
TABLE: list[tuple[str, dict[str, str]]] = [
    ("A* B* C", dict.fromkeys(PLACES, NO_CHANGE)),
    (
        "A* N B* C",
        {
            "new": "will run N as well",
            "between": "will run N as well",
            "at B": "is past N and will never run it",
            "at C": "is past N and will never run it",
            "unwinding": NO_CHANGE,
            "canceling": NO_CHANGE,
            "held": "is past N and will never run it",
        },
    ),
    (
        "A* B* C N",
        {"new": "will run N as well", "at C": "will run N as well", "unwinding": NO_CHANGE, "canceling": NO_CHANGE},
    ),
    (
        "A* C",
        {
            "new": "will not run B any more",
            "between": "will not run B any more",
            "at B": "would become invalid because its unresolved step B is gone: keep it as retired",
            "held": "would become invalid because its unresolved step B is gone: keep it as retired",
            "canceling": "would become invalid because its unresolved step B is gone: keep it as retired",
            "behind B": "could no longer undo B if it fails: keep it in place, with its unwind",
            "unwinding": NO_CHANGE,
        },
    ),
    (
        "A* B*~ C",
        {"new": "will not run B any more", "at B": NO_CHANGE, "behind B": NO_CHANGE, "unwinding": NO_CHANGE},
    ),
    (
        "B* C",
        {
            "new": "will not run A any more",
            "between": "would become invalid because none of the steps behind it is left: keep A as retired",
            "at B": "could no longer undo A if it fails: keep it in place, with its unwind",
            "canceling": "would become invalid because none of the steps behind it is left: keep A as retired",
            "unwinding": "would become invalid because none of the steps behind it is left: keep one of A, B, C as",
        },
    ),
    ("A B* C", {"new": NO_CHANGE, "between": "could no longer undo A if it fails", "unwinding": "no longer undo A"}),
    (
        "B* A* C",
        {
            "new": "will run what is ahead in another order",
            "between": "is past B and will never run it",
            "at B": NO_CHANGE,
            "behind B": NO_CHANGE,
        },
    ),
    ("A* B* C*", {"new": NO_CHANGE, "at C": NO_CHANGE, "unwinding": NO_CHANGE}),
    (
        "A* B*",
        {"behind B": "will not run C any more", "at C": "would become invalid because its unresolved"},
    ),
]
CASES = [(text, place, said) for text, places in TABLE for place, said in places.items()]


@pytest.mark.parametrize(("new", "place", "said"), CASES, ids=[f"{text}: {place}" for text, place, _ in CASES])
def test_what_an_edit_means_for_a_run(new: str, place: str, said: str) -> None:
    """D-6, E-3, E-5, E-7, E-9, U-9."""
    report = check([(1, PLACES[place])], "A* B* C", new)
    assert any(said in sentence for sentence in report.sentences), report.sentences
    assert (report.unchanged == 1) is (said == NO_CHANGE)
    assert (report.invalid == 1) is ("become invalid" in said)
    assert CheckReport((report,)).ok is ("become invalid" not in said)


def test_a_run_that_could_not_even_fail_any_more() -> None:
    """U-6: A is gone, B is unresolved; if B fails for good, nothing says where to unwind from."""
    report = check([(2, past("A B C", "ok"))], "A B C", "B C")
    assert (report.invalid, report.leaking) == (0, 2)
    assert report.sentences[0] == (
        "2 runs would become invalid if they fail before another step is finished, because nothing of what they "
        "finished is left: keep one step of it as retired"
    )
    life = past("A B C", "ok")
    life.deploy("B C")
    life.fails()
    assert brief(life.next) == "invalid no-safe-unwind-frontier"


def test_a_canceled_run_with_nothing_ahead_succeeds_instead() -> None:
    """R-12: a cancel acts on the next operation; take that away, and there is none."""
    life = stopped("A B", 1)
    life.cancel()
    assert check([(3, life)], "A B", "A").sentences == ("3 runs would succeed instead of: end as canceled",)


def test_runs_that_are_invalid_already_are_told_apart() -> None:
    """Only a run that becomes invalid makes a check fail."""
    life = past("A B", "ok")
    stays = check([(2, life)], "A C", "A C D")
    assert (stays.invalid, stays.still_invalid, CheckReport((stays,)).ok) == (0, 2, True)
    assert stays.sentences == ("2 runs are invalid already and stay so, because their unresolved step B is gone: "
                               "keep it as retired",)  # fmt: skip
    mended = check([(2, life)], "A C", "A B~ C")
    assert (mended.mended, mended.sentences) == (2, ("2 runs that are invalid now will go on",))


def test_a_need_that_runs_have_passed() -> None:
    """M-14: predicted before it is deployed, and forgiven with a substitute."""
    lives = [(12, past("A B C", "ok")), (5, Life("A B C"))]
    reads = {"C": Reads(("N",))}
    report = check(lives, "A B C", "A N B C", reads)
    assert (report.invalid, report.missing, report.passing, report.gaining) == (12, 12, 12, 5)
    assert report.sentences[0] == (
        "12 runs would become invalid at C, which needs the state of N, and they have none: give N an if_skipped, or "
        "make the need optional(N)"
    )
    kind = next(kind for kind in report.kinds if kind.effects.breaks)
    assert kind.effects.misses[0].need == "N"
    assert check(lives, "A B C", "A N B C", reads | {"N": Reads(substitute=True)}).invalid == 0


def test_runs_are_counted_by_place_and_effect() -> None:
    """Distinct ledgers that stand at one place with one effect are one line; the oldest run is its example."""
    plain, retried = past("A B C", "ok ok"), past("A N B C", "ok ok ok")
    report = check([(30, plain), (4, retried), (9, Life("A B C"))], "A B C", "A B C D")
    assert [(kind.stand, kind.count, kind.example_run) for kind in report.kinds] == [
        ("C is unresolved", 34, "run-0"),
        ("not started", 9, "run-2"),
    ]
    assert (report.runs, report.ledgers) == (43, 3)
    assert report.sentences == ("43 runs will run D as well",)


def test_a_pipeline_that_is_left_out_or_new() -> None:
    """D-1: an unregistered pipeline makes its runs invalid."""
    runs = [LedgerRuns(ledger_of(Life("A").p), 7, "run")]
    gone = check_pipeline("p", runs, Candidate(topology("A")), None)
    assert (gone.gone, gone.invalid) == (True, 7)
    assert gone.sentences == ("7 runs would become invalid because their pipeline is not in the application: bind it "
                              "as well",)  # fmt: skip
    fresh = check_pipeline("p", [], None, Candidate(topology("A")))
    assert (fresh.known, fresh.sentences, fresh.changes.empty) == (False, ("no live runs",), True)


def test_runs_whose_outcome_is_committed_are_passed_over() -> None:
    """M-12."""
    life = past("A", "ok")
    assert check([(1, life)], "A", "B").runs == 0


# --- drain

RETIRED = "A R*~ B"


def drain(life: Life, deployed: str, new: str, reads: Reading | None = None) -> Drain:
    (found,) = check([(3, life)], deployed, new, reads).drains
    return found


def test_a_retired_step_that_nobody_started_is_drained() -> None:
    """E-9, D-6."""
    assert drain(Life("A R* B"), RETIRED, RETIRED) == Drain("R", True, 0, 0, (), False, 0)


def test_a_retired_step_that_runs_stand_at_is_not() -> None:
    assert drain(past("A R* B", "ok"), RETIRED, RETIRED) == Drain("R", False, 3, 100, (), False, 3)


def test_a_retired_step_that_may_have_to_be_undone_is_not() -> None:
    """U-9: without it the effect could no longer be undone."""
    assert drain(past("A R* B", "ok ok"), RETIRED, RETIRED) == Drain("R", False, 3, 100, (), False, 0)
    assert drain(past("A R B", "ok ok"), "A R~ B", "A R~ B").drained


def test_a_retired_step_that_holds_the_frontier_is_not() -> None:
    """E-4: without R a run that finished it would go back to N."""
    assert not drain(stopped("A R B", 2), "A N R~ B", "A N R~ B").drained
    assert drain(stopped("A R B", 2), "A R~ B", "A R~ B").drained


def test_a_retired_step_that_is_the_only_one_crossed_is_not() -> None:
    """U-6."""
    life = past("A B* C R", "ok ok fails")
    assert drain(life, "A R~", "A R~") == Drain("R", False, 3, 100, (), False, 0)
    assert drain(life, "A B* C R~", "A B* C R~").drained


def test_a_retired_step_that_others_read_or_that_is_not_retired_yet_is_not() -> None:
    """D-6: no live worker may deploy it unretired."""
    assert drain(Life("A R B"), "A R~ B", "A R~ B", {"B": Reads((), ("R",))}).read_by == ("B",)
    fresh = drain(Life("A R B"), "A R B", "A R~ B")
    assert (fresh.fresh, fresh.drained) == (True, False)


@given(st.lists(lives(), max_size=4), st.sampled_from(TOPOLOGIES), st.sampled_from(TOPOLOGIES))
def test_every_live_run_is_counted_once(found: list[Life], deployed: str, new: str) -> None:
    """D-6: kinds add up; deploying what is deployed makes nobody invalid and changes nothing."""
    live = [life for life in found if life.p.ended is None]
    report = check([(n + 1, life) for n, life in enumerate(found)], deployed, new)
    assert report.runs == sum(kind.count for kind in report.kinds)
    assert len(live) == report.ledgers
    assert (report.invalid == 0) is CheckReport((report,)).ok
    assert max(report.invalid, report.unchanged, report.gaining, report.leaking) <= report.runs
    again = check([(1, life) for life in live], deployed, deployed)
    assert again.unchanged + again.still_invalid == len(live)
    assert not again.invalid
