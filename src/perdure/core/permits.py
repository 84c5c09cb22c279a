"""Places under a limit: what an operation or a run has to have before it starts [R-11].

Limits decide when something happens, never what: they are no part of the journal.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

LimitKind: TypeAlias = Literal["concurrency", "in_flight", "rate"]
"""What a limit counts: operations that execute, runs that have begun and not ended, starts per second."""


class Permit(msgspec.Struct, frozen=True, gc=False):
    """One place under a limit, for one key.

    Attributes:
        limit: the limit's id.
        key: what it counts apart; empty where it counts all together.
        bound: how many there are; of a rate, the microseconds from one start to the next.
        shared: counted across the store; otherwise in this process.
    """

    limit: str
    key: str
    kind: LimitKind
    bound: int
    shared: bool = True

    @property
    def words(self) -> str:
        """For people: the limit, and the key where it has one."""
        return f"limit {self.limit!r}" + (f" key {self.key!r}" if self.key else "")


class Entrance(msgspec.Struct, frozen=True, gc=False):
    """How many runs may have been submitted and not ended under a limit that bounds its queue, for one key.

    Attributes:
        limit: the limit's id.
        key: what it counts apart; empty where it counts all together.
        bound: how many are in flight.
        queue: how many more may wait.
    """

    limit: str
    key: str
    bound: int
    queue: int

    @property
    def room(self) -> int:
        """For how many there is room in all."""
        return self.bound + self.queue


class Limited(msgspec.Struct, frozen=True, gc=False):
    """A run rests, because a limit has no place for what it does next [R-11].

    Attributes:
        permit: the place that it waits for.
        due_us: when to look again, whatever was heard until then; 0: the store says when its turn has come.
        needs: all the places of the store that it needs, in the order in which they are taken.
    """

    permit: Permit
    due_us: int = 0
    needs: tuple[Permit, ...] = ()
