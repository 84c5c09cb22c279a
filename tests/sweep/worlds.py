"""Every small world: the ledgers a run can reach, and every topology that can be deployed after.

`reachable` explores, breadth first, all that can happen to a run of a few steps, redeployments between any two events
included, and keeps one shortest history per distinct ledger. Attempts count only as none or some: the space is finite.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from tests.sweep.oracle import Forward, Known, Unwound, decide_known, is_legal, learn
from tests.sweep.vocabulary import (
    FORWARD_ENDS,
    RESOLUTIONS,
    UNWIND_ENDS,
    CancelAt,
    Event,
    GoOn,
    Happened,
    Output,
    Run,
    Shape,
    Step,
    Topology,
    Unwind,
    What,
    World,
)

Flags: TypeAlias = tuple[bool, bool, bool, Shape]  # unwind, in doubt, retired, and what it is


def _flags(*choices: tuple[bool, bool, bool], shapes: tuple[Shape, ...] = ("handler",)) -> tuple[Flags, ...]:
    return tuple((*chosen, shape) for shape in shapes for chosen in choices)


UNWIND_FLAGS = _flags((False, False, False), (True, False, False), (True, True, False))
RETIRED_FLAGS = _flags((False, False, False), (False, False, True))
ALL_FLAGS = _flags(*((u, d, r) for u, d, *_ in UNWIND_FLAGS for r in (False, True)))
# A step that never does anything in a world: inserted, removed and moved, passed and crossed, but never run.
FOREIGN_FLAGS = _flags((False, False, False), (True, False, False), (False, False, True))
SHAPES: tuple[Shape, ...] = ("handler", "wait", "unit")
# With shapes; whether a step is retired matters forward, and how it unwinds backward.
SHAPED_FLAGS = _flags(
    (False, False, False), (True, False, False), (True, True, False), (False, False, True), shapes=SHAPES
)

Events: TypeAlias = tuple[Event, ...]


@dataclass(frozen=True, slots=True)
class StepLedger:
    """What the ledger says about one step. `attempted`: a forward attempt was reserved."""

    forward: Forward | None = None
    attempted: bool = False
    in_doubt: bool = False
    passed: bool = False
    crossed: bool = False
    unwind: Unwound | None = None
    shape: Shape = "handler"


@dataclass(frozen=True, slots=True)
class CanonicalLedger:
    """A ledger without attempt numbers and times, and what every generation so far declared [U-9].

    `history` is one shortest way to get there; it takes no part in comparison. `ever_unwind` and `ever_in_doubt` may
    hold more than the history declares: other generations were deployed while nothing happened.
    """

    steps: tuple[tuple[str, StepLedger], ...]
    last_unwind: str | None
    failed_at: str | None
    canceled: bool
    cancel_requested: bool
    ever_unwind: frozenset[str]
    ever_in_doubt: frozenset[str]
    history: World = field(default=(), compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Recorded:
    """One event of a history as facts need it: the step's last attempt in the phase, the ids newly passed, crossed."""

    event: Event
    topology: Topology
    attempt: int
    passed: frozenset[str]
    crossed: frozenset[str]


def recorded(history: World) -> Iterator[Recorded]:
    """The events of a history with what each of them records [E-7, U-4]."""
    known = Known()
    for happened in history:
        passed, crossed = frozenset(known.passed), frozenset(known.crossed)
        unwinding = known.failed_at is not None
        learn(known, happened)
        attempts = known.unwind_attempts if unwinding else known.attempts
        yield Recorded(
            happened.event,
            happened.topology,
            attempts.get(happened.event.step, 0),
            frozenset(known.passed) - passed,
            frozenset(known.crossed) - crossed,
        )


def canonical(known: Known, history: World) -> CanonicalLedger:
    """The ledger of what is known, steps in order of their ids."""
    ids = sorted(known.forward.keys() | known.passed | known.crossed)
    return CanonicalLedger(
        steps=tuple((step, _step_ledger(known, step)) for step in ids),
        last_unwind=known.last_unwind,
        failed_at=known.failed_at,
        canceled=known.canceled,
        cancel_requested=known.cancel_requested,
        ever_unwind=frozenset(known.ever_unwind),
        ever_in_doubt=frozenset(known.ever_in_doubt),
        history=history,
    )


def _step_ledger(known: Known, step: str) -> StepLedger:
    return StepLedger(
        known.forward.get(step),
        step in known.attempts,
        step in known.in_doubt,
        step in known.passed,
        step in known.crossed,
        known.unwind.get(step),
        known.shapes.get(step, "handler"),
    )


def topologies(*choices: tuple[str, tuple[Flags, ...]]) -> list[Topology]:
    """Every subset in every order, each step with every combination of its flags. The empty topology is one."""
    found: list[Topology] = []
    for size in range(len(choices) + 1):
        for order in itertools.permutations(choices, size):
            for flags in itertools.product(*(allowed for _, allowed in order)):
                found.append(tuple(Step(name, *chosen) for (name, _), chosen in zip(order, flags, strict=True)))
    return found


def as_the_rules_see(topology: Topology, *, unwinding: bool) -> Topology:
    """The topology without the flags that no rule of the phase looks at.

    Whether a step is retired, and what shape it has, is nothing to an unwind [U-2, U-3], and whether it can be unwound
    nothing to forward work [E-4 to E-9].
    """
    if unwinding:
        return tuple(Step(s.id, s.unwind, s.in_doubt) for s in topology)
    return tuple(Step(s.id, retired=s.retired, shape=s.shape) for s in topology)


# What can happen --------------------------------------------------------------------------------------------------

# An attempt that ends without changing the ledger (raised, lost) leads nowhere new and is left out here.
FORWARD_NEWS = (What.RETURNED, What.FAILED, What.GAVE_UP)
UNWIND_NEWS = (What.UNWIND_RETURNED, What.UNWIND_FAILED)


def events_at_rest(known: Known, topology: Topology) -> Events:
    """What can happen next while no attempt runs, the deployment of another topology aside."""
    decision = decide_known(known, topology)
    match decision:
        case Run(step, attempt):
            asked = (What.SKIPPED,) if attempt == 1 else ()
            opens = any(s.id == step and s.shape != "handler" for s in topology)
            starts = What.OPENED if opens else What.RESERVED
            return tuple(Event(what, step) for what in (starts, *asked, *sorted_resolutions()))
        case GoOn(step):
            ends = (What.RETURNED, What.GAVE_UP) if known.shapes[step] == "wait" else ()
            begins = (What.BEGUN,) if known.shapes[step] == "unit" and step not in known.attempts else ()
            return tuple(Event(what, step) for what in (*ends, *begins, *sorted_resolutions()))
        case Unwind(step, _, _):
            return tuple(Event(what, step) for what in (What.UNWIND_RESERVED, *sorted_resolutions()))
        case CancelAt(step):
            return (Event(What.CANCEL_ACTED, step),)
        case Output():
            return (Event(What.OUTPUT_RETURNED), Event(What.OUTPUT_RAISED))
        case _:
            return ()


def sorted_resolutions() -> tuple[What, ...]:
    return tuple(sorted(RESOLUTIONS, key=lambda what: what.value))


def _events(known: Known, topology: Topology) -> Iterator[Event]:
    """All events that may lead to another ledger. An unresolved attempt may still be running, so it may end."""
    if not known.cancel_requested:
        yield Event(What.CANCEL_REQUESTED)
    for event in events_at_rest(known, topology):
        if event.what not in (What.OUTPUT_RETURNED, What.OUTPUT_RAISED):
            yield event
    if known.failed_at is None:
        for step, state in known.forward.items():
            if state == "unresolved":
                news = (Event(what, step) for what in FORWARD_NEWS)
                yield from (event for event in news if step not in known.shapes or is_legal(known, topology, event))
    elif known.last_unwind is not None and known.unwind[known.last_unwind] == "unresolved":
        yield from (Event(what, known.last_unwind) for what in UNWIND_NEWS)


# Reachable ledgers ------------------------------------------------------------------------------------------------

Key: TypeAlias = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Reached:
    known: Known
    history: World


@functools.cache
def reachable(acting: str, foreign: str = "", *, fine: bool, shaped: bool = False) -> list[Reached]:
    """One shortest history per distinct ledger, up to renaming of the `acting` steps.

    `fine` tells ledgers of failed runs apart that differ only in what was passed and in a pending cancel, neither of
    which may change an unwind. Between events any topology may be deployed; of its flags only those that can matter
    in the phase are varied here (retired forward, unwind backward), for they decide what happens and are not kept.
    `shaped`: the steps may be waits and units, and another thing in each deployment.
    """
    ids = acting + foreign
    flags = SHAPED_FLAGS if shaped else RETIRED_FLAGS
    forward = topologies(*((i, tuple(f for f in flags if not f[0])) for i in ids))
    backward = topologies(*((i, UNWIND_FLAGS) for i in acting), *((i, RETIRED_FLAGS[:1]) for i in foreign))
    renamings = [dict(zip(acting, names, strict=True)) for names in itertools.permutations(acting)]
    start = Reached(Known(), ())
    found = [start]
    seen, forms = {(*_key(start.known, ids, fine), "")}, {(*_form(start.known, ids, fine, renamings), "")}
    for here in found:  # grows while we walk
        for topology in forward if here.known.failed_at is None else backward:
            for event in _events(here.known, topology):
                if event.step and event.step not in acting:
                    continue
                known, happened = _happen(here.known, event, topology)
                end = event.what.value if event.step in known.shapes else ""  # each end of a wait or a unit, once
                key = (*_key(known, ids, fine), end)
                if key in seen:
                    continue
                seen.add(key)
                form = (*_form(known, ids, fine, renamings), end)
                if form not in forms:
                    forms.add(form)
                    found.append(Reached(known, (*here.history, *happened)))
    return found


def _happen(before: Known, event: Event, topology: Topology) -> tuple[Known, World]:
    """What is known after `event`. An attempt that still runs is lost first where the event needs a run at rest."""
    known = before.copy()
    happened: World = (Happened(event, topology),)
    at_rest = event.what not in FORWARD_ENDS | UNWIND_ENDS | RESOLUTIONS | {What.CANCEL_REQUESTED}
    if at_rest and known.running is not None:
        lost = What.LOST if known.failed_at is None else What.UNWIND_LOST
        happened = (Happened(Event(lost, known.running), topology), *happened)
    for one in happened:
        learn(known, one)
    return known, happened


def _key(known: Known, ids: str, fine: bool) -> Key:
    return _renamed(known, ids, fine, {})


def _form(known: Known, ids: str, fine: bool, renamings: list[dict[str, str]]) -> Key:
    """The same for all ledgers that differ only in the names of their steps."""
    return min((_renamed(known, ids, fine, renaming) for renaming in renamings), key=repr)


def _renamed(known: Known, ids: str, fine: bool, names: dict[str, str]) -> Key:
    """The ledger of `known` when its steps are renamed by `names` (those not in it keep theirs)."""
    forward_only = fine or known.failed_at is None
    back = {names.get(step, step): step for step in ids}
    rows = tuple(
        (
            known.forward.get(step, ""),
            step in known.attempts,
            step in known.in_doubt,
            forward_only and step in known.passed,
            step in known.crossed,
            known.unwind.get(step, ""),
            *((known.shapes[step],) if step in known.shapes else ()),
        )
        for step in (back[i] for i in ids)
    )
    last = "" if known.last_unwind is None else names.get(known.last_unwind, known.last_unwind)
    failed = "" if known.failed_at is None else names.get(known.failed_at, known.failed_at)
    return (rows, last, failed, known.canceled, forward_only and known.cancel_requested)


# What other generations may have declared -------------------------------------------------------------------------


def least_declared(known: Known) -> tuple[frozenset[str], frozenset[str]]:
    """The steps some generation must have declared to unwind, and in doubt, for this ledger to exist."""
    unwound = frozenset(known.unwind)
    return unwound, frozenset(step for step in unwound if step in known.in_doubt)


def open_steps(known: Known, topology: Topology) -> tuple[str, ...]:
    """The steps whose place in the lists of U-9 hangs on what earlier generations declared.

    They had their effect or are in doubt, and do not declare unwind in `topology`.
    """
    now = {s.id for s in topology if s.unwind}
    return tuple(s for s, f in known.forward.items() if s not in now and (f == "succeeded" or s in known.in_doubt))


def declared_before(known: Known, open_: tuple[str, ...], ids: str) -> Iterator[Known]:
    """`known` with every choice of what the generations so far declared about the open steps.

    Nothing, unwind, or of a step in doubt unwind in doubt as well. All other `ids` count as declared in every way,
    which must change nothing.
    """
    least_unwind, least_doubt = least_declared(known)
    others = set(ids).difference(open_)
    levels = [(0, 1, 2) if s in known.in_doubt else (0, 2) for s in open_]
    for chosen in itertools.product(*levels):
        unwind = others | {s for s, level in zip(open_, chosen, strict=True) if level >= 1}
        doubt = others | {s for s, level in zip(open_, chosen, strict=True) if level == 2}
        if least_unwind <= unwind and least_doubt <= doubt:
            copy = known.copy()
            copy.ever_unwind, copy.ever_in_doubt = unwind, doubt
            yield copy
