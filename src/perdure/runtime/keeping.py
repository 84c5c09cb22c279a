"""Retention as the work of an engine: every hour or so, what ended long ago goes, with or without an archive [R-9]."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from perdure.ports.archive import Archive
from perdure.ports.clock import System
from perdure.ports.store import Store
from perdure.runtime.retention import gc

logger = logging.getLogger("perdure")

FIRST_S = 60.0
"""The first look comes within this time of the start, at a moment of chance: engines start together."""

LEAST_S, MOST_S = 60.0, 3600.0
"""Bounds of the time from one look to the next, which is about a tenth of the age."""


class Keeper:
    """Looks for runs to remove, again and again. Those of several engines on one store do not harm each other.

    Args:
        age_us: how long runs stay after their end.
        open_archive: gives the archive, not yet opened; None: they are removed without one.
        label: what the store is called there.
    """

    def __init__(
        self, store: Store, system: System, *, age_us: int, open_archive: Callable[[], Archive] | None, label: str
    ) -> None:
        self._store = store
        self._system = system
        self._age_us = age_us
        self._open_archive = open_archive
        self._label = label
        self._task: asyncio.Task[None] | None = None
        self._named: set[str] = set()
        self._problem = ""

    def start(self) -> None:
        """Begin to look."""
        self._task = asyncio.get_running_loop().create_task(self._forever(), name="perdure-retention")

    async def stop(self) -> None:
        """Look no more, at once: what is half done is done again by the next one. Idempotent."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None

    async def _forever(self) -> None:
        delay_s = FIRST_S * self._system.chance()
        while True:
            await asyncio.sleep(delay_s)
            try:
                await self._look()
                self._problem = ""
            except Exception as error:
                if str(error) != self._problem:  # an archive that is gone is not named every hour
                    logger.warning("runs that ended long ago could not be removed: %s", error)
                self._problem = str(error)
            delay_s = min(max(self._age_us / 1e6 / 10, LEAST_S), MOST_S) * (0.75 + 0.5 * self._system.chance())

    async def _look(self) -> None:
        now_us = self._system.now_us()
        if not await self._store.ended_runs(now_us - self._age_us, 1):
            return
        if self._open_archive is None:
            await self._gc(now_us, None)
            return
        archive = self._open_archive()
        try:
            await archive.open(create=True)
            await self._gc(now_us, archive)
        finally:
            await archive.close()

    async def _gc(self, now_us: int, archive: Archive | None) -> None:
        report = await gc(
            self._store,
            now_us,
            now_us - self._age_us,
            limit=None,
            archive=archive,
            label=self._label,
            progress=None,
        )
        if report.removed:
            logger.info("runs that ended long ago: %d removed, %d archived before", report.removed, report.archived)
        for finding in report.findings:
            if finding.run_id not in self._named:
                self._named.add(finding.run_id)
                logger.warning("run %s ended long ago, and is not archived: %s", finding.run_id, finding.problem)
