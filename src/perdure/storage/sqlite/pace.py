"""When the event loop commits by itself, and when the writing thread does."""

from __future__ import annotations

QUICK_S = 0.0005
"""A commit that usually takes no longer may hold up the loop."""
UNKNOWN_S = 0.005
"""What a commit is taken to cost before the first."""
LONE_IN_A_ROW = 8
"""So many jobs in a row that met no other make it likely that the next one travels alone, too."""
CHECKPOINT_EVERY = 1000
"""Commits of the loop after which the thread empties the log, before SQLite does so within a commit (4000 pages)."""


class Pace:
    """Whether a lone job is committed by the loop itself: that saves two changes of thread, half of what a step costs.

    Only where commits are quick, so that the loop is not kept from its other work; and only while jobs come one by one,
    because those that meet in the thread share a commit. For the loop, but `took`, which is for whoever has the turn.
    """

    __slots__ = ("_commits", "_lone", "_usual_s")

    def __init__(self) -> None:
        self._usual_s = UNKNOWN_S
        self._lone = 0
        self._commits = 0

    def met(self) -> None:
        """Jobs came together."""
        self._lone = 0

    def lone(self) -> bool:
        """A job came alone; whether the loop may commit it."""
        self._lone += 1
        return self._lone > LONE_IN_A_ROW and self._usual_s < QUICK_S

    def took(self, seconds: float) -> None:
        """A commit took so long: the newest counts an eighth, so one slow commit ends it for a while."""
        self._usual_s += (seconds - self._usual_s) / 8

    def checkpoint_is_due(self) -> bool:
        """The loop has committed; whether it is time for the thread to empty the log."""
        self._commits = (self._commits + 1) % CHECKPOINT_EVERY
        return self._commits == 0
