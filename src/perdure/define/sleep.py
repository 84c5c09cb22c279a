"""`Sleep`: a step that calls nothing and waits for a time [B-15]."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import overload

from perdure.core.durations import Duration, duration_us
from perdure.core.plan import Opening
from perdure.define.decorator import check_options
from perdure.define.functions import AnyFunction
from perdure.define.invocation import Invocation, PureInvocation
from perdure.define.step import D_contra, In_contra, Need, Step
from perdure.errors import DefinitionError


class Sleep(Step[In_contra, D_contra, None]):
    """A step that waits, and has no state.

    When the run comes to it, the time at which it is over is fixed as a fact: deployments with another duration change
    only sleeps that open later [B-20]. Meanwhile the run holds no worker and no place, and survives restarts. Nothing
    is called, so there are no attempts and no doubt: a cancel ends it at once, and leaves nothing behind.

    Args:
        id: as of a step.
        duration: seconds or `timedelta`, more than zero.
        when: as of a step; false: the run does not sleep.
        needs: what `when` reads.

    Raises:
        DefinitionError: it could not work; says why.
    """

    __slots__ = ("lasts_us",)

    @overload
    def __init__(self: Sleep[object, object], id: str, duration: Duration) -> None: ...
    @overload
    def __init__(
        self,
        id: str,
        duration: Duration,
        *,
        when: Callable[[Invocation[In_contra, D_contra]], bool],
        needs: Sequence[Need] = ...,
    ) -> None: ...
    def __init__(
        self, id: str, duration: Duration, *, when: AnyFunction | None = None, needs: Sequence[Need] = ()
    ) -> None:
        checked = check_options(id, when=when, needs=needs)
        super().__init__(handler=nothing_called, is_async=False, shape="sleep", **checked)
        self.lasts_us = waiting_us(f"step {id!r}: the duration of a sleep", duration)
        self.doc = ""

    def opening(self, inv: PureInvocation[In_contra, D_contra], /) -> Opening:
        """See base."""
        return Opening(self.lasts_us)

    def __repr__(self) -> str:
        return f"<{'retired ' if self.retired else ''}sleep {self.id!r}>"


def nothing_called(_inv: Invocation[object, object]) -> None:
    """Never called; stands for the handler of a step that has none, and says that a sleep has no state."""


def waiting_us(what: str, duration: object) -> int:
    """Microseconds of a duration that must be more than zero.

    Raises:
        DefinitionError: it is not.
    """
    try:
        us = duration_us(duration)
    except ValueError as error:
        raise DefinitionError(f"{what} {error}") from None
    if not us:
        raise DefinitionError(f"{what} must not be zero")
    return us
