"""One engine owns a file [R-2]: a lock beside it that ends with the process, however that ends.

POSIX record locks are not inherited by fork and belong to the process, so two engines in one process are told apart
by a table. For the same reason a process that owns a file never opens its lock file a second time: closing any
descriptor of it would give the lock away.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from pathlib import Path

import msgspec

from perdure.errors import StoreInUse, StoreUnusable

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

_owned: dict[str, Holder] = {}
"""Files owned by this process, by real path."""


class Holder(msgspec.Struct, frozen=True):
    """Who owns a file; written into the lock file for whoever is refused."""

    worker: str
    pid: int
    host: str
    since: str

    def text(self) -> str:
        """For a message."""
        return f"worker {self.worker} (process {self.pid} on {self.host}, since {self.since})"


class Ownership:
    """Ownership of one file, from `take` to `release` or the end of the process."""

    def __init__(self, path: Path, fd: int) -> None:
        self._key = os.path.realpath(path)
        self._fd: int | None = fd

    @classmethod
    def take(cls, path: Path, worker: str) -> Ownership:
        """Become the owner of `path`.

        Raises:
            StoreInUse: another engine is; names it.
            StoreUnusable: the lock file cannot be created.
        """
        key = os.path.realpath(path)
        here = _owned.get(key)
        if here is not None:
            raise StoreInUse(f"{path} is in use by {here.text()}, in this very process; close that engine first")
        name = f"{path}-owner"
        try:
            fd = os.open(name, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o644)
        except OSError as error:
            raise StoreUnusable(f"the lock file {name} cannot be opened: {error.strerror}") from error
        if not _lock(fd):
            holder = _read(fd)
            os.close(fd)
            who = holder.text() if holder is not None else "another engine"
            raise StoreInUse(f"{path} is in use by {who}; one engine owns a SQLite file, stop that one first")
        since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        mine = Holder(worker, os.getpid(), socket.gethostname(), since)
        _write(fd, msgspec.json.encode(mine))
        _owned[key] = mine
        return cls(path, fd)

    def release(self) -> None:
        """Stop being the owner. Idempotent. The lock file stays: removing it would race with the next owner."""
        fd, self._fd = self._fd, None
        if fd is None:
            return
        _write(fd, b"")
        _owned.pop(self._key, None)
        os.close(fd)

    def forget(self) -> None:
        """In a forked child, which owns nothing."""
        self._fd = None
        _owned.pop(self._key, None)


def holder_of(path: Path) -> Holder | None:
    """Who owns `path`, if this process can tell without harm: the owner in this process, or what the lock file says."""
    here = _owned.get(os.path.realpath(path))
    if here is not None:
        return here
    try:
        holder = _decode(Path(f"{path}-owner").read_bytes())
    except OSError:
        return None
    # Killed, it left its name but not its lock.
    return holder if holder is not None and _may_live(holder) else None


def _may_live(holder: Holder) -> bool:
    if holder.host != socket.gethostname() or sys.platform == "win32":
        return True
    try:
        os.kill(holder.pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # another user's process
    return True


def _read(fd: int) -> Holder | None:
    os.lseek(fd, 0, os.SEEK_SET)
    try:
        return _decode(os.read(fd, 4096))
    except OSError:
        return None


def _decode(text: bytes) -> Holder | None:
    try:
        return msgspec.json.decode(text, type=Holder)
    except (msgspec.MsgspecError, ValueError):
        return None


def _write(fd: int, text: bytes) -> None:
    os.lseek(fd, 0, os.SEEK_SET)
    os.write(fd, text)
    os.ftruncate(fd, len(text))


if sys.platform == "win32":
    _LOCKED_BYTE = 1 << 30  # far behind the text: a locked byte cannot be read by others

    def _lock(fd: int) -> bool:
        os.lseek(fd, _LOCKED_BYTE, os.SEEK_SET)
        try:
            msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True
else:

    def _lock(fd: int) -> bool:
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True
