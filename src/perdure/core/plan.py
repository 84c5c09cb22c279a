"""What planning is told, and what it answers: facts to append, and what follows [J-15]."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol, TypeAlias

import msgspec

from perdure.core.facts import EndStatus, Fact, Failure, RunFailed
from perdure.core.operations import EndedOp, HeldOp, InvalidOp, InvalidReason, RunOp, UnitOp, UnwindOp
from perdure.core.permits import Limited
from perdure.core.projection import Projection
from perdure.core.reducer import fold
from perdure.core.retry import Retry
from perdure.errors import PerdureError

ENGINE_ACTOR = "perdure"
"""The actor of facts that the engine itself decides on [M-16]."""


class Unplannable(PerdureError):
    """A condition or an output function raised, or a payload does not decode: the run is invalid [D-1, E-12, M-13]."""

    def __init__(self, reason: InvalidReason, detail: str) -> None:
        super().__init__(detail)
        self.reason: InvalidReason = reason
        self.detail = detail


class NotOwner(PerdureError):
    """The newest claim in the projection is another worker's: the planner plans nothing, drop the run [J-7]."""


class Opening(msgspec.Struct, frozen=True, gc=False):
    """What a wait or a unit is about, fixed when it opens [B-20].

    Attributes:
        lasts_us: how long a sleep takes, or another wait may take; 0: for ever.
        awaits: the name of the message, or ids of runs.
        need: how many of the runs have to end.
        items: encoded.
        pipeline: of child runs.
    """

    lasts_us: int = 0
    awaits: tuple[str, ...] = ()
    need: int = 0
    items: tuple[bytes, ...] = ()
    pipeline: str = ""


class Terms(msgspec.Struct, frozen=True, gc=False):
    """How a wait or a unit is carried on.

    Attributes:
        bound: how many items or child runs at once; 0: all.
        collect: failed items are part of the state, and fail nothing [B-22].
        most: how many turns before the run is held; 0: any number [B-23].
    """

    bound: int = 0
    collect: bool = False
    most: int = 0


class RunEnd(msgspec.Struct, frozen=True, gc=False):
    """How a run ended that another one waits for.

    Attributes:
        output: encoded, where it succeeded.
        in_doubt: it failed, and left effects behind [U-9].
    """

    status: EndStatus
    output: bytes = b"null"
    failure: Failure | None = None
    in_doubt: bool = False


class Evaluator(Protocol):
    """The author's pure functions of one run, called while planning. All raise `Unplannable` and nothing else."""

    def condition(self, step: str, /) -> bool:
        """Whether the step's condition holds."""
        ...

    def opening(self, step: str, /) -> Opening:
        """What a wait or a unit that opens now is about [B-20]."""
        ...

    def terms(self, step: str, /) -> Terms:
        """How the waits and units of a step are carried on; as deployed now."""
        ...

    def timeout_state(self, step: str, /) -> bytes | None:
        """The encoded state of a wait that has lasted too long; None: it fails [B-8]."""
        ...

    def message_state(self, step: str, payload: bytes, /) -> bytes:
        """The encoded state that a message makes [B-4]."""
        ...

    def output(self) -> bytes:
        """The encoded output."""
        ...

    def failure_output(self, ended: RunFailed, /) -> bytes:
        """The encoded failure output."""
        ...


RUN = ""
"""Stands for the run itself, where a step is named; no step is called so."""


class Setting(msgspec.Struct, frozen=True, gc=False):
    """What planning is told of the world.

    Attributes:
        now_us: time of the append.
        may_start: False while draining: no attempt is reserved [R-6].
        chance: a number in [0, 1) for the jitter of a backoff.
        policy: the retry policy in force for a step.
        token: fencing token of the planning owner; 0 before its claim [J-7].
        ends: of the runs that this one waits for, by id; those that have not ended are not there [R-13].
        cycle: the wait that was planned before was refused: these runs would wait for each other [R-13].
        told: a cancel was handed on to the runs that this one waits for, if it is to be [B-21].
        gate: the limit of a step that is known to have no place for it now, `RUN`: for the run itself; raises
            `Unplannable`. None where nothing names a limit [R-11].
        hands_over: workers of a newer generation are there: a run that is owned already rests before its next attempt,
            so that one of them can have it; one that is claimed now is begun, for they had their chance [D-4].
    """

    now_us: int
    may_start: bool
    chance: float
    policy: Callable[[str], Retry]
    evaluator: Evaluator
    token: int = 0
    ends: Mapping[str, RunEnd] = {}
    cycle: bool = False
    told: bool = False
    gate: Callable[[str], Limited | None] | None = None
    hands_over: bool = False


class Waiting(msgspec.Struct, frozen=True, gc=False):
    """Nothing before `due_us`: a delayed start or a backoff [R-4]."""

    due_us: int


class Closed(msgspec.Struct, frozen=True, gc=False):
    """There is work, but this worker starts no more."""


class Parked(msgspec.Struct, frozen=True, gc=False):
    """Nothing before a message comes or runs end [B-15, R-13].

    Attributes:
        due_us: but not longer than this; 0: for ever.
        awaits: ids of runs.
        need: how many of these have to end.
        why: for people.
    """

    due_us: int
    awaits: tuple[str, ...] = ()
    need: int = 0
    why: str = ""


Next: TypeAlias = RunOp | UnwindOp | UnitOp
"""What a worker does after an append that prepared it: call a handler, run items, submit child runs."""

Rest: TypeAlias = Waiting | Parked | Limited | Closed | HeldOp | InvalidOp | EndedOp


class Plan(msgspec.Struct, gc=False):
    """What to append, and then: run `next`, or rest for the reason in `rest`. Exactly one of the two is set."""

    facts: list[Fact]
    next: Next | None
    rest: Rest | None


def emit(p: Projection, facts: list[Fact], fact: Fact, at_us: int) -> None:
    """Plan a fact: it is folded at once, so that what follows is planned on it."""
    facts.append(fact)
    fold(p, fact, at_us)
