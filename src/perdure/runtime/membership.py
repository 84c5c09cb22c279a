"""An engine as one of many workers of a shared store [R-2, R-3].

Its heart renews the lease, watches the counters of the others, buries who has been silent for a whole lease, makes due
what the dead left, and looks after what is its own: runs that the store calls its own and that it does not know, newer
generations, its death.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress

from perdure.core.silence import Silence
from perdure.ports.store import WorkerRow
from perdure.runtime.guarding import give_back
from perdure.runtime.host import Host
from perdure.runtime.misfits import Misfits
from perdure.runtime.registry import find
from perdure.runtime.storetime import StoreTime

logger = logging.getLogger("perdure")

DEFAULT_LEASE_S = 15.0

RENEWALS = 3
"""A lease is renewed so many times in its length."""

MARGIN = 0.2
"""The last part of a lease is not used: clocks of two machines run at slightly different rates, and what was begun
has to reach the outside world."""

LEAVE_S = 5.0
"""So long a worker that ends tries to take its row away; the others find out by themselves."""

TOLD_AGAIN_S = 60.0
"""A store that cannot be reached is told of once, and again after so long; retries come several times a second."""


class Membership:
    """One engine among the workers of its store.

    Args:
        known: ids of runs that this engine has or is about to have.
        picking: a number of the pick under way, of which it may not know the runs yet.
        due: something may be due now.
    """

    def __init__(
        self,
        host: Host,
        lease_s: float,
        schedules: Sequence[str],
        *,
        known: Callable[[], set[str]],
        picking: Callable[[], int | None],
        due: Callable[[], None],
    ) -> None:
        self._host = host
        self._lease_s = lease_s
        self._schedules = tuple(schedules)
        self._interval_s = lease_s / RENEWALS
        self._known, self._picking, self._due = known, picking, due
        self._silence = Silence(lease_s, self._interval_s)
        self._misfits = Misfits(host, due)
        self._unknown: dict[str, int | None] = {}
        self._since_us = host.system.now_us()
        self._told: set[str] = set()
        self._task: asyncio.Task[None] | None = None
        self._doubted = asyncio.Event()
        host.fenced = self._doubted.set

    async def join(self) -> None:
        """Register, and begin to beat. The host's lines are there."""
        await self._register()
        await self._note_generations()
        self._task = self._host.loop.create_task(self._forever(), name="perdure-heart")

    async def _register(self) -> None:
        sent_s = self._host.system.steady_s()
        await self._host.store.register(self._row())
        self._renewed(sent_s)

    def _row(self) -> WorkerRow:
        host = self._host
        now_us = host.system.now_us()
        return WorkerRow(
            host.worker,
            socket.gethostname(),
            os.getpid(),
            self._since_us,
            host.serving,
            host.options.build,
            self._schedules,
            seen_us=now_us,
            lease_us=round(self._lease_s * 1_000_000),
        )

    def _renewed(self, sent_s: float) -> None:
        self._host.lease.renewed(sent_s + self._lease_s * (1 - MARGIN))

    async def look_for_misfits(self) -> None:
        """Runs that cannot go on here say so at once, if no older worker is there for them [D-3, D-4]."""
        rows = await self._host.store.workers()
        self._misfits.noted([row for row in rows if not row.dead and row.id != self._host.worker])
        await self._misfits.look()

    def cancel(self) -> None:
        """Beat no more, at once; what waits for a renewal is lost."""
        if self._task is not None:
            self._task.cancel()
        self._host.lease.end()

    async def leave(self) -> None:
        """Beat no more, and take this worker's row away: nobody has to wait for its lease to end."""
        host = self._host
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None
        try:
            async with asyncio.timeout(LEAVE_S):
                await host.store.retire(host.worker)
                await host.store.take_over(host.system.now_us())
        except TimeoutError:
            logger.warning("worker %s could not take leave: the store has not answered for %g s", host.worker, LEAVE_S)
        except Exception as error:  # the others find out by themselves
            logger.warning("worker %s could not take leave: %s", host.worker, error)
        host.lease.end()

    async def _forever(self) -> None:
        steady_s = self._host.system.steady_s
        wait_s, quiet_until_s, told = self._interval_s, -math.inf, ""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._doubted.wait()
            self._doubted.clear()
            failed = "could not renew its lease"
            try:
                sent_s, now_us = steady_s(), self._host.system.now_us()
                if await self._renew(sent_s, now_us):
                    failed = "renewed its lease, but could not look after the others"
                    await self._look_around(sent_s, now_us)
                wait_s, quiet_until_s = self._interval_s, -math.inf
            except Exception as error:
                if steady_s() >= quiet_until_s or failed != told:
                    logger.warning("worker %s %s: %s", self._host.worker, failed, error)
                    quiet_until_s, told = steady_s() + TOLD_AGAIN_S, failed
                wait_s = self._interval_s / 4

    async def _renew(self, sent_s: float, now_us: int) -> bool:
        """Whether this worker is alive, and goes on as the same."""
        host = self._host
        if not await host.store.renew(host.worker, now_us, draining=host.draining):
            await self._begin_anew()
            return False
        self._renewed(sent_s)
        return True

    async def _look_around(self, sent_s: float, now_us: int) -> None:
        """What fails here is looked at again with the next renewal, which comes sooner then."""
        host = self._host
        if isinstance(host.system, StoreTime):
            await host.system.ask(host.store)
        await self._note_generations()
        await self._look_at_others(sent_s)
        if await host.store.take_over(now_us):
            self._due()
        await self._look_for_unknown()

    async def _begin_anew(self) -> None:
        """This worker was found dead: what it had is others' by now, and it goes on as another [R-3]."""
        host = self._host
        former, host.worker = host.worker, host.system.worker_id()
        count = host.disown()
        logger.warning(
            "worker %s was found dead by another, or its row is gone: was it paused for long? Its %d runs are others' "
            "now; it goes on as worker %s",
            former,
            count,
            host.worker,
        )
        self._silence = Silence(self._lease_s, self._interval_s)
        self._unknown.clear()
        while True:
            try:
                await self._register()
                break
            except Exception as error:
                logger.warning("worker %s could not register: %s", host.worker, error)
                await asyncio.sleep(self._interval_s / 4)
        await host.store.take_over(host.system.now_us())  # nobody else may be there to do it
        self._due()

    async def _look_at_others(self, sent_s: float) -> None:
        host = self._host
        rows = await host.store.workers()
        others = {row.id: row for row in rows if not row.dead and row.id != host.worker}
        beats = {id: row.beat for id, row in others.items()}
        for silent in self._silence.heard(beats, sent_s, host.system.steady_s()):
            row = others[silent]
            if await host.store.bury(silent, row.beat):
                logger.warning(
                    "worker %s (process %d on %s) has been silent for %g s: it is dead, and its %d runs are due",
                    silent,
                    row.process,
                    row.host,
                    self._lease_s,
                    row.runs,
                )
        host.newer = frozenset(
            line.id
            for line in host.lines.values()
            if any(row.serves.get(line.id, 0) > line.generation and not row.draining for row in others.values())
        )
        self._misfits.noted(list(others.values()))
        await self._misfits.look()

    async def _look_for_unknown(self) -> None:
        """Runs picked by a statement whose answer was lost are nobody's, nor are claimed ones of which the server lost
        how they went on: they are due again [R-16, J-2].

        Such a run is found a second time, after the end of the pick that was under way at the first.
        """
        host = self._host
        before = self._known()
        owned = await host.store.owned(host.worker)
        unknown = set(owned) - before - self._known()
        pick = self._picking()
        lost = sorted(id for id in unknown & self._unknown.keys() if pick is None or self._unknown[id] != pick)
        self._unknown = {id: self._unknown.get(id, pick) for id in unknown}
        if lost:
            logger.warning("%d of the runs of this worker are unknown to it; they are due again", len(lost))
            await host.store.unpick(host.worker, lost, host.system.now_us())
            for run_id in set(lost) & set(await host.store.owned(host.worker)) - self._known():
                await give_back(host, run_id)
            self._unknown = {id: seen for id, seen in self._unknown.items() if id not in lost}
            self._due()

    async def _note_generations(self) -> None:
        """Learn which generations there are; a rollback may have made this worker's own the newest again [D-4, D-5]."""
        host = self._host
        host.newest = await host.store.generations()
        moved = False
        for line in host.lines.values():
            newest = host.newest.get(line.id, 0)
            if newest <= line.generation:
                continue
            found = await find(host.store, line.id, line.topology)
            own = 0 if found is None else found[1]
            if found is not None and own > line.generation:
                (line.topology, line.generation), moved = found, True
                self._misfits.owe(line)
            if own < newest and line.id not in self._told:
                self._told.add(line.id)
                logger.warning(
                    "pipeline %r: generation %d is deployed by now, and this worker has %d: it serves only runs that "
                    "no newer generation advanced",
                    line.id,
                    newest,
                    own,
                )
        if moved:
            await host.store.register(self._row())
            self._due()
