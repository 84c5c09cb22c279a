"""What a simulation knows of the workers of a shared store: renewals, deaths, and what each may do [R-3, D-4]."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from perdure.core.silence import MISSED_RENEWALS
from perdure.ports.store import Append
from perdure.runtime.membership import DEFAULT_LEASE_S, RENEWALS

if TYPE_CHECKING:
    from perdure.testing.simulation.history import History

LEASE_US = round(DEFAULT_LEASE_S * 1_000_000)
INTERVAL_US = LEASE_US // RENEWALS

HEARS_US = 1_000_000
"""So long after a time of deafness a worker may still be catching up."""

LEFT_US = 4 * LEASE_US
"""After so long somebody has found a dead worker, and taken over what it had, where anybody watches."""

FORGOTTEN_US = 3 * LEASE_US
"""After so long a worker has given back what it picked without hearing of it."""


@dataclass
class Member:
    """One worker's life.

    Attributes:
        beat_us: when its counter moved last.
        sent_us: when each of the renewals that it heard to have succeeded was sent.
        deaf_us: until when it could not hear everything, and `deaf` while it cannot.
        by_hand: its row was deleted: it cannot know before its next renewal.
    """

    beat_us: int
    sent_us: list[int] = field(default_factory=list[int])
    deaf_us: int = 0
    deaf: bool = False
    by_hand: bool = False


class Crew:
    """See the module."""

    def __init__(self, history: History) -> None:
        self._history = history
        self.members: dict[str, Member] = {}
        self.appending: dict[bytes, str] = {}
        self._had: dict[str, tuple[str, int]] = {}

    # --- told by stores

    def beats(self, worker: str) -> None:
        """A registration or renewal was written."""
        now_us = self._history.now_us()
        self.members.setdefault(worker, Member(now_us, deaf_us=now_us + HEARS_US)).beat_us = now_us

    def renewed(self, worker: str, sent_us: int) -> None:
        """A worker heard that a renewal has succeeded."""
        self.members[worker].sent_us.append(sent_us)

    def hears(self, worker: str, *, nothing: bool) -> None:
        """From now on a worker is deaf, or hears again."""
        member = self.members.get(worker)
        if member is not None:
            member.deaf, member.deaf_us = nothing, self._history.now_us() + HEARS_US

    def appends(self, append: Append, worker: str) -> None:
        """An owner begins to append: under a lease [R-3]."""
        self.appending[append.append_id] = worker
        past_us = self._past_us(worker)
        if past_us >= 0:
            self._history.blame(append.run_id, "R-3", f"{worker} appends {past_us} us after its lease")

    def _past_us(self, worker: str) -> int:
        """For how long a worker's lease has been over; negative while it lasts."""
        member = self.members.get(worker)
        sent_us = member.sent_us if member is not None else []
        return self._history.now_us() - (sent_us[-1] if sent_us else -LEASE_US) - LEASE_US

    def buried(self, worker: str, by: str) -> None:
        """A worker was marked dead: nothing was heard of it for a lease in which the other could renew [R-3]."""
        history = self._history
        history.note(f"{by} buries {worker}")
        history.count("worker found dead")
        member = self.members[worker]
        silent_us = history.now_us() - member.beat_us
        if silent_us < LEASE_US:
            history.blame("", "R-3", f"{by} marked {worker} dead after {silent_us} us of silence")
        counted_us = self._counted(by, member.beat_us)
        if counted_us < LEASE_US - 1_000:
            history.blame("", "R-3", f"{by} marked {worker} dead, and could itself renew for {counted_us} us of it")

    def _counted(self, by: str, since_us: int) -> int:
        """Time since then in which a worker renewed without missing more than it may."""
        watcher = self.members.get(by)
        sent = watcher.sent_us if watcher is not None else []
        return sum(
            later - max(before, since_us)
            for before, later in pairwise(sent)
            if later > since_us and later - before <= INTERVAL_US * MISSED_RENEWALS
        )

    # --- asked

    def alive(self, worker: str) -> bool:
        """Whether a worker's row is there, and it was not marked dead."""
        row = self._history.workers.get(worker)
        return row is not None and not row.dead

    def deaf(self, worker: str, since_us: int) -> bool:
        """See `Law.deaf`: paused, without notices, or found dead and not aware of it yet."""
        member = self.members.get(worker)
        return member is None or member.deaf or member.deaf_us >= since_us or not self.alive(worker)

    def holds_for(self, worker: str, us: int) -> bool:
        """Whether a worker has renewed as it should, and heard everything, for so long."""
        member, now_us = self.members.get(worker), self._history.now_us()
        if member is None or self.deaf(worker, now_us - us):
            return False
        sent = [at_us for at_us in member.sent_us if at_us >= now_us - us - INTERVAL_US]
        times = [now_us - us, *sent, now_us]
        return bool(sent) and all(later - before <= 2 * INTERVAL_US for before, later in pairwise(times))

    # --- judged

    def check_begins(self, run_id: str, worker: str) -> None:
        """No effect starts past a lease, or after its worker was found dead [R-3]."""
        past_us, member = self._past_us(worker), self.members.get(worker)
        if past_us >= 0:
            self._history.blame(run_id, "R-3", f"a handler starts at {worker}, {past_us} us after its lease")
        if not self.alive(worker) and (member is None or not member.by_hand):
            self._history.blame(run_id, "R-3", f"a handler starts at {worker}, which was found dead")

    def check_append(self, append: Append) -> None:
        """A dead worker commits nothing [R-3]."""
        worker = self.appending.get(append.append_id)
        if worker and append.token and not self.alive(worker):
            self._history.blame(append.run_id, "R-3", f"{worker} is dead, and committed")

    def check_owners(self) -> None:
        """Every owner lives or is found dead in time; what was picked is claimed or given back [R-16, R-3]."""
        history, now_us = self._history, self._history.now_us()
        watched = any(self.holds_for(worker, LEFT_US) for worker in history.workers)
        had, self._had = self._had, {}
        for run_id, judge in history.judges.items():
            run = history.run(run_id)
            state = run.state if run is not None else None
            if judge.ended is not None or state is None or not state.worker:
                continue
            worker = state.worker
            known, since_us = had.get(run_id, ("", now_us))
            since_us = since_us if known == worker else now_us
            self._had[run_id] = worker, since_us
            if not history.lives(worker):
                gone_us = max(since_us, self.members[worker].beat_us if worker in self.members else since_us)
                late = now_us - gone_us > LEFT_US and now_us - judge.told_us > LEFT_US
                if late and watched:
                    history.blame(run_id, "R-3", f"{worker} is gone for long, and nobody takes the run over")
            elif state.status != "running":
                forgotten = now_us - max(since_us, judge.told_us) > FORGOTTEN_US
                if forgotten and self.holds_for(worker, FORGOTTEN_US):
                    history.blame(run_id, "R-16", f"{worker} has picked the run for long, and does nothing with it")
