"""Retention: what ended long ago is removed, and archived before that if an archive is given [R-9].

A part is written whole and durable before the first of its runs is removed, and only what was read for it is removed.
If the process dies in between, the runs are in both places: they are archived again, and restored once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence

from perdure.errors import ArchiveUnavailable
from perdure.ports.archive import Archive
from perdure.ports.store import EndedRun, LoadedRun, RunTail, Store
from perdure.runtime.archived import archive_problem, chain_problem, encode_line, release
from perdure.runtime.info import Finding, GcReport
from perdure.runtime.parts import Part, PartName, encode_index, part_name

BATCH = 500
"""Runs that are removed at a time, and runs of a part."""

PART_BYTES = 32_000_000
"""A part whose lines have so many bytes takes no further run."""

REMOVE_ROWS = 1_000
"""Journal rows that one transaction removes, if there are not more in one run alone."""


async def gc(
    store: Store,
    now_us: int,
    before_us: int,
    *,
    limit: int | None,
    archive: Archive | None,
    label: str,
    progress: Callable[[int], None] | None,
) -> GcReport:
    """Remove what ended before; see `Client.gc`."""
    due = await store.count_ended(before_us)
    await store.forget_keys(now_us)
    removed = archived = 0
    parts: list[str] = []
    findings: list[Finding] = []
    if archive is None:
        async for count in _batches(store, before_us, limit):
            removed += count
            if progress is not None:
                progress(removed)
    else:
        archiver = Archiver(store, archive, label)
        async for part in archiver.parts(before_us, limit):
            archived += part.runs
            parts.append(str(part))
            removed = archiver.removed
            if progress is not None:
                progress(removed)
        findings = archiver.findings
    reclaimed = await store.reclaim() if removed else 0
    return GcReport(removed, reclaimed, max(due - removed, 0), archived, tuple(parts), tuple(findings))


async def _batches(store: Store, before_us: int, limit: int | None) -> AsyncIterator[int]:
    removed = 0
    while limit is None or removed < limit:
        count = await store.remove_ended(before_us, BATCH if limit is None else min(BATCH, limit - removed))
        if not count:
            return
        removed += count
        yield count


class Archiver:
    """Moves ended runs from a store to an archive, part by part. Any number of them may work on both at once.

    Attributes:
        removed: runs so far.
        findings: runs that stay: their journals are damaged, so that what was archived would be, too.
    """

    def __init__(self, store: Store, archive: Archive, label: str) -> None:
        self.removed = 0
        self.findings: list[Finding] = []
        self._store = store
        self._archive = archive
        self._label = label

    async def parts(self, before_us: int, limit: int | None) -> AsyncIterator[PartName]:
        """Archive and remove, a part at a time; each is given when its runs are gone.

        Raises:
            ArchiveUnavailable: nothing was removed that is not in a part given before.
            StoreUnavailable: likewise, but for runs of one part more.
        """
        known = [name for name in map(part_name, await self._archive.names()) if name is not None]
        number = max((name.number for name in known), default=0)
        there = {(name.runs, name.digest): name for name in known}
        after: EndedRun | None = None
        taken = 0
        while limit is None or taken < limit:
            page = await self._store.ended_runs(
                before_us, BATCH if limit is None else min(BATCH, limit - taken), after=after
            )
            if not page:
                return
            part, tails, after = await self._read(page)
            taken += len(tails)
            if not tails:
                continue
            name, data = part.finish(self._label, number + 1)
            name = there.get((name.runs, name.digest), name)
            number = max(number, name.number)
            await self._write(name, part, data)
            for some in _bounded(tails):
                self.removed += await self._store.remove_runs(some)
            yield name

    async def _read(self, page: Sequence[EndedRun]) -> tuple[Part, list[tuple[RunTail, int]], EndedRun]:
        """A part of the runs of a page, their tails and numbers of rows, and the last that was looked at."""
        part, by = Part(), release()
        tails: list[tuple[RunTail, int]] = []
        last = page[0]
        for last in page:
            loaded = await self._store.load_all_rows(last.run_id)
            if loaded is None or loaded.row.locator != last.locator:
                continue  # somebody else was faster
            problem = await asyncio.to_thread(_add, part, loaded, by)
            if problem:
                self.findings.append(Finding(last.run_id, 0, problem))
                continue
            tail = loaded.rows[-1]
            tails.append((RunTail(last.locator, tail.first_seq, tail.hash), len(loaded.rows)))
            if part.size >= PART_BYTES:
                break
        return part, tails, last

    async def _write(self, name: PartName, part: Part, data: bytes) -> None:
        """The list of ids first: a part is there with it, or not at all."""
        for text, content in ((name.index, encode_index(part.ids)), (str(name), data)):
            if not await self._archive.write(text, content) and await self._archive.read(text) != content:
                raise ArchiveUnavailable(
                    f"the archive {self._archive.location} has other bytes under {text} than that name tells; nothing "
                    "was removed for it. Move the file away, and try again"
                )


def _add(part: Part, loaded: LoadedRun, by: str) -> str:
    """Add a run to a part, unless there is a problem with it, which is returned."""
    problem = chain_problem(loaded)
    if problem:
        return problem
    line = encode_line(loaded, by)
    problem = archive_problem(loaded, line)
    if not problem:
        part.add(loaded.row.run.run_id, loaded.row.ended_us or 0, line)
    return problem


def _bounded(tails: Sequence[tuple[RunTail, int]]) -> Iterator[list[RunTail]]:
    """Runs with `REMOVE_ROWS` rows together, or one."""
    some: list[RunTail] = []
    rows = 0
    for tail, count in tails:
        if some and rows + count > REMOVE_ROWS:
            yield some
            some, rows = [], 0
        some.append(tail)
        rows += count
    if some:
        yield some
