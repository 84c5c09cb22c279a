"""Counting durable commits from outside the engine: by the commit marks in SQLite's write-ahead log.

With synchronous=FULL every commit is one sync of the log; `tests/benchmarks/test_commits.py` proves with strace that
marks and syncs are equally many.
"""

from __future__ import annotations

import struct
from contextlib import closing
from pathlib import Path

from benchmarks.pipelines import app_of, trivial
from benchmarks.places import Place, place

_HEADER = struct.Struct(">8I")
_FRAME = struct.Struct(">6I")


class LogRestarted(Exception):
    """The log was emptied by a checkpoint meanwhile: the marks before are gone."""


class CommitCounter:
    """Counts the commits that are in the log of an open SQLite file."""

    def __init__(self, path: Path) -> None:
        self._log = Path(f"{path}-wal")
        self._salt: tuple[int, int] | None = None

    def count(self) -> int:
        """Commit marks since the log was last emptied.

        Raises:
            LogRestarted: it was emptied since the first call.
        """
        data = self._log.read_bytes()
        if len(data) < _HEADER.size:
            return 0
        page_size, salt = _HEADER.unpack_from(data)[2], _HEADER.unpack_from(data)[4:6]
        if self._salt is not None and salt != self._salt:
            raise LogRestarted
        self._salt = salt
        commits = 0
        for offset in range(_HEADER.size, len(data) - page_size - _FRAME.size + 1, page_size + _FRAME.size):
            _page, size_after_commit, *frame_salt = _FRAME.unpack_from(data, offset)[:4]
            if tuple(frame_salt) != salt:
                break  # left over from before the log was emptied
            commits += size_after_commit != 0
        return commits


async def commits_per_run(where: Place, *, steps: int, concurrency: int) -> float | None:
    """Durable commits that one run of `steps` steps costs, submission included, counted in a short pass of its own.

    On PostgreSQL the transactions that wrote the journal are counted afterwards. None on a store in memory.
    """
    from benchmarks.runs import measure_slice

    if where.kind == "postgresql":
        from benchmarks.written import Counters

        with closing(Counters(where.url)) as server:
            return server.commits() / (server.rows() / (steps + 1))
    if where.path is None:
        return None
    pipeline = trivial(steps)
    with place(None) as own:
        assert own.path is not None
        async with app_of(pipeline, own.url).engine() as engine:
            runs = max(1, 4 * concurrency)
            while True:
                counter = CommitCounter(own.path)
                before = counter.count()
                try:
                    await measure_slice(engine, pipeline, runs, concurrency)
                    return (counter.count() - before) / runs
                except LogRestarted:
                    if runs == 1:
                        return None
                    runs //= 2
