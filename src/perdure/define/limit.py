"""Limits: how much of something may go on at once, or how often it may start [R-11]."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, Literal, TypeAlias, TypeVar, cast, overload

from perdure.core.permits import Entrance, LimitKind, Permit
from perdure.define.functions import check_pure
from perdure.define.names import check_id, name_problem
from perdure.errors import DefinitionError

In_contra = TypeVar("In_contra", contravariant=True)

LimitScope: TypeAlias = Literal["store", "worker"]
"""Across all workers of a store, or in each process by itself."""

ORDER: dict[LimitKind, int] = {"in_flight": 0, "concurrency": 1, "rate": 2}
"""In which order places are taken, then by id. Whoever waits for one keeps those before it: so nobody waits in a
circle; and a turn of a rate is used when it comes."""


class Limit(Generic[In_contra]):
    """How much of something may go on at once, or how often it may start [R-11]. A value: two that are equal mean the
    same limit, and everything that names it counts together, in whatever pipeline it stands.

    Exactly one of `concurrency`, `in_flight` and `per_second` is given.

    Attributes:
        id: names the limit in the store.
        scope: where it is counted.
        kind: what it counts.
        bound: how many; of a rate, the microseconds from one start to the next.
        queue: of runs in flight, how many more may wait; None: any number.
    """

    __slots__ = ("bound", "id", "key", "kind", "queue", "scope")

    @overload
    def __init__(
        self: Limit[object],
        id: str,
        *,
        scope: LimitScope = ...,
        concurrency: int | None = ...,
        in_flight: int | None = ...,
        queue: int | None = ...,
        per_second: float | None = ...,
    ) -> None: ...
    @overload
    def __init__(
        self,
        id: str,
        *,
        scope: LimitScope = ...,
        key: Callable[[In_contra], str],
        concurrency: int | None = ...,
        in_flight: int | None = ...,
        queue: int | None = ...,
        per_second: float | None = ...,
    ) -> None: ...
    def __init__(
        self,
        id: str,
        *,
        scope: LimitScope = "store",
        key: Callable[[In_contra], str] | None = None,
        concurrency: int | None = None,
        in_flight: int | None = None,
        queue: int | None = None,
        per_second: float | None = None,
    ) -> None:
        """Builds and checks the limit.

        Args:
            id: not empty, at most 512 bytes.
            scope: `store`: across all workers; `worker`: in each process by itself.
            key: a pure function of the run's input; each text that it returns is counted apart. Without one, all
                together. If it raises, the run is invalid.
            concurrency: so many operations execute at once: attempts of the steps that name the limit, forward or in
                unwind. A step of items is one operation, however many of its items run.
            in_flight: so many runs have begun and not ended, whatever they wait for meanwhile.
            queue: with `in_flight`: so many more may have been submitted and wait, for whatever; a submission that
                finds no room is refused with `QueueFull`. 0: nobody waits. Default: any number may.
            per_second: so many starts a second, evenly spread: of attempts where a step names it, of runs where a
                pipeline does.

        Raises:
            DefinitionError: it could not work; says why.
        """
        where = f"limit {check_id('limit', id)!r}"
        self.id = id
        if scope not in ("store", "worker"):
            raise DefinitionError(f"{where}: scope must be 'store' or 'worker', not {_shown(scope)}")
        self.scope: LimitScope = scope
        if key is not None:
            check_pure(f"{where}: key", key, named=False, takes="input")
        self.key: Callable[[In_contra], str] | None = key
        self.kind: LimitKind
        self.kind, self.bound = _bound(where, concurrency, in_flight, per_second)
        if queue is not None and self.kind != "in_flight":
            raise DefinitionError(
                f"{where}: queue bounds the runs that wait to be in flight: give it together with in_flight"
            )
        self.queue = None if queue is None else _check_count(where, "queue", queue, 0)
        if self.kind == "in_flight" and scope == "worker":
            raise DefinitionError(
                f"{where}: in_flight counts runs across the store, for a run may go from one worker to another; the "
                f"app's `concurrency` bounds the runs of one worker"
            )

    def permit(self, key: str) -> Permit:
        """A place under this limit, for one of its keys."""
        return Permit(self.id, key, self.kind, self.bound, self.scope == "store")

    def entrance(self, key: str) -> Entrance | None:
        """The room that a run needs which is submitted, for one of its keys; None: its queue has no bound."""
        return None if self.queue is None else Entrance(self.id, key, self.bound, self.queue)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Limit) and self._value() == other._value()

    def __hash__(self) -> int:
        return hash(self.id)

    def _value(self) -> tuple[object, ...]:
        return self.id, self.scope, self.key, self.kind, self.bound, self.queue

    def __repr__(self) -> str:
        return f"<limit {self.id!r}>"


AnyLimit: TypeAlias = Limit[Any]
"""A limit for whose key nobody asks the type."""


def _bound(where: str, concurrency: object, in_flight: object, per_second: object) -> tuple[LimitKind, int]:
    given = {"concurrency": concurrency, "in_flight": in_flight, "per_second": per_second}
    names = [name for name, value in given.items() if value is not None]
    if len(names) != 1:
        what = " and ".join(names) if names else "none"
        raise DefinitionError(f"{where}: give exactly one of concurrency, in_flight and per_second, not {what}")
    if concurrency is not None:
        return "concurrency", _check_count(where, "concurrency", concurrency, 1)
    if in_flight is not None:
        return "in_flight", _check_count(where, "in_flight", in_flight, 1)
    return "rate", _interval_us(where, per_second)


def _check_count(where: str, name: str, value: object, least: int) -> int:
    if type(value) is not int or not least <= value < 1 << 31:
        most = (
            "" if isinstance(value, bool) or not isinstance(value, int) or value < least else f" and below {1 << 31:,}"
        )
        raise DefinitionError(f"{where}: {name} must be a whole number of at least {least}{most}, not {_shown(value)}")
    return value


def _shown(value: object) -> str:
    """A wrong argument, for people, however large it is."""
    try:
        return repr(value)[:100]
    except Exception:  # a number of thousands of digits, or what a class of the author's raises
        return f"this {type(value).__name__}"


def _interval_us(where: str, value: object) -> int:
    fits = isinstance(value, (int, float)) and not isinstance(value, bool) and 1e-6 <= value <= 1e6
    if not fits:
        raise DefinitionError(f"{where}: per_second must be a number from 0.000001 to 1,000,000, not {_shown(value)}")
    return max(1, round(1_000_000 / cast(float, value)))


def check_limits(where: str, limits: object, kinds: tuple[LimitKind, ...], instead: str) -> tuple[AnyLimit, ...]:
    """The limits that a step or a pipeline names, in the order in which places are taken.

    Args:
        kinds: those that make sense there.
        instead: where one of another kind belongs.

    Raises:
        DefinitionError: not limits, one of them twice, of another kind, or places of two scopes.
    """
    if isinstance(limits, Limit) or not isinstance(limits, Sequence) or isinstance(limits, str):
        raise DefinitionError(
            f"{where}: limits must be a tuple of limits, not {limits!r}; a tuple of one ends in a comma"[:300]
        )
    found: dict[str, AnyLimit] = {}
    for limit in cast("Sequence[object]", limits):
        if not isinstance(limit, Limit):
            raise DefinitionError(f"{where}: limits must hold limits, not {limit!r}"[:300])
        if limit.kind not in kinds:
            raise DefinitionError(f"{where}: {limit!r} bounds {_WHAT[limit.kind]}; {instead}")
        if limit.id in found:
            raise DefinitionError(f"{where} names {limit!r} twice")
        found[limit.id] = limit
    if len({limit.scope for limit in found.values() if limit.kind == "concurrency"}) > 1:
        raise DefinitionError(
            f"{where} names limits of what executes across all workers and of what executes in one; name limits of one "
            "scope, for runs that each have the place that the other lacks would swap them without end"
        )
    return tuple(sorted(found.values(), key=lambda limit: (ORDER[limit.kind], limit.id)))


_WHAT: dict[LimitKind, str] = {
    "concurrency": "operations that execute",
    "in_flight": "runs in flight",
    "rate": "starts per second",
}


class KeyTrouble(Exception):
    """The key of a limit cannot be told; says why, for people."""


def key_of(limit: AnyLimit, read_input: Callable[[], object]) -> str:
    """What a run counts with under a limit.

    Args:
        read_input: the run's input, for the function of the key.

    Raises:
        KeyTrouble: that raised, or made nothing of use.
    """
    if limit.key is None:
        return ""
    what = f"the key of limit {limit.id!r}"
    try:
        key = limit.key(read_input())
    except BaseException as error:  # whatever a pure function raises: who asked says what follows
        if isinstance(error, KeyboardInterrupt):
            raise
        raise KeyTrouble(f"{what} raised {type(error).__name__}: {error}"[:1000]) from error
    problem = key_problem(key)
    if problem is not None:
        raise KeyTrouble(f"{what} {problem}")
    return key


def key_problem(key: object) -> str | None:
    """What is wrong with what a key function returned; None: nothing. It may be empty."""
    return None if key == "" else name_problem(key)
