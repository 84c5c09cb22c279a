"""`Branch`: a decision that is taken once, and arms of which a run takes one [E-12].

Nothing of it is left in the topology but steps: the decision is a step whose state names the arm, and each step of an
arm has a condition that reads it. Every rule about steps holds for both.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from enum import Enum, Flag
from typing import Any, TypeVar, cast, overload

from perdure.core.durations import Duration
from perdure.core.retry import Retry
from perdure.define.decorator import check_options
from perdure.define.functions import AnyFunction, check_handler, name_of, return_type
from perdure.define.invocation import Invocation
from perdure.define.step import AnyStep, D_contra, ErasedStep, In_contra, Need, OnCancel, Step, in_arm
from perdure.errors import DefinitionError

K = TypeVar("K", bound=Enum)


class Branch(Step[In_contra, D_contra, K]):
    """A decision and its arms, to be put among the steps of a pipeline.

    `decide` is a handler like that of a step, `async def` or `def`, annotated to return a member of an Enum. What it
    returned is a fact: it is never asked again, whatever is deployed, and `inv[branch]` is the member. The steps of the
    other arms are skipped. A step outside of an arm that reads one inside lists it as `optional`.

    Args:
        id: of the decision, as of a step.
        decide: returns the member whose arm is taken.
        arms: for every member of the Enum its steps, in order; `()` for none. They stand behind the decision in the
            order of the mapping, and may hold branches again.
        when: a condition of the whole branch; false: nothing is decided, and all arms are skipped.
        timeout: as of a step, for the decision; so are `retry`, `needs` and `on_cancel`.

    Raises:
        DefinitionError: it could not work; says why. What needs resolved annotations is said by the pipeline.
    """

    __slots__ = ("arms",)

    @overload
    def __init__(
        self,
        id: str,
        *,
        decide: Callable[[Invocation[In_contra, D_contra]], Coroutine[Any, Any, K]],
        arms: Mapping[K, Sequence[AnyStep[In_contra, D_contra]]],
        when: Callable[[Invocation[In_contra, D_contra]], bool] | None = ...,
        timeout: Duration | None = ...,
        retry: Retry | None = ...,
        needs: Sequence[Need] = ...,
        on_cancel: OnCancel = ...,
    ) -> None: ...
    @overload
    def __init__(
        self,
        id: str,
        *,
        decide: Callable[[Invocation[In_contra, D_contra]], K],
        arms: Mapping[K, Sequence[AnyStep[In_contra, D_contra]]],
        when: Callable[[Invocation[In_contra, D_contra]], bool] | None = ...,
        timeout: Duration | None = ...,
        retry: Retry | None = ...,
        needs: Sequence[Need] = ...,
        on_cancel: OnCancel = ...,
    ) -> None: ...
    def __init__(
        self,
        id: str,
        *,
        decide: AnyFunction,
        arms: Mapping[K, Sequence[AnyStep[In_contra, D_contra]]],
        when: AnyFunction | None = None,
        timeout: Duration | None = None,
        retry: Retry | None = None,
        needs: Sequence[Need] = (),
        on_cancel: OnCancel = "cancel",
    ) -> None:
        checked = check_options(id, when=when, timeout=timeout, retry=retry, needs=needs, on_cancel=on_cancel)
        where = f"branch {id!r}"
        if isinstance(decide, AnyStep):
            raise DefinitionError(f"{where}: decide is a step already; give the function without @step(...)")
        is_async = check_handler(f"{where}: decide", decide, 1)
        super().__init__(handler=decide, is_async=is_async, **checked)
        self.arms: Mapping[K, tuple[ErasedStep, ...]] = _check_arms(where, arms)

    def _find_codec(self) -> Any:
        where = f"branch {self.id!r}"
        found = return_type(where, self.handler)
        if not (isinstance(found, type) and issubclass(found, Enum)) or issubclass(found, Flag):
            raise DefinitionError(
                f"{where}: {name_of(self.handler)} must be annotated to return a plain Enum, of which every member has "
                f"an arm; not {found!r}"[:500]
            )
        strangers = [member for member in self.arms if not isinstance(member, found)]
        if strangers:
            raise DefinitionError(f"{where}: arm {strangers[0]!r} is not a member of {found.__name__}")
        missing = [member.name for member in found if member not in cast("Mapping[Enum, object]", self.arms)]
        if missing:
            raise DefinitionError(
                f"{where}: no arm for {', '.join(f'{found.__name__}.{name}' for name in missing)}; write () for one "
                f"without steps"
            )
        return super()._find_codec()

    def __repr__(self) -> str:
        return f"<{'retired ' if self.retired else ''}branch {self.id!r}>"


class _InArm:
    """The condition of a step in an arm: the decision names this arm, and the step's own condition holds, if any."""

    __slots__ = ("branch", "member", "own")

    def __init__(self, branch: Branch[Any, Any, Any], member: Enum, own: AnyFunction | None) -> None:
        self.branch = branch
        self.member = member
        self.own = own

    def __call__(self, inv: Invocation[Any, Any], /) -> object:
        """False, too, where nothing was decided: the branch was skipped, passed, or retired before."""
        if inv.get(self.branch) is not self.member:
            return False
        return True if self.own is None else self.own(inv)


def expanded(entries: Iterable[object]) -> Iterator[object]:
    """The steps of a pipeline with branches laid out: decision, then the arms; what is no branch stays as it is."""
    for entry in entries:
        yield entry
        if not isinstance(entry, Branch):
            continue
        branch: Branch[Any, Any, Any] = entry  # pyright: ignore[reportUnknownVariableType]  # the author's
        for member, steps in branch.arms.items():
            for step in steps:
                condition = _InArm(branch, member, step.when)
                yield from expanded((in_arm(step, branch, (*branch.arm, (branch.id, member.name)), condition),))


def _check_arms(where: str, arms: object) -> dict[Any, tuple[ErasedStep, ...]]:
    if not isinstance(arms, Mapping) or not arms:
        raise DefinitionError(
            f"{where}: arms must be a mapping from the members of an Enum to steps, not {arms!r}"[:500]
        )
    found: dict[Any, tuple[ErasedStep, ...]] = {}
    for member, steps in cast("Mapping[object, object]", arms).items():
        if not isinstance(member, Enum):
            raise DefinitionError(f"{where}: the key {member!r} of an arm is not a member of an Enum"[:500])
        if isinstance(steps, AnyStep) or not isinstance(steps, Sequence) or isinstance(steps, str):
            raise DefinitionError(
                f"{where}: arm {member.name} must be a tuple of steps, not {steps!r}; a tuple of one ends in a comma"
            )
        for step in cast("Sequence[object]", steps):
            if not isinstance(step, AnyStep):
                raise DefinitionError(f"{where}: arm {member.name} must hold steps, not {step!r}"[:500])
        found[member] = tuple(cast("Sequence[ErasedStep]", steps))
    return found
