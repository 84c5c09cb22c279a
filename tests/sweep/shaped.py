"""The facts of waits and units, planned by the core: a wait for a message, and a unit of one item."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import TypeAlias

from msgspec import Raw

from perdure.core import outcomes
from perdure.core import plan as planning
from perdure.core.facts import (
    Fact,
    Failure,
    ItemRetryScheduled,
    MessageReceived,
    SegmentAttemptStarted,
    Shape,
)
from perdure.core.operations import UnitOp
from perdure.core.projection import Projection
from perdure.core.topology import Topology
from tests.sweep import vocabulary as rules
from tests.sweep.vocabulary import What
from tests.sweep.worlds import Recorded

SHAPES: Mapping[rules.Shape, Shape] = {"handler": "handler", "wait": "message", "unit": "each"}

LASTS_US = 1_000_000_000
MESSAGE = "go"
_ENDS = (What.RETURNED, What.FAILED, What.GAVE_UP, What.LOST)


class ShapedAuthor:
    """The part of an `Evaluator` that waits and units ask."""

    def opening(self, step: str, /) -> planning.Opening:
        """One item, one message."""
        return planning.Opening(LASTS_US, awaits=(MESSAGE,), items=(b"0",))

    def terms(self, step: str, /) -> planning.Terms:
        """As many as there are."""
        return planning.Terms()

    def timeout_state(self, step: str, /) -> bytes | None:
        """A wait that takes too long fails."""
        return None

    def message_state(self, step: str, payload: bytes, /) -> bytes:
        """What came."""
        return payload


Setting: TypeAlias = Callable[[int, bool], planning.Setting]


def is_shaped(p: Projection, row: Recorded) -> bool:
    """Whether an event is about a wait or a unit, beyond what happens to any step."""
    what, entry = row.event.what, p.forward.get(row.event.step)
    open_ = entry is not None and entry.shape != "handler" and entry.status == "unresolved"
    return what is What.OPENED or what is What.BEGUN or (open_ and what in _ENDS)


@dataclass(frozen=True, slots=True)
class Shaped:
    """How the core under test plans such facts; a `setting` is made for a time, and whether anything may start."""

    plan_claim: Callable[[Projection, Topology, SegmentAttemptStarted, planning.Setting], planning.Plan]
    plan_items: Callable[..., planning.Plan]
    fold: Callable[[Projection, Fact, int], None]

    @classmethod
    def of(cls, modules: Mapping[str, ModuleType]) -> Shaped:
        """The functions of these modules."""
        commit, reducer = modules["perdure.core.commit"], modules["perdure.core.reducer"]
        return cls(commit.plan_claim, commit.plan_items, reducer.fold)

    def facts(self, p: Projection, here: Topology, row: Recorded, now_us: int, setting: Setting) -> list[Fact]:
        """The facts of an event that `is_shaped`; `p` is a copy to plan on."""
        what, step = row.event.what, row.event.step
        claim = SegmentAttemptStarted(p.token + 1, "sweep", 1)
        if what is What.OPENED or what is What.BEGUN:
            return self.plan_claim(p, here, claim, setting(now_us, True)).facts[:2]
        entry = p.forward[step]
        if entry.shape == "each":
            return self._item_ends(p, here, row, setting(now_us, True))
        if what is What.GAVE_UP:
            return self.plan_claim(p, here, claim, setting(entry.until_us, True)).facts[:2]
        message = MessageReceived(MESSAGE, Raw(b"1"), "", "sweep")
        self.fold(p, message, now_us)
        return [message, *self.plan_claim(p, here, claim, setting(now_us, True)).facts[:3]]

    def _item_ends(self, p: Projection, here: Topology, row: Recorded, setting: planning.Setting) -> list[Fact]:
        what, step = row.event.what, row.event.step
        if what is What.LOST:
            return [ItemRetryScheduled(step, 0, row.attempt, "interrupted", 0)]
        failure = Failure(step, "happened", item=0)
        ends: dict[What, outcomes.Outcome] = {
            What.RETURNED: outcomes.Returned(b"1"),
            What.FAILED: outcomes.Declined(failure),
            What.GAVE_UP: outcomes.Raised(failure, never=True),
        }
        op = UnitOp(step, here.position.get(step, -1), "each", True, ((0, row.attempt),))
        ended = [outcomes.ItemOutcome(0, row.attempt, ends[what])]
        return self.plan_items(p, here, op, ended, setting, running=False).facts[:2]
