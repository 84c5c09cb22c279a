"""Steps of many items: what their handlers are given and return, and what unwind handlers see of them [B-2, B-10]."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, cast

from perdure.codec.json import AnyCodec, codec_of
from perdure.core.facts import Failure
from perdure.core.unit import Unit
from perdure.define.functions import AnyFunction, name_of, parameter_type, return_type
from perdure.define.invocation import Invocation, PureInvocation
from perdure.define.signals import UnusableOpening
from perdure.define.step import D_contra, ErasedStep, In_contra, S, Step
from perdure.define.views import RunView
from perdure.errors import DefinitionError, PayloadError

if TYPE_CHECKING:
    from perdure.define.invocation import UnwindInvocation

In_co = TypeVar("In_co", covariant=True)
D_co = TypeVar("D_co", covariant=True)
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

MOST_ITEMS = 10_000
"""How many items a step may have where it does not say otherwise [B-2]."""

_UNREAD: Any = object()


# No slots: `More[int](1)` sets an attribute, and only without them is that refusal one that typing expects.


@dataclass(frozen=True)
class More(Generic[T_co]):
    """Returned by a turn of a `Loop`: not done, the next turn is about `item` [B-15]."""

    item: T_co


@dataclass(frozen=True)
class Done(Generic[T_co]):
    """Returned by the last turn of a `Loop`: `value` is the state of the step [B-15]."""

    value: T_co


@dataclass(frozen=True)
class Settled(Generic[R_co]):
    """An item, or a child run, that may have failed without failing the step [B-10, B-21].

    Attributes:
        value: what it made; None if it failed.
        failure: why it failed; None if it did not.
    """

    value: R_co | None = None
    failure: Failure | None = None


@dataclass(frozen=True)
class ItemReport(Generic[T_co, R_co]):
    """What became of one item, for an unwind handler [U-12, B-22].

    Attributes:
        index: from 0.
        item: what it is about.
        status: `completed`; `failed` by its handler's own word; `in-doubt`: started, and its end is not known, or not
            from the handler; `not-started`.
        value: what its handler returned, where it is completed.
        failure: why it failed for good, where it did.
        idempotency_key: of its handler, to find or void the effect [M-3].
    """

    index: int
    item: T_co
    status: Literal["completed", "failed", "in-doubt", "not-started"]
    value: R_co | None
    failure: Failure | None
    idempotency_key: str


class ItemInvocation(Invocation[In_co, D_co], Generic[In_co, D_co, T_co]):
    """One attempt of one item, as its handler sees it. Attempts are counted for each item [M-8].

    Attributes:
        index: of the item, from 0; of a loop the number of turns before.
        stopped: this attempt is to end, for whatever reason; set by the engine.
    """

    __slots__ = ("_raw", "_value", "index", "stopped")

    def __init__(self, source: RunView, step: ErasedStep, attempt: int, index: int, raw: bytes) -> None:
        super().__init__(source, step, attempt)
        self.index = index
        self.stopped = False
        self._raw = raw
        self._value: Any = _UNREAD

    @property
    def _item(self) -> int | None:
        return self.index

    @property
    def canceled(self) -> bool:
        """Whether this attempt is to end: the run is canceled, its time is over, the engine stops [R-12]."""
        return self.stopped or self._source.canceled

    @property
    def item(self) -> T_co:
        """What this is about; decoded once for this handler."""
        if self._value is _UNREAD:
            codec = cast("ItemStep[Any, Any, Any, Any, Any]", self._step).item_codec
            self._value = self._decode(codec, self._raw, f"item {self.index} of step {self.step_id!r}")
        return cast(T_co, self._value)

    def tx(self, kind: type[T], /) -> Coroutine[Any, Any, T]:
        """Not for items, which are recorded many to an append; calling it makes the run invalid."""
        raise self._no_tx("items are recorded many at once; write in a step of its own")

    @property
    def idempotency_key(self) -> str:
        """The same for all attempts of this item, and for no other item or operation [M-3]."""
        return item_key(self._source.run_id, self.step_id, self.index)


def item_key(run_id: str, step_id: str, index: int) -> str:
    """The idempotency key of an item; what stands between the slashes keeps it apart from that of any step [M-3]."""
    return f"{run_id}/item/{index}/{step_id}"


class ItemStep(Step[In_contra, D_contra, S], Generic[In_contra, D_contra, S, T, R]):
    """A step that calls its handler for items of type `T`, which makes an `R` of each."""

    __slots__ = ("_item_codec", "_output_codec", "limit")

    limit: int
    _item_codec: AnyCodec | None
    _output_codec: AnyCodec | None

    @property
    def item_codec(self) -> AnyCodec:
        """The codec of an item.

        Raises:
            DefinitionError: the handler does not say what its items are, or they cannot be payloads.
        """
        if self._item_codec is None:
            self._item_codec = self._find_item_codec()
        return self._item_codec

    @property
    def output_codec(self) -> AnyCodec:
        """The codec of what the handler makes of an item.

        Raises:
            DefinitionError: as `item_codec`.
        """
        if self._output_codec is None:
            self._output_codec = self._find_output_codec()
        return self._output_codec

    def _find_item_codec(self) -> AnyCodec:
        where = f"step {self.id!r}"
        return _codec(where, "items", item_type(where, self.handler))

    def _find_output_codec(self) -> AnyCodec:
        where = f"step {self.id!r}"
        return _codec(where, "outputs", output_type(where, self.handler))

    def encoded(self, inv: PureInvocation[In_contra, D_contra], items: object) -> tuple[bytes, ...]:
        """The items, counted first, each encoded [B-1, B-2].

        Raises:
            BrokenContract: they are too many, or cannot be stored.
        """
        where = f"the items of step {self.id!r}"
        if isinstance(items, (str, bytes)) or not isinstance(items, Sequence):
            raise inv.unusable(UnusableOpening(f"{where} must be a list or a tuple, not {type(items).__name__}"))
        found = cast("Sequence[object]", items)
        if len(found) > self.limit:
            problem = f"{where} are {len(found):,}; its limit is {self.limit:,}, which `limit=` raises"
            raise inv.unusable(UnusableOpening(problem))
        encode = self.item_codec.encode
        done: list[bytes] = []
        try:
            for item in found:
                done.append(encode(item))
        except PayloadError as error:
            problem = f"{where} cannot be stored: $[{len(done)}]{error.path.removeprefix('$')}: {error.problem}"
            raise inv.unusable(UnusableOpening(problem)) from error
        return tuple(done)

    def reports(self, inv: UnwindInvocation[In_contra, D_contra], /) -> tuple[ItemReport[T, R], ...]:
        """Every item of a step that did not succeed, and what became of it, for its `unwind_in_doubt` [U-12].

        Empty where the step has its state: that is made of all outputs.
        """
        unit = inv.unit_of(self)
        if unit is None:
            return ()
        return tuple(self._report(inv.run_id, unit, index) for index in range(len(unit.items)))

    def _report(self, run_id: str, unit: Unit, index: int) -> ItemReport[T, R]:
        item, entry = self.item_codec.decode(unit.items[index]), unit.entry(index)
        key = item_key(run_id, self.id, index)
        if entry is None:
            return ItemReport(index, item, "not-started", None, None, key)
        if entry.output is not None and not (unit.shape == "loop" and index < unit.next - 1):
            output = None if unit.shape == "loop" else self.output_codec.decode(entry.output)
            return ItemReport(index, item, "completed", output, None, key)
        if entry.output is not None:
            return ItemReport(index, item, "completed", None, None, key)
        own_word = entry.failure is not None and not entry.in_doubt
        return ItemReport(index, item, "failed" if own_word else "in-doubt", None, entry.failure, key)


def item_type(where: str, handler: AnyFunction) -> object:
    """The type of the items, from the annotation of the handler's parameter.

    Raises:
        DefinitionError: it is not annotated as an `ItemInvocation` of three types.
    """
    found = parameter_type(where, handler)
    arguments = typing.get_args(found)
    origin = typing.get_origin(found)
    if not (isinstance(origin, type) and issubclass(origin, ItemInvocation)) or len(arguments) != 3:
        raise DefinitionError(
            f"{where}: {name_of(handler)} must annotate what it takes, `inv: ItemInvocation[Input, Deps, Item]`, which "
            f"says how its items are stored"
        )
    return arguments[2]


def output_type(where: str, handler: AnyFunction) -> object:
    """What a handler of items returns.

    Raises:
        DefinitionError: it does not say.
    """
    found = return_type(where, handler)
    if found is inspect.Signature.empty:
        raise DefinitionError(
            f"{where}: {name_of(handler)} has no return annotation, which says how its outputs are stored; write "
            f"`-> None` if it makes nothing"
        )
    return found


def _codec(where: str, what: str, type: object) -> AnyCodec:
    try:
        return codec_of(type)
    except DefinitionError as error:
        raise DefinitionError(f"{where}: its {what} of {error}") from error
