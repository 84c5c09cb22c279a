"""The difference between two futures of one run: what a deployment changes for it [D-6]."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from perdure.core.facts import Shape
from perdure.core.future import End, Future, Missing, Retyped
from perdure.core.operations import InvalidOp, InvalidReason

Validity: TypeAlias = Literal["", "becomes invalid", "stays invalid", "mended"]


class Effects(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What changes for a run. Hashable, so that runs can be counted by it.

    Attributes:
        validity: whether it becomes invalid, stays so, or goes on again.
        reason: why it is invalid afterwards.
        steps: the steps that are the reason.
        gains: steps ahead that were not.
        loses: steps that were ahead, and are not; without those it passes.
        passes: steps that others run and that this run never will, because it is past their place [E-7].
        misses: states that a step ahead will ask for in vain, whatever was deployed before: the run becomes invalid
            there [M-14].
        leaks: effects that could be undone, and can be no more [U-9].
        brittle: if it fails before it has finished another step it becomes invalid, and would not have [U-6].
        undoes: steps that it will unwind and would not have.
        reordered: the same steps ahead in another order.
        ends: how it ended and how it ends instead; both empty where that is the same.
        shape, became: of a run that is invalid afterwards, as in `Future`.
        retyped: states that will be read as another type than they were stored as.
    """

    validity: Validity = ""
    reason: InvalidReason | Literal[""] = ""
    steps: tuple[str, ...] = ()
    gains: tuple[str, ...] = ()
    loses: tuple[str, ...] = ()
    passes: tuple[str, ...] = ()
    misses: tuple[Missing, ...] = ()
    leaks: tuple[str, ...] = ()
    brittle: bool = False
    undoes: tuple[str, ...] = ()
    reordered: bool = False
    ends: tuple[End, ...] = ()
    shape: Shape | Literal[""] = ""
    became: Shape | Literal[""] = ""
    retyped: tuple[Retyped, ...] = ()

    @property
    def none(self) -> bool:
        """The run goes on unchanged."""
        return self == _NONE

    @property
    def breaks(self) -> bool:
        """The run becomes invalid, at once or at a step ahead."""
        return self.validity == "becomes invalid" or bool(self.misses)


_NONE = Effects()


def compare(was: Future | None, new: Future) -> Effects:
    """What changes for a run between two futures; `was` None: nobody knows what it would have done."""
    if type(new.op) is InvalidOp:
        known = was is not None and was.end == "invalid"
        validity: Validity = "stays invalid" if known else "becomes invalid"
        return Effects(validity, new.op.reason, new.why, shape=new.shape, became=new.became)
    if was is None:
        return Effects(misses=new.missing, retyped=new.retyped)
    retyped = tuple(found for found in new.retyped if found not in was.retyped)
    if was.end == "invalid":
        leaks = tuple(sorted(new.leaks - was.leaks))
        return Effects("mended", misses=new.missing, leaks=leaks, retyped=retyped)
    passes = _without(new.never, was.never)
    both = set(was.ahead) & set(new.ahead)
    undone = set(was.unwinds) & set(new.unwinds)
    reordered = _kept(was.ahead, both) != _kept(new.ahead, both)
    return Effects(
        gains=_without(new.ahead, was.ahead),
        loses=_without(was.ahead, (*new.ahead, *passes)),
        passes=passes,
        misses=new.missing,
        leaks=tuple(sorted(new.leaks - was.leaks)),
        brittle=new.brittle and not was.brittle,
        undoes=_without(new.unwinds, was.unwinds),
        reordered=reordered or _kept(was.unwinds, undone) != _kept(new.unwinds, undone),
        ends=(was.end, new.end) if was.end != new.end else (),
        retyped=retyped,
    )


def _without(ids: tuple[str, ...], others: tuple[str, ...]) -> tuple[str, ...]:
    if ids == others:
        return ()
    known = set(others)
    return tuple(step for step in ids if step not in known)


def _kept(ids: tuple[str, ...], kept: set[str]) -> list[str]:
    return [step for step in ids if step in kept]
