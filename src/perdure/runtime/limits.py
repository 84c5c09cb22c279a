"""Places under limits: what a run has to have before its next operation starts, and who waits in this process [R-11].

A limit of the store travels with the append that reserves: the store takes the places in the same transaction, or
answers that there is none, and the run is planned anew without that operation. A limit of the worker is counted here,
and no store is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from perdure.core.operations import UnitOp
from perdure.core.permits import Limited, Permit
from perdure.core.plan import RUN, Plan, Unplannable
from perdure.define.limit import AnyLimit, KeyTrouble, key_of
from perdure.ports.store import Append

if TYPE_CHECKING:
    from perdure.runtime.host import Host
    from perdure.runtime.line import Line
    from perdure.runtime.live import LiveRun

Place: TypeAlias = tuple[str, str]
"""A limit's id, and a key."""

LOOK_AGAIN_US = 10_000_000
"""When a run that waits for a place in this process is due for every worker: another one may have a place for it."""

A_WAITER_US = 50_000
"""The longer the line, the later: those that look in vain are to be few."""


def permits_of(live: LiveRun, step: str) -> tuple[Permit, ...]:
    """The places that a step needs, or the run itself, in the order in which they are taken.

    Raises:
        Unplannable: the function of a key raised, or made nothing of use.
    """
    return tuple([limit.permit(_key_of(live, limit)) for limit in live.line.limits.get(step, ())])


def _key_of(live: LiveRun, limit: AnyLimit) -> str:
    if limit.key is None:
        return ""
    if limit.id not in live.keys:
        codec, data = live.line.pipeline.input_codec, live.submitted.input
        try:
            live.keys[limit.id] = key_of(limit, lambda: codec.decode(data))
        except KeyTrouble as trouble:
            raise Unplannable("limit-key-raised", str(trouble)) from trouble.__cause__
    return live.keys[limit.id]


def gate(live: LiveRun, step: str) -> Limited | None:
    """The first place of those that a step needs which is known not to be free; see `core.plan.Evaluator.gate`."""
    permits = _before(live, step) + permits_of(live, step)
    for permit in permits:
        if permit.shared:
            if (permit.limit, permit.key) == live.shut:
                return Limited(permit, needs=_shared(permits))
        elif (shut := live.host.places.shut(permit, live.run_id)) is not None:
            return shut
    return None


def _before(live: LiveRun, step: str) -> tuple[Permit, ...]:
    """The places of the run itself, which come before those of its first step."""
    begins = step != RUN and not live.token and live.p.token <= 1
    return _of_run(live) if begins else ()


def _of_run(live: LiveRun) -> tuple[Permit, ...]:
    """The places of a run that begins: one that was canceled before is never in flight [R-12]."""
    return permits_of(live, RUN) if live.p.cancel is None else ()


def _shared(permits: Iterable[Permit]) -> tuple[Permit, ...]:
    return tuple([permit for permit in permits if permit.shared])


def reserve(
    host: Host, live: LiveRun, plan: Plan, append: Append, *, begins: bool = False, claims: bool = False
) -> None:
    """Take the places that a plan needs: of the worker now, of the store with the append. Call it in the same turn of
    the loop in which the plan was made, so that nobody comes between.

    Args:
        begins: the append is the run's first claim.
        claims: it is a claim, of a run that may have places from before.
    """
    following = plan.next
    if following is None and not begins:
        return
    if isinstance(following, UnitOp) and following.step == live.at and not (begins or claims):
        return  # more items of the operation that goes on
    needed = _of_run(live) if begins else ()
    if following is not None:
        needed += permits_of(live, following.step)
    live.at = "" if following is None else following.step
    host.places.hold(live.run_id, [permit for permit in needed if not permit.shared])
    shared = _shared(needed)
    if claims or shared != live.held or any(permit.kind == "rate" for permit in shared):
        append.permits = shared


def reserved(host: Host, live: LiveRun, append: Append) -> None:
    """The append is durable; whoever got what it freed is due."""
    if append.permits is not None:
        held = tuple([permit for permit in append.permits if permit.kind == "concurrency"])
        if host.crowded and live.held and live.held != held:
            host.freed()
        live.held = held
    live.shut = None


def rested(host: Host, live: LiveRun, plan: Plan) -> None:
    """The run rests, and that is durable: if for want of a place in this process, it stands in line for it."""
    if isinstance(plan.rest, Limited):
        if plan.rest.permit.shared:
            host.crowded = True
            host.freed()  # it may have got its place by now, or a turn
        else:
            host.places.wait(plan.rest.permit, live.run_id)


def bounds_of(lines: Iterable[Line]) -> Mapping[str, int]:
    """How large the limits of the store are that these pipelines name."""
    named = [limit for line in lines for limits in line.limits.values() for limit in limits]
    return {limit.id: limit.bound for limit in named if limit.scope == "store"}


class Places:
    """Places under limits of this worker: who has them, and who stands in line, first come, first served.

    Whoever frees one gives it to the run that has waited longest, which has it from then on, and is claimed next.

    Args:
        now_us: the time.

    Attributes:
        granted: told of a run that has got a place.
    """

    def __init__(self, now_us: Callable[[], int]) -> None:
        self._now_us = now_us
        self.granted: Callable[[str], None] = lambda _run_id: None
        self._holders: dict[Place, dict[str, None]] = {}
        self._bounds: dict[Place, int] = {}
        self._lines: dict[Place, dict[str, None]] = {}
        self._next_us: dict[Place, int] = {}
        self._turns: dict[Place, dict[str, int]] = {}
        self._of: dict[str, set[Place]] = {}

    def shut(self, permit: Permit, run_id: str) -> Limited | None:
        """Whether there is no place for a run now; of a rate it has a turn of its own from then on."""
        place, now_us = (permit.limit, permit.key), self._now_us()
        if permit.kind == "rate":
            turn_us = self._turn_us(place, permit, run_id, now_us)
            return None if turn_us <= now_us else Limited(permit, turn_us)
        self._bounds[place] = permit.bound
        holders = self._holders.get(place, {})
        if run_id in holders or len(holders) < permit.bound:
            return None
        wait_us = max(LOOK_AGAIN_US, A_WAITER_US * len(self._lines.get(place, ())))
        return Limited(permit, now_us + wait_us)

    def _turn_us(self, place: Place, permit: Permit, run_id: str, now_us: int) -> int:
        turns = self._turns.setdefault(place, {})
        if run_id not in turns:
            turns[run_id] = max(now_us, self._next_us.get(place, 0))
            self._next_us[place] = turns[run_id] + permit.bound
        return turns[run_id]

    def hold(self, run_id: str, permits: Sequence[Permit]) -> None:
        """From now on a run has these places and no others; a turn of a rate is used up."""
        wanted: set[Place] = set()
        for permit in permits:
            place = permit.limit, permit.key
            if permit.kind == "rate":
                self._turns.get(place, {}).pop(run_id, None)
            else:
                wanted.add(place)
                self._bounds[place] = permit.bound
        had = self._of.get(run_id, set())
        for place in sorted(wanted - had):
            self._give(place, run_id)
        self._free(run_id, had - wanted)

    def wait(self, permit: Permit, run_id: str) -> None:
        """A run stands in line, or keeps its place in it; if there is a place by now, it has got it."""
        if permit.kind == "rate":
            return  # it is due when its turn comes
        place = permit.limit, permit.key
        self._lines.setdefault(place, {}).setdefault(run_id)
        self._pass_on(place)

    def leave(self, run_id: str) -> None:
        """A run rests, or is not ours any more: its places are free."""
        if run_id in self._of:
            self._free(run_id, set(self._of[run_id]))

    def forget(self, run_id: str) -> None:
        """A run that got a place cannot be claimed here: neither does it stand in any line."""
        for line in self._lines.values():
            line.pop(run_id, None)
        for turns in self._turns.values():
            turns.pop(run_id, None)
        self.leave(run_id)

    def _give(self, place: Place, run_id: str) -> None:
        self._holders.setdefault(place, {})[run_id] = None
        self._of.setdefault(run_id, set()).add(place)
        if place in self._lines:
            self._lines[place].pop(run_id, None)

    def _free(self, run_id: str, places: Iterable[Place]) -> None:
        for place in sorted(places):
            del self._holders[place][run_id]
            self._of[run_id].discard(place)
            if not self._of[run_id]:
                del self._of[run_id]
            self._pass_on(place)

    def _pass_on(self, place: Place) -> None:
        """As many as there are places, and no more, of those that have waited longest."""
        line, holders = self._lines.get(place, {}), self._holders.setdefault(place, {})
        while line and len(holders) < self._bounds.get(place, 1):
            run_id = next(iter(line))
            self._give(place, run_id)
            self.granted(run_id)
        if not line:
            self._lines.pop(place, None)
        if not holders:
            del self._holders[place]
