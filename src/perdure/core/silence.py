"""Who has been silent for a whole lease: what one worker knows of the others [R-3].

A worker watches the heartbeat counters of the others on its own steady clock, and counts only time in which its own
renewals succeeded: where the store stalls, everybody looks silent, and nobody is dead.
"""

from __future__ import annotations

from collections.abc import Mapping

MISSED_RENEWALS = 2
"""Time between two renewals of one's own counts, unless it is more than so many of their intervals."""


class Silence:
    """How long each of the others has been silent, as far as this worker could see.

    Args:
        lease_s: after so many seconds of silence a worker is to be marked dead.
        interval_s: how often this worker renews.
    """

    def __init__(self, lease_s: float, interval_s: float) -> None:
        self._lease_s = lease_s
        self._longest_s = interval_s * MISSED_RENEWALS
        self._renewed_s: float | None = None
        self._seen: dict[str, tuple[int, float]] = {}

    def heard(self, beats: Mapping[str, int], sent_s: float, answered_s: float) -> list[str]:
        """Note the counters as read after a renewal that succeeded; who has been silent for a whole lease by now.

        A counter is as old as its answer, and may have moved until then: silence counts from there.

        Args:
            beats: of every other worker that is not dead, by id.
            sent_s: when that renewal was sent, on this worker's steady clock.
            answered_s: when the counters had been read, on the same clock.
        """
        passed_s = 0.0 if self._renewed_s is None else sent_s - self._renewed_s
        stalled_s = passed_s if passed_s > self._longest_s else 0.0
        self._renewed_s = sent_s
        silent: list[str] = []
        seen: dict[str, tuple[int, float]] = {}
        for worker, beat in beats.items():
            known, since_s = self._seen.get(worker, (None, 0.0))
            since_s = since_s + stalled_s if known == beat else answered_s
            seen[worker] = beat, since_s
            if sent_s - since_s >= self._lease_s:
                silent.append(worker)
        self._seen = seen
        return silent
