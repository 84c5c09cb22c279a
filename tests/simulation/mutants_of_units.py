"""Engines that break a promise about items, turns, child runs, or to a run that waits for others [B-1, B-10, R-13]."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from perdure.core import reconciler, units
from perdure.core.facts import (
    ItemFailed,
    ItemOutputRecorded,
    RunFailed,
)
from perdure.core.plan import RunEnd
from perdure.core.projection import Projection
from perdure.core.topology import StepSpec
from perdure.core.unit import Item, Unit
from perdure.define.items import item_key
from perdure.runtime import awaited, children
from perdure.runtime.host import Host
from perdure.runtime.live import LiveRun
from perdure.storage.memory_awaits import MemoryAwaits
from tests.simulation.mutants import Mutant
from tests.simulation.mutants_at_rest import folds_otherwise, forgets
from tests.simulation.mutants_of_leases import rewritten


def runs_an_item_again(patch: pytest.MonkeyPatch) -> None:
    """What an item has made is forgotten now and then: it is done once more."""

    def forgotten(p: Projection) -> None:
        unit = p.unit()
        first = unit.entries[0] if unit is not None and unit.shape == "each" and unit.entries else None
        if unit is not None and first is not None and first.output is not None and first.attempts < 3:
            unit.outputs -= 1
            first.output = None
            unit.back_off(0, 0)

    folds_otherwise(patch, ItemOutputRecorded, forgotten)


def begins_too_many_items(patch: pytest.MonkeyPatch) -> None:
    rewritten(patch, getattr(units, "_room_for_items"), "(terms.bound or", "1 + (terms.bound or")  # noqa: B009 # private


def begins_items_after_one_failed(patch: pytest.MonkeyPatch) -> None:
    rewritten(patch, getattr(units, "_goes_on"), "(not found.failed or terms.collect)", "True")  # noqa: B009 # private


def skips_a_turn(patch: pytest.MonkeyPatch) -> None:
    def skipped(p: Projection) -> None:
        unit = p.unit()
        if unit is not None and unit.shape == "loop" and not unit.done and len(unit.entries) == 1:
            unit.entries.append(Item(1, unit.entries[0].output))
            unit.items.append(unit.items[-1])

    folds_otherwise(patch, ItemOutputRecorded, skipped)


def calls_turns_for_ever(patch: pytest.MonkeyPatch) -> None:
    def forget(p: Projection) -> None:
        unit = p.unit()
        if unit is not None:
            unit.turns = 0

    folds_otherwise(patch, ItemOutputRecorded, forget)


def gives_items_the_key_of_the_first(patch: pytest.MonkeyPatch) -> None:
    def key(run_id: str, step_id: str, index: int) -> str:
        return item_key(run_id, step_id, 0)

    patch.setattr("perdure.define.items.item_key", key)


def puts_outputs_together_backwards(patch: pytest.MonkeyPatch) -> None:
    original = Unit.state

    def state(self: Unit, *, collect: bool) -> bytes:
        if self.shape == "loop":
            return original(self, collect=collect)
        self.entries.reverse()
        return original(self, collect=collect)

    patch.setattr(Unit, "state", state)


def calls_failed_items_clean(patch: pytest.MonkeyPatch) -> None:
    forgets(patch, ItemFailed, in_doubt=False)


def counts_no_items(patch: pytest.MonkeyPatch) -> None:
    forgets(patch, RunFailed, item_counts=())


def unwinds_forward(patch: pytest.MonkeyPatch) -> None:
    rewritten(
        patch,
        getattr(reconciler, "_unwind"),  # noqa: B009 # private
        "range(view.unwind_frontier - 1, -1, -1)",
        "range(view.unwind_frontier)",
    )


def names_children_by_whoever_claims(patch: pytest.MonkeyPatch) -> None:
    """A child is submitted again, under another name, when its parent is claimed again."""
    rewritten(
        patch,
        getattr(children, "_submit"),  # noqa: B009 # private
        "child_id(unit.opened_us, live.run_id,",
        "child_id(unit.opened_us + (live.token > 1), live.run_id,",
    )


def takes_the_living_for_ended(patch: pytest.MonkeyPatch) -> None:
    original = getattr(awaited, "_end_of")  # noqa: B009 # private

    async def end_of(host: Host, run_id: str) -> RunEnd | None:
        found: RunEnd | None = await original(host, run_id)
        return RunEnd("failed") if found is None else found

    patch.setattr("perdure.runtime.awaited._end_of", end_of)


def wakes_no_waiter(patch: pytest.MonkeyPatch) -> None:
    def ended(self: MemoryAwaits, run_id: str) -> list[str]:
        return []

    patch.setattr(MemoryAwaits, "ended", ended)


def looks_only_before_it_waits(patch: pytest.MonkeyPatch) -> None:
    """Whoever registers what it waits for is not told that it has ended meanwhile."""
    original = MemoryAwaits.put

    def put(self: MemoryAwaits, waiter: str, awaits: Iterable[str], need: int) -> bool:
        original(self, waiter, awaits, need)
        return False

    patch.setattr(MemoryAwaits, "put", put)


def lets_runs_wait_in_a_circle(patch: pytest.MonkeyPatch) -> None:
    def closes(self: MemoryAwaits, run_id: str, awaits: Iterable[str]) -> bool:
        return False

    patch.setattr(MemoryAwaits, "closes_a_circle", closes)


def sees_circles_everywhere(patch: pytest.MonkeyPatch) -> None:
    def closes(self: MemoryAwaits, run_id: str, awaits: Iterable[str]) -> bool:
        return bool(list(awaits))

    patch.setattr(MemoryAwaits, "closes_a_circle", closes)


def goes_on_without_its_children(patch: pytest.MonkeyPatch) -> None:
    def waits(p: Projection, spec: StepSpec) -> bool:
        return False

    patch.setattr(reconciler, "waits_for_children", waits)


def tells_no_child_of_a_cancel(patch: pytest.MonkeyPatch) -> None:
    def cascades(live: LiveRun, p: Projection) -> bool:
        return False

    patch.setattr("perdure.runtime.awaited._cascades", cascades)


OF_UNITS = (
    Mutant("runs an item again", ("B-10", "J-8"), runs_an_item_again),
    Mutant("begins too many items", ("B-10",), begins_too_many_items),
    Mutant("begins items after one failed", ("B-22",), begins_items_after_one_failed),
    Mutant("skips a turn", ("B-10", "B-23"), skips_a_turn),
    Mutant("calls turns for ever", ("B-23",), calls_turns_for_ever),
    Mutant("gives items the key of the first", ("M-3",), gives_items_the_key_of_the_first),
    Mutant("puts outputs together backwards", ("M-13", "M-14", "U-2"), puts_outputs_together_backwards),
    Mutant("calls failed items clean", ("U-9",), calls_failed_items_clean),
    Mutant("counts no items", ("U-12",), counts_no_items),
    Mutant("unwinds forward", ("U-3",), unwinds_forward),
    Mutant("names children by whoever claims", ("B-1", "B-21"), names_children_by_whoever_claims),
    Mutant("takes the living for ended", ("R-13",), takes_the_living_for_ended),
    Mutant("wakes no waiter", ("R-16",), wakes_no_waiter),
    Mutant("looks only before it waits", ("R-16",), looks_only_before_it_waits),
    Mutant("lets runs wait in a circle", ("R-13",), lets_runs_wait_in_a_circle),
    Mutant("sees circles everywhere", ("R-13",), sees_circles_everywhere),
    Mutant("goes on without its children", ("B-21",), goes_on_without_its_children),
    Mutant("tells no child of a cancel", ("B-21",), tells_no_child_of_a_cancel),
)
"""Every one is found within `SEEDS` seeds."""
