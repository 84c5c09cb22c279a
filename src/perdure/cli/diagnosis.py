"""What `doctor` looks at: every check is a line with a verdict and, where it is not good, advice."""

from __future__ import annotations

import os
import platform
import shutil
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, TypeAlias

from perdure.cli.text import size

Verdict: TypeAlias = Literal["ok", "warn", "fail"]

SLOW_SYNC_MS = 15.0
SUSPICIOUS_SYNC_MS = 0.005
SYNCS = 16
LITTLE_SPACE = 256 * 1024 * 1024
NETWORK = frozenset({"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "fuse.sshfs", "davfs"})
FLEETING = frozenset({"tmpfs", "ramfs"})


@dataclass(frozen=True)
class Check:
    """One line of the answer.

    Attributes:
        name: what was looked at.
        verdict: `warn`: it works, but look at it; `fail`: it does not work.
        found: what was found.
        advice: what to do; empty where all is well.
    """

    name: str
    verdict: Verdict
    found: str
    advice: str = ""

    def json(self) -> dict[str, object]:
        """For programs."""
        return {"check": self.name, "verdict": self.verdict, "found": self.found, "advice": self.advice or None}


def check_python() -> Check:
    """The interpreter."""
    found = f"{platform.python_implementation()} {platform.python_version()}"
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        return Check("python", "warn", f"{found}, free-threaded", "not tested on free-threaded builds")
    return Check("python", "ok", found)


def check_event_loop() -> Check:
    """uvloop makes the engine faster; it is optional."""
    if find_spec("uvloop") is not None:
        return Check("event loop", "ok", "uvloop")
    if sys.platform == "win32":
        return Check("event loop", "ok", "asyncio")
    return Check("event loop", "ok", "asyncio", "`pip install 'perdure[uvloop]'` makes the engine faster")


def check_sqlite() -> Check:
    """The SQLite library of this Python."""
    found = sqlite3.sqlite_version
    if sqlite3.sqlite_version_info < (3, 37, 0):
        return Check("sqlite", "fail", found, "SQLite 3.37 or newer is needed, for STRICT tables")
    return Check("sqlite", "ok", found)


def check_file_system(path: Path, mounts: str) -> Check:
    """The kind of file system under a store.

    Args:
        path: absolute path of the store.
        mounts: text like /proc/self/mountinfo; empty where the system has none.
    """
    kind = file_system(path, mounts)
    if kind is None:
        return Check("file system", "ok", "of unknown kind")
    if kind in NETWORK:
        advice = "put the file on a local disk: locks and syncs of a network file system cannot be relied on"
        return Check("file system", "fail", f"{kind}, a network file system", advice)
    if kind in FLEETING:
        return Check("file system", "warn", f"{kind}, in memory", "its files are gone when the machine restarts")
    return Check("file system", "ok", kind)


def file_system(path: Path, mounts: str) -> str | None:
    """The kind of the file system that holds `path`; None where the text does not say."""
    best, kind = "", None
    for line in mounts.splitlines():
        before, separator, after = line.partition(" - ")
        fields = before.split(" ")
        if not separator or len(fields) < 5:
            continue
        mount = fields[4].replace("\\040", " ")
        inside = mount == "/" or str(path) == mount or str(path).startswith(mount + "/")
        if inside and len(mount) >= len(best):
            best, kind = mount, after.split(" ")[0]
    return kind


def own_mounts() -> str:
    """The mounts of this machine, or nothing where it does not tell."""
    try:
        return Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def check_space(folder: Path) -> Check:
    """Free space beside a store."""
    free = shutil.disk_usage(folder).free
    if free < LITTLE_SPACE:
        return Check("free space", "warn", size(free), "make room, or `perdure gc --older-than 30d`")
    return Check("free space", "ok", size(free))


def sync_times_ms(folder: Path) -> list[float]:
    """How long the disk takes to make a few bytes durable, measured on a file of its own in `folder`.

    Raises:
        OSError: the folder cannot be written.
    """
    sync = getattr(os, "fdatasync", os.fsync)
    times: list[float] = []
    with tempfile.TemporaryFile(dir=folder, prefix=".perdure-doctor-") as file:
        for _ in range(SYNCS):
            os.write(file.fileno(), b"x" * 4096)
            started = time.perf_counter()
            sync(file.fileno())
            times.append((time.perf_counter() - started) * 1_000)
    return times


def check_sync(times_ms: list[float]) -> Check:
    """How fast a commit can be, from sync times in milliseconds; every clean step waits for one of them."""
    median = statistics.median(times_ms)
    found = f"{median:.3f} ms (median of {len(times_ms)})"
    if median > SLOW_SYNC_MS:
        advice = "every step waits for a sync: a faster disk makes runs faster"
        return Check("disk sync", "warn", found, advice)
    if median < SUSPICIOUS_SYNC_MS:
        advice = "faster than a disk can be: what is committed may not survive a power cut"
        return Check("disk sync", "warn", found, advice)
    return Check("disk sync", "ok", found)


def check_settings(info: Mapping[str, str | int]) -> list[Check]:
    """Durability settings of a SQLite store, as the store itself reports them."""
    checks: list[Check] = []
    mode, sync = str(info.get("journal_mode", "")).lower(), str(info.get("synchronous", "")).lower()
    if mode and mode != "wal":
        checks.append(Check("journal mode", "fail", mode, "the store needs a write-ahead log"))
    elif mode:
        checks.append(Check("journal mode", "ok", mode))
    if sync and sync not in {"2", "3", "full", "extra"}:
        checks.append(Check("synchronous", "fail", sync, "anything below FULL loses commits in a power cut"))
    elif sync:
        checks.append(Check("synchronous", "ok", {"2": "full", "3": "extra"}.get(sync, sync)))
    return checks


def check_runs(counts: Mapping[str, int], overdue: int, *, alive: bool) -> list[Check]:
    """Runs that wait for somebody.

    Args:
        counts: runs by status.
        overdue: runs that wanted a worker more than a minute ago and have none.
        alive: an engine is running.
    """
    total = sum(counts.values())
    checks = [
        Check("runs", "ok", ", ".join(f"{n} {status}" for status, n in sorted(counts.items()) if n) or "none yet")
    ]
    if total == 0:
        return checks
    advice = {
        "held": "`perdure list --status held` shows them; release, retry or resolve each",
        "invalid": "`perdure list --status invalid` shows them; deploy code that can continue them",
    }
    for status, text in advice.items():
        if counts.get(status):
            checks.append(Check(f"{status} runs", "warn", str(counts[status]), text))
    if counts.get("corrupt"):
        text = "`perdure list --status corrupt` shows them, `perdure verify` says what is wrong; restore a backup"
        checks.append(Check("corrupt runs", "fail", str(counts["corrupt"]), text))
    if overdue:
        text = "the engine is too busy, or stands still" if alive else "no engine is running: `perdure run APP`"
        checks.append(Check("overdue runs", "warn", str(overdue), text))
    return checks
