"""The edits, and the driver that brings a run to rest under one deployment and goes on under another.

Standard library only, so that it runs in the environment of any peer.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REST = 6.0  # seconds that a run sleeps in `pause`; the process is killed, and the edit deployed, meanwhile
PATIENCE = float(os.environ.get("PATIENCE", "30"))  # seconds until a run that has not ended is called stuck


@dataclass(frozen=True)
class Deployment:
    """One version of the program: its steps in order, and whether the price is a record or a bare number."""

    steps: tuple[str, ...]
    record: bool = False


def steps(line: str, *, record: bool = False) -> Deployment:
    """A deployment, written as its steps with spaces between."""
    return Deployment(tuple(line.split()), record)


BASE = steps("reserve quote pause charge notify")
# Name of the edit: (deployed when the run starts, deployed while it sleeps in `pause`).
EDITS: dict[str, tuple[Deployment, Deployment]] = {
    "none": (BASE, BASE),
    "insert ahead": (BASE, steps("reserve quote pause check charge notify")),
    "insert behind": (BASE, steps("reserve check quote pause charge notify")),
    "remove finished": (BASE, steps("quote pause charge notify")),
    "remove sleeping": (BASE, steps("reserve quote charge notify")),
    "rename finished": (BASE, steps("hold quote pause charge notify")),
    "reorder finished": (BASE, steps("quote reserve pause charge notify")),
    "reorder ahead": (BASE, steps("reserve quote pause notify charge")),
    "reorder twins": (
        steps("reserve quote:a quote:b pause charge notify"),
        steps("reserve quote:b quote:a pause charge notify"),
    ),
    "change type": (BASE, steps("reserve quote pause charge notify", record=True)),
    "old after new": (steps("reserve check quote pause charge notify"), BASE),
}
PRICE = 700
PRICED = ("quote", "quote:a")  # the steps whose state `charge` reads; of twins, the first


def name_of(step: str) -> str:
    """The name of the function: `quote:a` and `quote:b` are two calls of `quote`."""
    return step.partition(":")[0]


def called(name: str) -> None:
    """Note that a step's function was really called."""
    with open(os.environ["EDIT_CALLS"], "a", encoding="utf-8") as calls:
        calls.write(name + "\n")


def perform(name: str, deployment: Deployment, price: Any) -> object:
    """What each step does: `quote` finds out a price, `charge` reads it as this deployment knows it."""
    wrong = name == "charge" and not deployment.record and price not in (None, PRICE)
    called(f"charge({price})" if wrong else name)
    if name == "quote:b":
        return PRICE + 200
    if name in PRICED:
        return {"cents": PRICE} if deployment.record else PRICE
    if name == "charge":
        cents = price["cents"] if deployment.record else price
        return f"charged {cents}"
    return f"{name} done"


def deployment_of(edit: str, phase: str) -> Deployment:
    """What is deployed in this phase: `after` the edit, or not yet."""
    before, after = EDITS[edit]
    return after if phase == "after" else before


def ended(how: str) -> None:
    """Tell the driver how the run ended, or why it does not."""
    end = Path(os.environ["EDIT_END"])
    end.with_suffix(".part").write_text(how, encoding="utf-8")
    end.with_suffix(".part").rename(end)


def calls_in(path: Path) -> list[str]:
    """The calls noted so far."""
    return path.read_text(encoding="utf-8").split() if path.exists() else []


def stop(process: subprocess.Popen[bytes]) -> None:
    """Kill one process and what it started, as a crash does."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def wait_until(reached: Callable[[], bool], process: subprocess.Popen[bytes], seconds: float, log: Path) -> bool:
    """Wait for a condition; a process that ends early is an error of the program, not of the peer."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if reached():
            return True
        if process.poll() is not None and not reached():
            sys.exit(f"the program ended with {process.returncode}:\n{log.read_text()[-3000:]}")
        time.sleep(0.1)
    return False


def rest_at(edit: str) -> list[str]:
    """The steps that are done when the run sleeps."""
    names = list(deployment_of(edit, "before").steps)
    return names[: names.index("pause")]


def one(script: str, edit: str, env: dict[str, str]) -> tuple[list[str], str]:
    """One edit: run under the first deployment into the sleep, kill -9, run on under the second.

    Returns:
        The steps called after the deployment, and how it ended.
    """
    with tempfile.TemporaryDirectory() as folder:
        calls, end, log = Path(folder, "calls"), Path(folder, "end"), Path(folder, "log")
        full = {**os.environ, **env, "EDIT_CALLS": str(calls), "EDIT_END": str(end), "EDIT_DIR": folder}

        def start(phase: str) -> subprocess.Popen[bytes]:
            with log.open("ab") as out:
                command = [sys.executable, script, phase, edit]
                return subprocess.Popen(command, env=full, stdout=out, stderr=out, start_new_session=True)

        before = rest_at(edit)
        process = start("before")
        try:
            if not wait_until(lambda: calls_in(calls) == before, process, 60, log):
                sys.exit(f"{edit}: the run did not come to rest:\n{log.read_text()[-3000:]}")
            time.sleep(1)
        finally:
            stop(process)
        process = start("after")
        try:
            done = wait_until(end.exists, process, PATIENCE + REST + 15, log)
        finally:
            stop(process)
        if os.environ.get("SHOW_LOG"):
            print(log.read_text())
        how = end.read_text(encoding="utf-8") if done else "nothing was reported"
        return calls_in(calls)[len(before) :], how


def wanted() -> list[str]:
    """The edits named on the command line, or all."""
    return sys.argv[1:] or list(EDITS)


def report(edit: str, after: list[str], how: str) -> None:
    """One line for one edit."""
    print(f"{edit:17} called after: {' '.join(after) or '-':22} {how}", flush=True)


def no_server() -> AbstractContextManager[dict[str, str]]:
    """For what needs no server."""
    return nullcontext({})


def drive(script: str, peer: str, server: Callable[[], AbstractContextManager[dict[str, str]]] = no_server) -> None:
    """Carry out the edits, each with a server of its own."""
    print(peer, flush=True)
    for edit in wanted():
        with server() as env:
            report(edit, *one(script, edit, env))
