"""Reading archives: what parts there are, and putting runs back for somebody to look at [R-9, J-11]."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

from perdure.errors import ArchiveUnavailable, NotFound
from perdure.ports.archive import Archive
from perdure.ports.store import LoadedRun, Store
from perdure.runtime.archived import UnreadableLine, chain_problem, decode_line
from perdure.runtime.info import PartFinding, PartInfo, RestoreReport
from perdure.runtime.parts import DamagedPart, PartName, decode_index, digest_of, part_name, read_lines
from perdure.runtime.verifying import check_run

_AT_ONCE = 16
"""Lists of ids that are read at once."""


async def list_parts(archive: Archive) -> list[PartInfo]:
    """The parts of an archive, in the order in which they were written, from their names alone."""
    return [PartInfo(str(name), name.label, name.from_us, name.to_us, name.runs) for name in await _parts(archive)]


async def _parts(archive: Archive) -> list[PartName]:
    found = [name for name in map(part_name, await archive.names()) if name is not None]
    return sorted(found, key=lambda name: (name.number, name))


async def restore(
    archive: Archive,
    store: Store | None,
    *,
    run_id: str | None,
    since_us: int | None,
    until_us: int | None,
    now_us: int,
    progress: Callable[[int, int], None] | None,
) -> RestoreReport:
    """Read runs and put them into `store`, or only read them if that is None; see `Client.restore`."""
    parts = [
        name
        for name in await _parts(archive)
        if (since_us is None or name.to_us >= since_us) and (until_us is None or name.from_us <= until_us)
    ]
    reader = _Reader(archive, store, run_id, since_us, until_us, now_us)
    if run_id is not None:
        async for name, number in _likely(archive, parts, run_id):
            await reader.read(name)
            if progress is not None:
                progress(number, len(parts))
            if reader.runs:
                break
        if not reader.runs and not reader.findings:
            raise NotFound(f"the archive {archive.location} has no run {run_id!r}, in {len(parts)} parts")
    else:
        for number, name in enumerate(parts, 1):
            await reader.read(name)
            if progress is not None:
                progress(number, len(parts))
    return reader.report()


async def ids_from(archive: Archive, beginning: str) -> list[str]:
    """The ids of an archive that begin so, as its lists tell."""
    found: set[str] = set()
    parts = await _parts(archive)
    for start in range(0, len(parts), _AT_ONCE):
        for ids in await asyncio.gather(*[_ids(archive, name) for name in parts[start : start + _AT_ONCE]]):
            found.update(run_id for run_id in ids or () if run_id.startswith(beginning))
    return sorted(found)


async def _likely(archive: Archive, parts: Sequence[PartName], run_id: str) -> AsyncIterator[tuple[PartName, int]]:
    """Parts that have the run, as their lists of ids say, newest first; then those whose list is lost or damaged."""
    unknown: list[PartName] = []
    newest = parts[::-1]
    for start in range(0, len(newest), _AT_ONCE):
        some = newest[start : start + _AT_ONCE]
        lists = await asyncio.gather(*[_ids(archive, name) for name in some])
        for number, (name, ids) in enumerate(zip(some, lists, strict=True), start + 1):
            if ids is None:
                unknown.append(name)
            elif run_id in ids:
                yield name, number
    for name in unknown:
        yield name, len(parts)


async def _ids(archive: Archive, name: PartName) -> frozenset[str] | None:
    try:
        return decode_index(await archive.read(name.index), name)
    except ArchiveUnavailable:
        return None


class _Reader:
    """Goes through parts, and counts."""

    def __init__(
        self,
        archive: Archive,
        store: Store | None,
        run_id: str | None,
        since_us: int | None,
        until_us: int | None,
        now_us: int,
    ) -> None:
        self.findings: list[PartFinding] = []
        self.runs = 0
        self._archive = archive
        self._store = store
        self._run_id = run_id
        self._since_us = since_us
        self._until_us = until_us
        self._now_us = now_us
        self._parts = self._facts = self._restored = self._known = 0

    def report(self) -> RestoreReport:
        return RestoreReport(self._parts, self.runs, self._facts, self._restored, self._known, tuple(self.findings))

    async def read(self, name: PartName) -> None:
        self._parts += 1
        try:
            data = await self._archive.read(str(name))
        except ArchiveUnavailable as error:
            self._find(name, "", str(error))
            return
        lines = read_lines(data)
        read = 0
        try:
            while (line := await asyncio.to_thread(next, lines, None)) is not None:
                read += 1
                await self._take(name, line)
        except DamagedPart as error:
            self._find(name, "", f"{error}; {read} of {name.runs} runs could be read")
            return
        if digest_of(data) != name.digest:
            self._find(name, "", "its bytes are not those that its name tells")
        elif read != name.runs:
            self._find(name, "", f"it has {read} runs, and its name tells {name.runs}")

    async def _take(self, name: PartName, line: bytes) -> None:
        if self._run_id is not None and self._run_id.encode() not in line:
            return
        try:
            found = await asyncio.to_thread(decode_line, line)
        except UnreadableLine as error:
            self._find(name, "", str(error))
            return
        if not self._asked_for(found):
            return
        run_id = found.row.run.run_id
        problems = await asyncio.to_thread(_problems, found, self._now_us)
        for problem in problems:
            self._find(name, run_id, problem)
        if problems:
            return
        self.runs += 1
        self._facts += sum(row.count for row in found.rows)
        if self._store is not None:
            await self._put(name, self._store, found)

    def _asked_for(self, found: LoadedRun) -> bool:
        ended_us = found.row.ended_us or 0
        return (
            self._run_id in (None, found.row.run.run_id)
            and (self._since_us is None or ended_us >= self._since_us)
            and (self._until_us is None or ended_us < self._until_us)
        )

    async def _put(self, name: PartName, store: Store, found: LoadedRun) -> None:
        row = found.row
        if await store.insert_ended(row.run, row.state, row.ended_us or 0, found.rows):
            self._restored += 1
            return
        there = await store.journal_of(row.run.run_id)
        if there is not None and tuple(there[1]) == found.rows:
            self._known += 1
        else:
            self._find(name, row.run.run_id, "the store has another run of that id, which stays")

    def _find(self, name: PartName, run_id: str, problem: str) -> None:
        self.findings.append(PartFinding(str(name), run_id, problem))


def _problems(found: LoadedRun, now_us: int) -> list[str]:
    problem = chain_problem(found)
    return [problem] if problem else [finding.problem for finding in check_run(found, None, now_us)]
