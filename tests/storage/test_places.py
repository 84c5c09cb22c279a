"""The order in which due runs are claimed where pipelines and tenants take turns [R-1]: bounds, whoever else is due."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.ports.places import Candidate, Tenancy, share_served

LIMITS = st.lists(st.sampled_from((1, 2, 4, 7, 8, 16, 64)), min_size=1, max_size=3)


def crowd(begun: bool, counts: dict[Tenancy, int], *, since_us: int = 0, priority: int = 0) -> list[Candidate]:
    """So many due runs of each tenant of a pipeline, one tenant after the other: the first are due longest."""
    found: list[Candidate] = []
    for (pipeline, tenant), count in counts.items():
        for n in range(count):
            due_us = since_us + len(found)
            run_id = f"{pipeline}/{tenant}/{begun}/{priority}/{n}"
            found.append(Candidate((due_us, due_us, run_id), pipeline, tenant, priority, begun))
    return found


def places_of(
    waiting: list[Candidate], limits: list[int], until: Callable[[set[str]], bool], most: int
) -> dict[str, int]:
    """Which place every run gets from one worker that picks again and again, `limits` at a time in turn."""
    left = {run.due[2]: run for run in waiting}
    given_: dict[str, int] = {}
    serving = {run.pipeline: 1 for run in waiting}
    last, calls = ("", ""), 0
    while left and not until(set(given_)) and len(given_) < most:
        found = list(left.values())
        shared = share_served(found, found, serving, last, limits[calls % len(limits)], len(given_))
        last, calls = shared.last(last), calls + 1
        for run_id in shared.run_ids:
            given_[run_id] = len(given_)
            del left[run_id]
    return given_


@given(st.integers(1, 9), st.booleans(), st.booleans(), LIMITS, st.lists(st.integers(0, 4), min_size=2, max_size=2))
@settings(max_examples=60, deadline=None)
def test_every_pipeline_has_its_turn(small: int, begun: bool, both: bool, limits: list[int], others: list[int]) -> None:
    """R-1: the first run of each of P pipelines served has one of the first 3 P + 16 places, of new ones 8 P + 16,
    whatever one of them has due, and longer, of the same class and of the other; and whoever has nothing left."""
    counts = {
        **{("big", f"t{n:02}"): 8 for n in range(50)},
        **{(f"p{n}", "t"): 1 + others[n % 2] for n in range(small)},
    }
    waiting = crowd(begun, counts)
    if both:
        waiting += crowd(not begun, {("big", "t"): 400})
    firsts = {f"p{n}/t/{begun}/0/0" for n in range(small)}
    got = places_of(waiting, limits, lambda given_: firsts <= given_, 300)
    bound = (3 if begun else 8) * (small + 1) + 16
    assert max(got[run_id] for run_id in firsts) < bound


@given(st.integers(1, 12), LIMITS, st.booleans())
@settings(max_examples=60, deadline=None)
def test_every_tenant_has_its_turn(tenants: int, limits: list[int], urgent: bool) -> None:
    """R-1: the run of each of T tenants that is due longest has one of the first 4 T + 16 places, whatever another has
    due, and longer, and more urgent."""
    loud = crowd(True, {("p", "loud"): 500}, priority=9 if urgent else 0)
    waiting = loud + crowd(False, {("p", f"t{n:02}"): 2 for n in range(tenants)}, since_us=1_000)
    firsts = {f"p/t{n:02}/False/0/0" for n in range(tenants)}
    got = places_of(waiting, limits, lambda given_: firsts <= given_, 400)
    assert max(got[run_id] for run_id in firsts) < 4 * (tenants + 1) + 16


def test_nine_thousand_of_one_pipeline_do_not_stand_in_the_way() -> None:
    """R-1: 9,000 due runs of one pipeline and 1,000 of nine others: these are through when a sixth of the places are
    given, which is what pipelines in turn and the places by age come to."""
    counts = {("p0", "t"): 9_000, **{(f"p{n}", "t"): 111 for n in range(1, 10)}}
    kinds: dict[str, list[Candidate]] = {}
    for run in crowd(False, counts):
        kinds.setdefault(run.pipeline, []).append(run)
    serving = dict.fromkeys(kinds, 1)
    last, place, small = ("", ""), 0, 0
    while any(kinds.values()) and place < 3_000:
        found = [run for runs in kinds.values() for run in runs[:72]]  # as a store does: who may get a place
        shared = share_served(found, found, serving, last, 64, place)
        last = shared.last(last)
        for at, run_id in enumerate(shared.run_ids, place):
            if not run_id.startswith("p0"):
                small = at
        taken = set(shared.run_ids)
        kinds = {name: [run for run in runs if run.due[2] not in taken] for name, runs in kinds.items()}
        place += len(taken)
    assert small < 10_000 / 6


@given(st.integers(0, 40), st.integers(1, 40), st.integers(0, 3), st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_what_is_asked_for_at_once_is_what_is_asked_for_in_parts(turn: int, limit: int, begun: int, new: int) -> None:
    """A longer answer begins with the shorter one: a store may look for more than it needs."""
    waiting = crowd(True, {("a", "t"): 5 * begun, ("b", "u"): begun, ("c", "v"): 3 * begun})
    waiting += crowd(False, {("b", "t"): 4 * new, ("c", "v"): new}, priority=2)
    serving = {"a": 1, "b": 1, "c": 1}
    long = share_served(waiting, waiting, serving, ("b", "t"), 60, turn).run_ids
    assert share_served(waiting, waiting, serving, ("b", "t"), limit, turn).run_ids == long[:limit]
    assert sorted(long) == sorted(run.due[2] for run in waiting)
