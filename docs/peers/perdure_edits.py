"""perdure on SQLite. What `perdure check` says beforehand is printed as well."""

from __future__ import annotations

import asyncio
import importlib.metadata
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import edits

from perdure import App, Invocation, Later, Pipeline, Retry, Step, nothing, optional, poll, step


@dataclass(frozen=True)
class Price:
    """What `quote` returns once the price is a record."""

    cents: int


Inv = Invocation[str, object]
# Beside `before EDIT` and `after EDIT`, the command line imports this module, and is told by the environment.
PHASE, EDIT = (
    sys.argv[1:3] if sys.argv[1:2] in (["before"], ["after"]) else os.environ.get("EDIT", "before:none").split(":")
)
NOW = edits.deployment_of(EDIT, PHASE)


def quote_step() -> Step[Any, Any, Any]:
    """`quote`, with the state this deployment gives it."""
    if NOW.record:

        @step("quote")
        async def quote_record(inv: Inv) -> Price:
            edits.called("quote")
            return Price(edits.PRICE)

        return quote_record

    name = "quote:a" if "quote:a" in NOW.steps else "quote"

    @step(name.replace(":", "-"))
    async def quote(inv: Inv) -> int:
        edits.called(name)
        return edits.PRICE

    return quote


def plain(name: str) -> Step[Any, Any, Any]:
    """A step without a state."""

    @step(name.replace(":", "-"))  # two steps have two ids
    async def body(inv: Inv) -> None:
        edits.called(name)

    return body


@poll("pause")
async def pause(inv: Inv) -> Later | None:
    """Asks twice: the run sleeps between."""
    return Later(edits.REST) if inv.attempt == 1 else None


QUOTE = quote_step()


@step("charge", needs=(optional(QUOTE),), retry=Retry(max_attempts=1))
async def charge(inv: Inv) -> None:
    """Reads the price."""
    price = inv.get(QUOTE, None)
    edits.perform("charge", NOW, {"cents": price.cents} if isinstance(price, Price) else price)


KNOWN = {"quote": QUOTE, "quote:a": QUOTE, "pause": pause, "charge": charge}
order: Pipeline[str, object, None] = Pipeline(
    id="order",
    input=str,
    deps=object,
    steps=tuple(KNOWN.get(name) or plain(name) for name in NOW.steps),
    output=nothing,
)
app = App(order.bind(), store=f"sqlite:///{os.environ.get('EDIT_DIR', '/tmp')}/perdure.db")


def checked() -> str:
    """What the command line says before this is deployed."""
    lock = f"{os.environ['EDIT_DIR']}/perdure.lock"

    def check(phase: str, *arguments: str) -> str:
        env = {**os.environ, "PERDURE_APP": "perdure_edits:app", "EDIT": f"{phase}:{EDIT}"}
        command = [str(Path(sys.executable).parent / "perdure"), "check", *arguments]
        done = subprocess.run(command, env=env, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
        sentences = done.stdout.split("WHERE IT STANDS")[0]
        return "; ".join(line.strip() for line in sentences.splitlines()[1:]) + done.stderr[-300:]

    check("before", "--lock", lock, "--write-lock")
    return f"{check('after')} | the lock says: {check('after', '--lock', lock)}"


async def work() -> None:
    """Be the engine of one deployment; start the run first, or watch it afterwards."""
    said = checked() if PHASE == "after" else ""
    async with app.engine() as engine:
        if PHASE == "before":
            await engine.submit(order, "A-1")
            await asyncio.sleep(3600)
        run = await engine.run((await engine.list())[0].run_id)
        async with asyncio.timeout(edits.PATIENCE + edits.REST):
            async for info in run.watch():
                if info.status in ("succeeded", "failed", "held", "invalid"):
                    why = f": {info.reason}" if info.reason else ""
                    edits.ended(f"{info.status}{why} | check says: {said}")
                    break
        await asyncio.sleep(5)


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] in ("before", "after"):
        asyncio.run(work())
    else:
        edits.drive(__file__, f"perdure {importlib.metadata.version('perdure')}, SQLite")
