"""Processes that measure slices on demand, so that several can take turns: asked by a line, answered by a line.

A child says `{}` when it is ready. Each line it gets asks for a slice, as `{"runs": .., "concurrency": ..}`; it ends
when its input does.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from benchmarks.measurement import percentile
from benchmarks.process import ROOT
from benchmarks.runs import Slice

PATIENCE_S = 120.0


class Part(msgspec.Struct, frozen=True):
    """A slice as a child measured it; `cpu_s` is the processor time of all that is not the database server."""

    runs: int
    wall_s: float
    cpu_s: float
    p50_ms: float
    p99_ms: float

    @classmethod
    def of(cls, measured: Slice, runs: int) -> Part:
        """From what was measured in this process."""
        latencies = measured.latencies_ms
        return cls(runs, measured.wall_s, measured.cpu_s, percentile(latencies, 0.5), percentile(latencies, 0.99))


class Child:
    """One such process, `python -m module arguments`.

    Args:
        alone: where the system allows it, in a network of its own that leads nowhere.

    Raises:
        RuntimeError: it did not get ready; its message is the last line that it wrote.
    """

    def __init__(self, module: str, *arguments: str, alone: bool = False) -> None:
        command = [sys.executable, "-m", module, *arguments]
        if alone and os.getuid() == 0 and shutil.which("unshare") and shutil.which("ip"):
            command = ["unshare", "-n", "sh", "-c", 'ip link set lo up && exec "$@"', "sh", *command]
        self._name = module
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._errors: list[str] = []
        self._reader = threading.Thread(target=self._collect, daemon=True)
        self._reader.start()
        try:
            self._answer()
        except BaseException:
            self.end()
            raise

    def measure(self, runs: int, concurrency: int) -> Part:
        """One slice."""
        self.ask(runs, concurrency)
        return self.answer()

    def ask(self, runs: int, concurrency: int) -> None:
        """Begin a slice."""
        if self._process.stdin is None:
            raise RuntimeError(f"{self._name} cannot be asked")
        self._process.stdin.write(json.dumps({"runs": runs, "concurrency": concurrency}) + "\n")
        self._process.stdin.flush()

    def answer(self) -> Part:
        """The slice that was begun."""
        return msgspec.json.decode(self._answer(), type=Part)

    def end(self) -> None:
        """End it, with whatever it has started."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _answer(self) -> str:
        timer = threading.Timer(PATIENCE_S, os.killpg, (self._process.pid, signal.SIGKILL))
        timer.start()
        try:
            line = self._process.stdout.readline() if self._process.stdout is not None else ""
        finally:
            timer.cancel()
        if not line:
            self._process.wait()
            self._reader.join(1.0)
            raise RuntimeError(f"{self._name} ended early: {self._errors[-1] if self._errors else 'it said nothing'}")
        return line

    def _collect(self) -> None:
        for line in self._process.stderr or ():
            if line.strip():
                self._errors.append(line.strip())


async def serve(measure: Callable[[int, int], Awaitable[Part]]) -> None:
    """In a child: measure a slice for each line of the input."""
    print("{}", flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        asked = json.loads(line)
        part = await measure(asked["runs"], asked["concurrency"])
        print(msgspec.json.encode(part).decode(), flush=True)


TICKS = os.sysconf("SC_CLK_TCK")


def cpu_of_tree_s(pid: int) -> float:
    """Processor time of a process and of all that it has started, ended ones that it has waited for included."""
    total = 0.0
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            fields = (folder / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        if int(folder.name) == pid or int(fields[1]) == pid:
            total += sum(map(int, fields[11:15])) / TICKS
    return total
