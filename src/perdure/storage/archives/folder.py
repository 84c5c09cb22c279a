"""An archive in a folder."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import re
import secrets
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from perdure.errors import ArchiveUnavailable

T = TypeVar("T")

_DRAFT = re.compile(r"\..+\.[0-9a-f]{8}")
_STALE_S = 86_400
_NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})


class FolderArchive:
    """An `Archive` in one folder of a file system. What is half written has a name that begins with a dot."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @property
    def location(self) -> str:
        return str(self.path)

    async def open(self, *, create: bool) -> None:
        await self._do("cannot be used", lambda: self._open(create))

    def _open(self, create: bool) -> None:
        if create:
            with contextlib.suppress(FileExistsError):
                self.path.mkdir()
                _sync_folder(self.path.parent)
        with os.scandir(self.path) as entries:
            drafts = [entry for entry in entries if _DRAFT.fullmatch(entry.name)]
        if create:
            _sweep(drafts)

    async def names(self) -> Sequence[str]:
        return await self._do("cannot be listed", self._names)

    def _names(self) -> list[str]:
        with os.scandir(self.path) as entries:
            return sorted(entry.name for entry in entries if not entry.name.startswith("."))

    async def read(self, name: str, /) -> bytes:
        return await self._do(f"{name} cannot be read", (self.path / name).read_bytes)

    async def write(self, name: str, data: bytes, /) -> bool:
        return await self._do(f"{name} cannot be written", lambda: self._write(self.path / name, data))

    def _write(self, path: Path, data: bytes) -> bool:
        draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        try:
            with open(draft, "xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            written = _publish(draft, path)
        finally:
            draft.unlink(missing_ok=True)
        _sync_folder(self.path)
        return written

    async def close(self) -> None:
        """There is nothing to let go of."""

    async def _do(self, problem: str, work: Callable[[], T]) -> T:
        try:
            return await asyncio.to_thread(work)
        except OSError as error:
            raise ArchiveUnavailable(f"the archive {self.path}: {problem}: {error.strerror or error}") from error


def _sweep(drafts: Sequence[os.DirEntry[str]]) -> None:
    """Remove what processes left that were killed while they wrote; no write takes so long."""
    for draft in drafts:
        with contextlib.suppress(FileNotFoundError):
            if draft.stat().st_mtime < time.time() - _STALE_S:
                os.unlink(draft.path)


def _publish(draft: Path, path: Path) -> bool:
    """Give the file its name, unless the name is taken."""
    try:
        os.link(draft, path)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if path.exists():  # without links two may meet here; both bring the same bytes, which the name tells
            return False
        os.replace(draft, path)
    return True


def _sync_folder(path: Path) -> None:
    """A name in it is as durable as what it names."""
    if os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
