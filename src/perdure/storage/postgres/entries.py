"""What travels in a group."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import msgspec

from perdure.ports.changes import all_of, change_of
from perdure.ports.store import ANYTHING, Append, AppendResult, Change, IndexState, Snapshot


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


def told(entries: Iterable[Entry]) -> Change | None:
    """What others have to know of entries soon; None: nothing."""
    return all_of(map(_change, entries))


def _change(entry: Entry) -> Change | None:
    if type(entry) is Append:
        return change_of(entry)
    return ANYTHING if type(entry) is SetIndex else None


def state_of(entry: Entry) -> IndexState | None:
    """The index row that it writes, if any."""
    return entry.index if type(entry) is Append else entry.state if type(entry) is SetIndex else None
