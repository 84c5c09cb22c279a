"""What travels in a group."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from perdure.ports.store import Append, AppendResult, IndexState, Snapshot


class SetIndex(msgspec.Struct, frozen=True, gc=False):
    """`Store.set_index`, queued."""

    locator: int
    state: IndexState
    tail_seq: int


class PutSnapshot(msgspec.Struct, frozen=True, gc=False):
    """`Store.put_snapshot`, queued."""

    locator: int
    snapshot: Snapshot


Entry: TypeAlias = Append | SetIndex | PutSnapshot
"""What travels in a group."""

EntryResult: TypeAlias = AppendResult | bool

LATER_US = 2_000_000
"""A run that is due so much later is no news: whoever has to find it will have looked by then."""


def wakes_others(entry: Entry) -> bool:
    """Whether somebody in another process may have to act on an entry soon: its engine, one that is free, or a client
    that waits for an end.

    An owner's own progress is nobody else's business until the run rests or ends, nor is a run that its submitter goes
    on with. What is due later is found by looking, which every engine does once a second [R-7].
    """
    if type(entry) is not Append:
        return type(entry) is SetIndex
    state = entry.index
    if entry.new is None and (entry.token == 0 or state is None):
        return entry.token == 0
    if state is None or state.worker:
        return False
    return state.status != "ready" or state.due_us is None or state.due_us < entry.at_us + LATER_US


def state_of(entry: Entry) -> IndexState | None:
    """The index row that it writes, if any."""
    return entry.index if type(entry) is Append else entry.state if type(entry) is SetIndex else None
