"""When to try again: the policy of a step, and the pure decisions over it [M-5, R-4]."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, cast

from perdure.core.durations import Duration, duration_us
from perdure.core.facts import Phase
from perdure.errors import DefinitionError

AfterFailure: TypeAlias = Literal["retry", "hold", "fail"]
PolicySource: TypeAlias = Literal["step", "pipeline", "app", "default"]

MAX_LOST_IN_A_ROW = 5
"""So many lost attempts one after another hold the run, whatever the policy: the operation kills its worker [M-5]."""


@dataclass(frozen=True, slots=True)
class Retry:
    """How an operation that was left unresolved is tried again. Durations are seconds or `timedelta` [M-5, R-4].

    Attributes:
        max_attempts: so many failed attempts end the forward operation; None: no bound. Exceptions, time-outs and lost
            workers count, interruptions and wakes do not.
        initial: the delay after the first failure.
        factor: each further delay is this many times longer.
        cap: no delay is longer, jitter apart; not shorter than `initial`.
        jitter: a delay is varied at random by up to this share of itself, either way.
        never: an exception of such a type is a permanent failure at once; the step is then in doubt [M-9].
        then: when the bound is reached: `hold` the run for an operator, or `fail` with reason `attempts-exhausted`.
        unwind_max_attempts: the bound of the unwind operation; None: no bound, whatever `max_attempts` says.

    Raises:
        DefinitionError: a value is out of range. The author mends it.
    """

    max_attempts: int | None = None
    initial: Duration = 0.1
    factor: float = 2.0
    cap: Duration = 30.0
    jitter: float = 0.1
    never: tuple[type[BaseException], ...] = ()
    then: Literal["hold", "fail"] = "hold"
    unwind_max_attempts: int | None = None
    initial_us: int = field(init=False, repr=False, compare=False, default=0)
    cap_us: int = field(init=False, repr=False, compare=False, default=0)

    def __post_init__(self) -> None:
        _check_bound("max_attempts", self.max_attempts)
        _check_bound("unwind_max_attempts", self.unwind_max_attempts)
        object.__setattr__(self, "initial_us", _check_duration("initial", self.initial))
        object.__setattr__(self, "cap_us", _check_duration("cap", self.cap))
        if self.initial_us > self.cap_us:
            raise DefinitionError(
                f"Retry(initial={self.initial!r}) is longer than cap={self.cap!r}, which no delay may be: give a cap"
            )
        _check_number("factor", self.factor, 1.0, 1e6)
        _check_number("jitter", self.jitter, 0.0, 1.0)
        object.__setattr__(self, "never", _check_never(self.never))
        if self.then not in ("hold", "fail"):
            raise DefinitionError(f"Retry(then=...) must be 'hold' or 'fail', not {self.then!r}")

    def bound(self, phase: Phase) -> int | None:
        """The greatest number of failed attempts of an operation in `phase`, None where there is none."""
        return self.max_attempts if phase == "forward" else self.unwind_max_attempts

    def is_never(self, error: BaseException) -> bool:
        """Whether `error` is of a type that is never retried."""
        return bool(self.never) and isinstance(error, self.never)


def backoff_us(retry: Retry, failures: int, chance: float) -> int:
    """The delay before the next attempt, in microseconds.

    It grows from `initial` by `factor` up to `cap`, and is then moved by jitter: at most `cap * (1 + jitter)`.

    Args:
        failures: failed attempts so far, this one included; less than one asks for no delay.
        chance: in [0, 1), for the jitter; the caller draws it.
    """
    if failures < 1:
        return 0
    initial_us, cap_us = retry.initial_us, retry.cap_us
    if initial_us >= cap_us or not initial_us:
        delay_us = float(min(initial_us, cap_us))
    elif (failures - 1) * math.log(retry.factor) >= math.log(cap_us / initial_us):
        delay_us = float(cap_us)
    else:
        delay_us = min(initial_us * retry.factor ** (failures - 1), float(cap_us))
    return int(delay_us * (1.0 + retry.jitter * (2.0 * chance - 1.0)))


def after_failure(
    retry: Retry,
    phase: Phase,
    failures_so_far: int,
    exception_type_matches_never: bool,
    lost_in_a_row: int = 0,
) -> AfterFailure:
    """What becomes of an operation whose attempt failed other than by `Fail` [M-5].

    Args:
        failures_so_far: attempts that ended in an exception, a time-out or a lost worker, this one included.
        exception_type_matches_never: see `Retry.is_never`; the failure is then permanent.
        lost_in_a_row: how many of the last attempts were lost one after another, 0 if this one was not.
    """
    if exception_type_matches_never:
        return "fail"
    if lost_in_a_row >= MAX_LOST_IN_A_ROW:
        return "hold"
    bound = retry.bound(phase)
    return "retry" if bound is None or failures_so_far < bound else retry.then


def _check_bound(name: str, value: object) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        raise DefinitionError(f"Retry({name}=...) must be a whole number or None, not {value!r}")
    if value < 1:
        raise DefinitionError(f"Retry({name}={value}): at least one attempt is needed")


def _check_duration(name: str, value: object) -> int:
    try:
        return duration_us(value)
    except ValueError as error:
        raise DefinitionError(f"Retry({name}=...) {error}") from None


def _check_number(name: str, value: object, least: float, most: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise DefinitionError(f"Retry({name}=...) must be a number, not {value!r}")
    if not least <= value <= most:  # NaN is in no range
        raise DefinitionError(f"Retry({name}={value}) must be between {least:g} and {most:g}")


def _check_never(value: object) -> tuple[type[BaseException], ...]:
    if not isinstance(value, (tuple, list)):
        raise DefinitionError(f"Retry(never=...) must be a tuple of exception types, not {value!r}")
    types: list[type[BaseException]] = []
    for entry in cast("tuple[object, ...]", value):
        if not (isinstance(entry, type) and issubclass(entry, BaseException)):
            raise DefinitionError(f"Retry(never=...) must hold exception types, not {entry!r}")
        types.append(entry)
    return tuple(types)


DEFAULT_RETRY = Retry()
