"""What others committed, as far as somebody has to act on it."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from perdure.ports.records import Append

LATER_US = 2_000_000
"""A run that is due so much later is no news: whoever has to find it will have looked by then."""


class Change(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """What others committed; a listener may be told of more than that, never of less.

    Attributes:
        due: runs are due that any engine may take.
        outside: facts were appended to runs from outside of their engines.
        runs: ids of runs about which something changed that who waits for them may want to know.
        anything: what it is, is not known, or all of it concerns everybody: everything has to be looked at.
    """

    due: bool = False
    outside: bool = False
    runs: tuple[str, ...] = ()
    anything: bool = False

    @property
    def urgent(self) -> bool:
        """Somebody has to act on it, whether or not anybody waits for one of the runs."""
        return self.due or self.outside or self.anything


ANYTHING = Change(anything=True)


def all_of(changes: Iterable[Change | None]) -> Change | None:
    """All of them as one; None if there are none."""
    found = [change for change in changes if change is not None]
    if len(found) < 2:
        return found[0] if found else None
    if any(change.anything for change in found):
        return ANYTHING
    runs = tuple([run_id for change in found for run_id in change.runs])
    return Change(any(change.due for change in found), any(change.outside for change in found), runs)


def change_of(append: Append) -> Change | None:
    """What others have to know of an append soon: the engine of its run, one that is free, or who waits for its end.

    An owner's own progress is nobody else's business until the run rests or ends, nor is a run that its submitter goes
    on with. What is due later is found by looking, which every engine does once a second [R-7]. What an append passes
    on to other runs, as a slot, the store tells besides.
    """
    state, new = append.index, append.new
    if new is None and append.token == 0:
        return Change(due=state is not None, outside=True, runs=(append.run_id,))
    if state is None or state.worker:
        return None
    later = False
    if state.status == "ready":
        if state.due_us is None or state.permits or state.awaits or (new is not None and new.waits):
            return ANYTHING  # it waits for others, who have to know, whatever its deadline
        later = state.due_us >= append.at_us + LATER_US
    due = state.due_us is not None and not later
    if new is None:
        return Change(due, runs=(append.run_id,))
    if later:
        return None
    return ANYTHING if new.waits or new.entrances or append.permits else Change(due)


__all__ = ["ANYTHING", "LATER_US", "Change", "all_of", "change_of"]
