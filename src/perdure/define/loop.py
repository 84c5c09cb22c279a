"""`Loop`: a step that calls its handler turn after turn until it says that it is done [B-15, B-23]."""

from __future__ import annotations

import typing
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Never, overload

from perdure.codec.json import AnyCodec, codec_of
from perdure.core.durations import Duration
from perdure.core.plan import Opening, Terms
from perdure.core.retry import Retry
from perdure.define.decorator import Returned, check_options
from perdure.define.foreach import check_item_handler, check_items, check_number
from perdure.define.functions import AnyFunction, name_of
from perdure.define.invocation import Invocation, PureInvocation, UnwindInvocation
from perdure.define.items import Done, ItemInvocation, ItemStep, More, T, output_type
from perdure.define.limit import Limit
from perdure.define.step import D_contra, In_contra, Need, OnCancel, S
from perdure.errors import DefinitionError

MOST_TURNS = 1000


class Loop(ItemStep[In_contra, D_contra, S, T, S]):
    """A step of turns: each is about what the one before returned as `More(item)`; `Done(value)` is the state.

    A turn starts only after what the one before returned is durable, and costs one commit [B-23]. Each has attempts,
    retries and memos of its own. Deployments change the code of the turns still to come.

    Args:
        id: as of a step.
        first: a pure function that makes the item of the first turn, called once.
        turn: the handler of one turn, `async def` or `def`, annotated `-> More[Item] | Done[State]`; its
            `ItemInvocation` says what the items are.
        max: after so many turns the run is held, for an operator to look; released it takes as many again.
        unwind: as of a step; called with the state.
        unwind_in_doubt: as of a step; `step.reports(inv)` has the turns.
        when: as of a step.
        timeout: of one attempt of one turn; `retry` counts for each turn.
        needs: what `turn`, `first` and `when` read.
        on_cancel: as of a step.
        limits: as of a step; all its turns are one operation [R-11].

    Raises:
        DefinitionError: it could not work; says why.
    """

    __slots__ = ("_first",)

    @overload
    def __init__(
        self,
        id: str,
        *,
        first: Callable[[Invocation[In_contra, D_contra]], T],
        turn: Callable[[ItemInvocation[In_contra, D_contra, T]], Coroutine[Any, Any, More[T] | Done[S]]],
        max: int = ...,
        unwind: Callable[[UnwindInvocation[In_contra, D_contra], S], Returned] | None = ...,
        unwind_in_doubt: Callable[[UnwindInvocation[In_contra, D_contra]], Returned] | None = ...,
        when: Callable[[Invocation[In_contra, D_contra]], bool] | None = ...,
        timeout: Duration | None = ...,
        retry: Retry | None = ...,
        needs: Sequence[Need] = ...,
        on_cancel: OnCancel = ...,
        limits: Sequence[Limit[Never]] = ...,
    ) -> None: ...
    @overload
    def __init__(
        self,
        id: str,
        *,
        first: Callable[[Invocation[In_contra, D_contra]], T],
        turn: Callable[[ItemInvocation[In_contra, D_contra, T]], More[T] | Done[S]],
        max: int = ...,
        unwind: Callable[[UnwindInvocation[In_contra, D_contra], S], Returned] | None = ...,
        unwind_in_doubt: Callable[[UnwindInvocation[In_contra, D_contra]], Returned] | None = ...,
        when: Callable[[Invocation[In_contra, D_contra]], bool] | None = ...,
        timeout: Duration | None = ...,
        retry: Retry | None = ...,
        needs: Sequence[Need] = ...,
        on_cancel: OnCancel = ...,
        limits: Sequence[Limit[Never]] = ...,
    ) -> None: ...
    def __init__(
        self,
        id: str,
        *,
        first: AnyFunction,
        turn: AnyFunction,
        max: int = MOST_TURNS,
        unwind: AnyFunction | None = None,
        unwind_in_doubt: AnyFunction | None = None,
        when: AnyFunction | None = None,
        timeout: Duration | None = None,
        retry: Retry | None = None,
        needs: Sequence[Need] = (),
        on_cancel: OnCancel = "cancel",
        limits: Sequence[Limit[Never]] = (),
    ) -> None:
        checked = check_options(
            id,
            unwind=unwind,
            unwind_in_doubt=unwind_in_doubt,
            when=when,
            timeout=timeout,
            retry=retry,
            needs=needs,
            on_cancel=on_cancel,
            limits=limits,
        )
        where = f"step {id!r}"
        check_items(f"{where}: first", first)
        is_async = check_item_handler(where, turn)
        terms = Terms(bound=1, most=check_number(where, "max", max, 1))
        super().__init__(handler=turn, is_async=is_async, shape="loop", terms=terms, **checked)
        self._item_codec = self._output_codec = None
        self._first = first
        self.limit = 1

    def _find_codec(self) -> AnyCodec:
        self.item_codec  # noqa: B018  # refuses items that could not be stored
        return self.output_codec

    def _find_output_codec(self) -> AnyCodec:
        where = f"step {self.id!r}"
        found = output_type(where, self.handler)
        members = typing.get_args(found) if typing.get_origin(found) not in (More, Done) else (found,)
        done = [typing.get_args(each)[0] for each in members if typing.get_origin(each) is Done]
        others = [each for each in members if typing.get_origin(each) not in (More, Done)]
        if not done or others:
            raise DefinitionError(
                f"{where}: {name_of(self.handler)} must be annotated `-> More[Item] | Done[State]`, not {found!r}"[:500]
            )
        union: Any = typing.Union
        try:
            return codec_of(union[tuple(done)])
        except DefinitionError as error:
            raise DefinitionError(f"{where}: its state of {error}") from error

    def opening(self, inv: PureInvocation[In_contra, D_contra], /) -> Opening:
        """See base."""
        return Opening(items=self.encoded(inv, [self._first(inv)]))

    def __repr__(self) -> str:
        return f"<{'retired ' if self.retired else ''}loop {self.id!r}>"
