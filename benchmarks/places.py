"""Stores to measure on: made empty, sized, and removed again. Nothing that was there before is ever touched."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from perdure import App, InvalidArgument
from perdure.storage import open_store

SUFFIXES = ("", "-wal", "-shm", "-owner")


class Place:
    """An empty store by its URL; `path` is its file, None for a store in memory."""

    def __init__(self, url: str) -> None:
        open_store(url)  # refuses what is no store's URL
        self.url = url
        self.kind = url.partition(":")[0]
        self.path = Path(url.partition("?")[0].removeprefix("sqlite:///")) if self.kind == "sqlite" else None
        self.empty_bytes = 0

    async def prepare(self) -> None:
        """Create the store's tables, so that `bytes_written` counts only what comes after."""
        if self.kind != "memory":
            async with App(store=self.url).client():
                pass
            self.empty_bytes = self._size()

    def bytes_written(self) -> int | None:
        """Bytes of the closed store beyond those of an empty one."""
        return None if self.kind == "memory" else self._size() - self.empty_bytes

    def _size(self) -> int:
        if self.kind == "postgresql":
            from benchmarks.written import Counters

            with closing(Counters(self.url)) as server:
                return server.bytes()
        return sum(os.path.getsize(name) for name in self._files())

    def _files(self) -> list[str]:
        return [name for suffix in SUFFIXES if self.path is not None and os.path.exists(name := f"{self.path}{suffix}")]

    def remove(self) -> None:
        """Delete the store's files, or its schema."""
        if self.kind == "postgresql":
            from benchmarks.written import Counters

            with closing(Counters(self.url)) as server:
                server.remove()
        for name in self._files():
            os.unlink(name)


def _refuse_what_is_there(url: str) -> None:
    from benchmarks.written import Counters

    with closing(Counters(url)) as server:
        if server.is_there():
            raise InvalidArgument("that schema exists; benchmarks start on an empty store and remove it afterwards")


@contextmanager
def place(url: str | None) -> Iterator[Place]:
    """A place for one measurement, removed afterwards.

    Args:
        url: where; None: a file in a temporary directory.

    Raises:
        InvalidArgument: there is something at that place already.
    """
    with tempfile.TemporaryDirectory(prefix="perdure-bench-") as folder:
        found = Place(url or f"sqlite:///{folder}/bench.db")
        if found.path is not None and found.path.exists():
            raise InvalidArgument(f"{found.path} exists; benchmarks start on an empty store and remove it afterwards")
        if found.kind == "postgresql":
            _refuse_what_is_there(found.url)
        try:
            yield found
        finally:
            found.remove()
