"""`ForEach`: a step that calls its handler for each of many items, several at once [B-10, B-15, B-22]."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Literal, Never, TypeVar, overload

from perdure.codec.json import AnyCodec, codec_of
from perdure.core.durations import Duration
from perdure.core.plan import Opening, Terms
from perdure.core.retry import Retry
from perdure.define.decorator import Returned, check_options
from perdure.define.functions import AnyFunction, check_handler, check_pure
from perdure.define.invocation import Invocation, PureInvocation, UnwindInvocation
from perdure.define.items import MOST_ITEMS, ItemInvocation, ItemStep, R, Settled, T
from perdure.define.limit import Limit
from perdure.define.step import AnyStep, D_contra, In_contra, Need, OnCancel, S
from perdure.errors import DefinitionError

In = TypeVar("In")
D = TypeVar("D")
It = TypeVar("It")
Made = TypeVar("Made")

CONCURRENCY = 16


class ForEach(ItemStep[In_contra, D_contra, S, T, R]):
    """A step of many items: `inv[step]` is the list of what its handler made of each, in their order.

    The items are fixed as a fact when the run comes to the step; deployments change only the code for those still to
    come [B-20]. Each has attempts, retries and memos of its own, and what one has done is never done again. An item
    that failed for good fails the step once all that run have ended, and no other is started; with `collect=True` it
    fails nothing, and the state is a list of `Settled`.

    A step that did not succeed although an item was started is in doubt: `unwind_in_doubt` then finds every item with
    `step.reports(inv)`, and takes back what was done [U-12].

    Args:
        id: as of a step.
        items: a pure function that makes the list of items, called once.
        handler: called for each, `async def` or `def`, with an `ItemInvocation`, whose types say what the items are.
        concurrency: how many of them at once, at most.
        collect: failed items are part of the state.
        limit: how many items there may be; more make the run invalid.
        unwind: as of a step; called with the whole list.
        unwind_in_doubt: as of a step.
        when: as of a step.
        timeout: of one attempt of one item; `retry` counts for each item.
        needs: what handler, `items` and `when` read.
        on_cancel: as of a step.
        limits: as of a step, which is one operation however many items run [R-11].

    Raises:
        DefinitionError: it could not work; says why.
    """

    __slots__ = ("_items", "collect")

    @overload
    def __init__(
        self: ForEach[In, D, list[Made], It, Made],
        id: str,
        *,
        items: Callable[[Invocation[In, D]], Sequence[It]],
        handler: Callable[[ItemInvocation[In, D, It]], Coroutine[Any, Any, Made]],
        concurrency: int = ...,
        collect: Literal[False] = ...,
        limit: int = ...,
        unwind: Callable[[UnwindInvocation[In, D], list[Made]], Returned] | None = ...,
        unwind_in_doubt: Callable[[UnwindInvocation[In, D]], Returned] | None = ...,
        when: Callable[[Invocation[In, D]], bool] | None = ...,
        timeout: Duration | None = ...,
        retry: Retry | None = ...,
        needs: Sequence[Need] = ...,
        on_cancel: OnCancel = ...,
        limits: Sequence[Limit[Never]] = ...,
    ) -> None: ...
    @overload
    def __init__(
        self: ForEach[In, D, list[Made], It, Made],
        id: str,
        *,
        items: Callable[[Invocation[In, D]], Sequence[It]],
        handler: Callable[[ItemInvocation[In, D, It]], Made],
        concurrency: int = ...,
        collect: Literal[False] = ...,
        limit: int = ...,
        unwind: Callable[[UnwindInvocation[In, D], list[Made]], Returned] | None = ...,
        unwind_in_doubt: Callable[[UnwindInvocation[In, D]], Returned] | None = ...,
        when: Callable[[Invocation[In, D]], bool] | None = ...,
        timeout: Duration | None = ...,
        retry: Retry | None = ...,
        needs: Sequence[Need] = ...,
        on_cancel: OnCancel = ...,
        limits: Sequence[Limit[Never]] = ...,
    ) -> None: ...
    @overload
    def __init__(
        self: ForEach[In, D, list[Settled[Made]], It, Made],
        id: str,
        *,
        items: Callable[[Invocation[In, D]], Sequence[It]],
        handler: Callable[[ItemInvocation[In, D, It]], Coroutine[Any, Any, Made]],
        collect: Literal[True],
        concurrency: int = ...,
        limit: int = ...,
        unwind: Callable[[UnwindInvocation[In, D], list[Settled[Made]]], Returned] | None = ...,
        unwind_in_doubt: Callable[[UnwindInvocation[In, D]], Returned] | None = ...,
        when: Callable[[Invocation[In, D]], bool] | None = ...,
        timeout: Duration | None = ...,
        retry: Retry | None = ...,
        needs: Sequence[Need] = ...,
        on_cancel: OnCancel = ...,
        limits: Sequence[Limit[Never]] = ...,
    ) -> None: ...
    @overload
    def __init__(
        self: ForEach[In, D, list[Settled[Made]], It, Made],
        id: str,
        *,
        items: Callable[[Invocation[In, D]], Sequence[It]],
        handler: Callable[[ItemInvocation[In, D, It]], Made],
        collect: Literal[True],
        concurrency: int = ...,
        limit: int = ...,
        unwind: Callable[[UnwindInvocation[In, D], list[Settled[Made]]], Returned] | None = ...,
        unwind_in_doubt: Callable[[UnwindInvocation[In, D]], Returned] | None = ...,
        when: Callable[[Invocation[In, D]], bool] | None = ...,
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
        items: AnyFunction,
        handler: AnyFunction,
        concurrency: int = CONCURRENCY,
        collect: bool = False,
        limit: int = MOST_ITEMS,
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
        check_items(f"{where}: items", items)
        is_async = check_item_handler(where, handler)
        check_number(where, "concurrency", concurrency, 1)
        check_number(where, "limit", limit, 1)
        terms = Terms(bound=concurrency, collect=collect)
        super().__init__(handler=handler, is_async=is_async, shape="each", terms=terms, **checked)
        self._item_codec = self._output_codec = None
        self._items = items
        self.collect = collect
        self.limit = limit

    def _find_codec(self) -> AnyCodec:
        self.item_codec  # noqa: B018  # refuses items that could not be stored
        made: Any = self.output_codec.type
        return codec_of(list[Settled[made]] if self.collect else list[made])

    def opening(self, inv: PureInvocation[In_contra, D_contra], /) -> Opening:
        """See base."""
        return Opening(items=self.encoded(inv, self._items(inv)))

    def __repr__(self) -> str:
        return f"<{'retired ' if self.retired else ''}for each {self.id!r}>"


def check_items(where: str, function: AnyFunction) -> None:
    """Checks a function that makes items.

    Raises:
        DefinitionError: it cannot be one.
    """
    if isinstance(function, AnyStep):
        raise DefinitionError(f"{where}: {function!r} is a step; give a function that reads its state")
    check_pure(where, function, named=False)


def check_item_handler(where: str, handler: object) -> bool:
    """Checks the handler of items; whether it is async.

    Raises:
        DefinitionError: it cannot be one.
    """
    if isinstance(handler, AnyStep):
        raise DefinitionError(f"{where}: its handler is a step already; give the function without @step(...)")
    return check_handler(where, handler, 1)


def check_number(where: str, name: str, value: object, least: int) -> int:
    """A whole number of at least `least`.

    Raises:
        DefinitionError: it is not.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise DefinitionError(f"{where}: {name} must be a whole number of at least {least}, not {value!r}"[:300])
    return value
