"""What a store does for index rows that are lost, or wrong: they are computed anew from the facts [J-11]."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from perdure.ports.records import IndexState, JournalRow, NewRun


class LostRun(msgspec.Struct, frozen=True, gc=False):
    """A run that has a journal and no index row.

    Attributes:
        worker: whose it was when the row was lost; empty: nobody's.
        rows: all of its journal.
    """

    locator: int
    run_id: str
    worker: str
    rows: Sequence[JournalRow]


class Restored(msgspec.Struct, frozen=True, gc=False):
    """An index row that was computed from the facts.

    Attributes:
        tail_seq: where the last row of the journal begins that it was computed from.
        slot_held: it has its slot, unless another run has it by now.
    """

    locator: int
    new: NewRun
    state: IndexState
    ended_us: int | None
    slot_held: bool
    tail_seq: int


class IndexStore(Protocol):
    """Part of `Store`."""

    async def missing_index(self, limit: int, /) -> Sequence[str]:
        """Ids of runs that have a journal but no index row, at most `limit`; costs next to nothing where none has."""
        ...

    async def lost_runs(self, limit: int, after: int = 0, /) -> Sequence[LostRun]:
        """Such runs with their journals, by number, those after number `after`; at most `limit`, and fewer where their
        journals are long. None is left: there are no more after that number."""
        ...

    async def restore_lost(self, rows: Sequence[Restored], /) -> int:
        """Put back index rows that are missing, all in one transaction; returns how many.

        A run that has its row by now, or whose journal goes on after `tail_seq`, is left as it is: somebody was faster.
        A slot or a mutex that another run holds by now stays with that run.
        """
        ...

    async def journal_of(self, run_id: str, /) -> tuple[int, Sequence[JournalRow]] | None:
        """Locator and all rows of a run, index row or not."""
        ...

    async def restore_index(
        self, locator: int, new: NewRun, state: IndexState, ended_us: int | None, /, *, slot_held: bool
    ) -> None:
        """Insert or replace an index row that was computed from the facts; clears `attention`. A slot or a mutex that
        another run holds by now stays with that run, whatever `slot_held` says."""
        ...
