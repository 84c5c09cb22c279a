"""How an attempt ended, as the executor tells the commit planner; a closed union."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from perdure.core.facts import Failure


class Returned(msgspec.Struct, frozen=True, gc=False):
    """The handler returned; `state` is its encoded value [M-4]."""

    state: bytes


class Declined(msgspec.Struct, frozen=True, gc=False):
    """The handler raised `Fail`: its own word, a permanent failure without doubt [M-9]."""

    failure: Failure


class Raised(msgspec.Struct, frozen=True, gc=False):
    """The handler raised anything else; `never`: a type the policy lists as never retryable [M-5]."""

    failure: Failure
    never: bool = False


class TimedOut(msgspec.Struct, frozen=True, gc=False):
    """The attempt took longer than the step allows [R-18]."""

    failure: Failure


class Interrupted(msgspec.Struct, frozen=True, gc=False):
    """The engine stopped the attempt at shutdown; it counts towards nothing [R-6]."""


class Postponed(msgspec.Struct, frozen=True, gc=False):
    """The handler of a poll said `Later`: ask again in so long; no error, no backoff [B-15, M-17]."""

    delay_us: int


class Refused(msgspec.Struct, frozen=True, gc=False):
    """The handler returned a value over the hard limit: the run is held, not failed [P-4]."""

    failure: Failure


Outcome: TypeAlias = Returned | Declined | Raised | TimedOut | Interrupted | Refused | Postponed


class ItemOutcome(msgspec.Struct, frozen=True, gc=False):
    """How an attempt of an item ended.

    Attributes:
        more: of a loop: what it returned is the item of the next turn [B-15].
    """

    index: int
    attempt: int
    outcome: Outcome
    more: bool = False
