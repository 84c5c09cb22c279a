"""`AwaitMessage`: a step whose state is a message that somebody sends to the run [B-24]."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, overload

from perdure.codec.json import AnyCodec, codec_of
from perdure.core.durations import Duration
from perdure.core.plan import Opening
from perdure.define.decorator import check_options
from perdure.define.functions import AnyFunction
from perdure.define.invocation import Invocation, PureInvocation
from perdure.define.names import name_problem
from perdure.define.sleep import nothing_called, waiting_us
from perdure.define.step import D_contra, In_contra, Need, S, Step
from perdure.errors import DefinitionError, PayloadError

if TYPE_CHECKING:
    from typing_extensions import TypeForm

T = TypeVar("T")

_FAILS: Any = object()


class AwaitMessage(Step[In_contra, D_contra, S]):
    """A step that waits until `run.send(name, value)` brings its state.

    Messages are kept in the order they came; each is consumed once, by the first await of its name that the run comes
    to, so one that comes early is not lost. Meanwhile the run holds no worker and no place, and survives restarts. What
    it waits for, and until when, is fixed as a fact when the run comes to it [B-20].

    Args:
        id: as of a step.
        name: of the message.
        type: of its payload, which is the step's state; what does not fit is refused where it is sent [B-4].
        timeout: how long to wait, seconds or `timedelta`; then the step fails with reason `await-timeout` [B-8].
        on_timeout: the state it has then instead of failing.
        when: as of a step; false: the run does not wait.
        needs: what `when` reads.

    Raises:
        DefinitionError: it could not work; says why.
    """

    __slots__ = ("_on_timeout", "_type", "message", "timeout_us")

    @overload
    def __init__(
        self: AwaitMessage[object, object, T],
        id: str,
        *,
        name: str,
        type: TypeForm[T],
        timeout: Duration | None = ...,
        on_timeout: T = ...,
    ) -> None: ...
    @overload
    def __init__(
        self,
        id: str,
        *,
        name: str,
        type: TypeForm[S],
        timeout: Duration | None = ...,
        on_timeout: S = ...,
        when: Callable[[Invocation[In_contra, D_contra]], bool],
        needs: Sequence[Need] = ...,
    ) -> None: ...
    def __init__(
        self,
        id: str,
        *,
        name: str,
        type: object,
        timeout: Duration | None = None,
        on_timeout: object = _FAILS,
        when: AnyFunction | None = None,
        needs: Sequence[Need] = (),
    ) -> None:
        checked = check_options(id, when=when, needs=needs)
        where = f"step {id!r}"
        problem = name_problem(name)
        if problem is not None:
            raise DefinitionError(f"{where}: the name of its message {problem}: {ascii(name)[:80]}")
        super().__init__(handler=nothing_called, is_async=False, shape="message", **checked)
        self.doc = ""
        self.message = name
        self._type = type
        self.timeout_us = 0 if timeout is None else waiting_us(f"{where}: timeout", timeout)
        if on_timeout is not _FAILS and timeout is None:
            raise DefinitionError(f"{where}: on_timeout without a timeout is never used")
        try:
            self._on_timeout = None if on_timeout is _FAILS else self.codec.encode(on_timeout)
        except PayloadError as error:
            raise DefinitionError(f"{where}: on_timeout is no {error}") from None

    def _find_codec(self) -> AnyCodec:
        try:
            return codec_of(self._type)
        except DefinitionError as error:
            raise DefinitionError(f"step {self.id!r}: its message of {error}") from error

    def opening(self, inv: PureInvocation[In_contra, D_contra], /) -> Opening:
        """See base."""
        return Opening(self.timeout_us, (self.message,))

    def timeout_state(self) -> bytes | None:
        """See base."""
        return self._on_timeout

    def __repr__(self) -> str:
        return f"<{'retired ' if self.retired else ''}await {self.id!r} of message {self.message!r}>"
