"""Mutexes of a pipeline: names that at most one run has for a resource, of whatever pipeline [R-10]."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from perdure.core.facts import SlotMode
from perdure.define.names import name_problem
from perdure.errors import DefinitionError


def check_mutexes(where: str, mutexes: object, slot: SlotMode) -> tuple[str, ...]:
    """The names, sorted.

    Raises:
        DefinitionError: not names, one of them twice, or of a pipeline whose runs wait for their slot.
    """
    if isinstance(mutexes, str) or not isinstance(mutexes, Sequence):
        raise DefinitionError(
            f"{where}: mutexes must be a tuple of names, not {mutexes!r}; a tuple of one ends in a comma"[:300]
        )
    found: set[str] = set()
    for name in cast("Sequence[object]", mutexes):
        problem = name_problem(name)
        if problem is not None or not isinstance(name, str):
            raise DefinitionError(f"{where}: mutex {name!r} {problem}"[:300])
        if name in found:
            raise DefinitionError(f"{where} names mutex {name!r} twice")
        found.add(name)
    if found and slot == "serial":
        raise DefinitionError(f"{where}: slot='serial' cannot have mutexes: a run does not wait for a mutex")
    return tuple(sorted(found))
