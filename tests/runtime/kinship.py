"""Parents and their child runs, for the tests of both [B-21]."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from perdure import (
    App,
    Child,
    ForEachRun,
    Invocation,
    Pipeline,
    Retry,
    step,
)
from perdure.runtime.engine import Engine
from perdure.runtime.run import Run

Inv = Invocation[str, object]
Texts = Pipeline[str, object, Any]

PROMPT = Retry(initial=0, cap=0, jitter=0)


def work(
    body: Callable[[Inv], Any] | None = None,
    id: str = "work",
    before: Callable[[Inv], Any] | None = None,
    **options: Any,
) -> Texts:
    """The child pipeline: one step, whose answer is its output."""

    @step("do/v1")
    async def do(inv: Inv) -> str:
        made = body(inv) if body is not None else inv.input.upper()
        return str(await made if asyncio.iscoroutine(made) else made)

    return Pipeline(id=id, input=str, deps=object, steps=[do], output=lambda inv: inv[do], **options)


def one(child: Texts, input: Callable[[Inv], str] | None = None, id: str = "outer", **options: Any) -> Texts:
    """A parent of one child run; its output is what the child made."""
    made: Any = Child("sub/v1", pipeline=child, input=input or (lambda inv: inv.input), **options)
    return Pipeline(id=id, input=str, deps=object, steps=[made], output=lambda inv: inv[made])


def words(inv: Inv) -> list[str]:
    """Those of the input."""
    return inv.input.split()


def many(child: Texts, **options: Any) -> Texts:
    """A parent of as many child runs as its input has words."""
    made: Any = ForEachRun("subs/v1", pipeline=child, inputs=words, **options)
    return Pipeline(id="outer", input=str, deps=object, steps=[made], output=lambda inv: inv[made])


def app(*pipelines: Texts, **options: Any) -> App:
    """An app of them all."""
    return App(*(pipeline.bind() for pipeline in pipelines), store="memory://", build="test", retry=PROMPT, **options)


async def children(engine: Engine, pipeline: str = "work") -> list[Run[Any]]:
    """The child runs there are, oldest first."""
    found = [await engine.run(info.run_id) for info in await engine.list(pipeline=pipeline, limit=1_000)]
    return found[::-1]


async def never(inv: Inv) -> str:
    await asyncio.Event().wait()
    return inv.input


async def waiting_parent(engine: Engine, parent: Texts, input: str = "x", **options: Any) -> Run[Any]:
    run = await engine.submit(parent, input, **options)
    async for info in run.watch():
        if info.reason.startswith("waits for"):
            return run
    raise AssertionError("it never waited")
