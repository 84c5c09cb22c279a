"""This process and this machine: loop, memory, processor time, description."""

from __future__ import annotations

import asyncio
import os
import platform
import resource
import sqlite3
import subprocess
import sys
from collections.abc import Coroutine
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

ROOT = Path(__file__).resolve().parent.parent


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run on the event loop that `perdure run` would use: uvloop where it is installed."""
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(work)


def _loop_factory() -> type[asyncio.AbstractEventLoop] | None:
    if find_spec("uvloop") is None:
        return None
    import uvloop

    return uvloop.Loop


def environment() -> dict[str, str]:
    """For a process whose start is measured: as after an installation, with compiled modules that are kept."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def rss_mb() -> float:
    """Resident memory of this process in megabytes: now on Linux, the most so far elsewhere."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6
    return pages * resource.getpagesize() / 1e6


def machine() -> str:
    """The machine and the software that matters, in one line."""
    loop = "uvloop" if find_spec("uvloop") is not None else "asyncio"
    return (
        f"{_cpu()}, {os.cpu_count()} cores, {platform.system()} {platform.release()}, "
        f"{platform.python_implementation()} {platform.python_version()}, {loop}, SQLite {sqlite3.sqlite_version}"
    )


def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def load() -> str:
    """What else the machine is doing: the load average of the last minute, where the system tells."""
    try:
        return f"{os.getloadavg()[0]:.2f}"
    except (AttributeError, OSError):
        return "unknown"


def commit() -> str:
    """The commit that is measured; marked where the source differs from it."""
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty=+"], cwd=ROOT, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return found.stdout.strip()
