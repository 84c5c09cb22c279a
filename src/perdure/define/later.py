"""`Later`: what a poll returns while there is nothing to return yet [B-15]."""

from __future__ import annotations

import typing
from typing import Any, final

from perdure.core.durations import Duration, duration_us
from perdure.errors import DefinitionError


@final
class Later:
    """Returned by the handler of a `@poll`: nothing yet, call me again in `delay` [B-15].

    It is no error: it asks for no backoff, counts towards no bound, and holds no worker meanwhile. The time is
    absolute in the journal and survives restarts [R-4].

    Args:
        delay: seconds or `timedelta`, more than zero.

    Raises:
        DefinitionError: not such a duration. Raised inside a handler it is an exception like any other.
    """

    __slots__ = ("delay_us",)

    def __init__(self, delay: Duration) -> None:
        try:
            self.delay_us = duration_us(delay)
        except ValueError as error:
            raise DefinitionError(f"Later(delay) {error}") from None
        if not self.delay_us:
            raise DefinitionError("Later(delay) must not be zero: it would ask without end, and without a pause")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Later) and other.delay_us == self.delay_us

    def __hash__(self) -> int:
        return hash(self.delay_us)

    def __repr__(self) -> str:
        return f"Later({self.delay_us / 1_000_000:g})"


def state_type(where: str, annotation: object, *, polls: bool) -> object:
    """The type of a step's state: its return annotation, for a poll without `Later`.

    Raises:
        DefinitionError: `Later` stands where it must not, or nothing is left beside it.
    """
    members = _members(annotation)
    if Later not in members:
        return annotation
    if not polls:
        raise DefinitionError(f"{where}: only a @poll may return Later; decorate it with @poll(...), not @step(...)")
    states = [each for each in members if each is not Later]
    if not states:
        raise DefinitionError(f"{where}: it never returns a state; annotate it `-> T | Later`, or `-> Later | None`")
    union: Any = typing.Union
    return union[tuple(states)]


def _members(annotation: object) -> tuple[object, ...]:
    args = typing.get_args(annotation)
    is_union = args and typing.get_origin(annotation) in (typing.Union, type(int | str))
    return args if is_union else (annotation,)
