"""The ordered steps of a pipeline with their flags, as a value [E-1, D-4]."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import msgspec

from perdure.core.facts import Shape
from perdure.errors import DefinitionError


class StepSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """What reconciliation needs to know of one step; handler code does not count [D-4].

    Attributes:
        id: the step id, which names the step's semantics.
        unwind: the step declares an unwind handler.
        in_doubt: the step declares a handler for unwinding in doubt [U-12]; needs `unwind`.
        retired: never started any more, but finished where it was started [E-9].
        conditional: the step has a condition [E-12].
        settle: a cancel lets the step retry to its own resolution first [R-12].
        shape: what the step is; what it waits for, and how long, is no part of the topology [B-15, B-20].
        leaves: a cancel does not wait for the child runs of the step, which go on [B-21].
    """

    id: str
    unwind: bool = False
    in_doubt: bool = False
    retired: bool = False
    conditional: bool = False
    settle: bool = False
    shape: Shape = "handler"
    leaves: bool = False


class Topology:
    """Ordered steps, immutable, with positions by id and what earlier generations declared.

    `ever_unwind` and `ever_in_doubt` name the steps that declared unwind, or unwind in doubt, in some
    deployed generation of the pipeline, this one included; the lists of U-9 need them.
    """

    __slots__ = ("digest", "ever_in_doubt", "ever_unwind", "ids", "position", "steps")

    def __init__(
        self,
        steps: Iterable[StepSpec],
        *,
        ever_unwind: Iterable[str] = (),
        ever_in_doubt: Iterable[str] = (),
    ) -> None:
        self.steps: tuple[StepSpec, ...] = tuple(steps)
        self.ids: tuple[str, ...] = tuple(step.id for step in self.steps)
        self.position: dict[str, int] = {step_id: i for i, step_id in enumerate(self.ids)}
        if len(self.position) != len(self.ids):
            twice = next(s for i, s in enumerate(self.ids) if s in self.ids[:i])
            raise DefinitionError(f"step {twice!r} stands in the pipeline twice")
        self.digest: str = hashlib.sha256(encode_steps(self.steps)).hexdigest()
        self.ever_unwind: frozenset[str] = frozenset(ever_unwind) | {s.id for s in self.steps if s.unwind}
        self.ever_in_doubt: frozenset[str] = frozenset(ever_in_doubt) | {s.id for s in self.steps if s.in_doubt}

    def __len__(self) -> int:
        return len(self.steps)

    def after(self, former: Iterable[Topology]) -> Topology:
        """This topology, knowing what `former` generations declared."""
        generations = tuple(former)
        return Topology(
            self.steps,
            ever_unwind=frozenset[str]().union(*(t.ever_unwind for t in generations)),
            ever_in_doubt=frozenset[str]().union(*(t.ever_in_doubt for t in generations)),
        )


def encode_steps(steps: tuple[StepSpec, ...]) -> bytes:
    """The canonical JSON of the steps: what a deployment stores and what its digest covers."""
    return msgspec.json.encode(steps)


def decode_steps(data: bytes) -> tuple[StepSpec, ...]:
    """Steps as `encode_steps` wrote them.

    Raises:
        msgspec.DecodeError: the bytes are not a stored topology.
    """
    return msgspec.json.decode(data, type=tuple[StepSpec, ...])
