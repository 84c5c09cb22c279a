"""The pool of threads for `def` handlers: bounded, reused, and no job begins after its end [R-12, I-1]."""

from __future__ import annotations

import asyncio
import threading
from contextvars import ContextVar

import pytest

from perdure.runtime.threads import Threads

name: ContextVar[str] = ContextVar("name", default="")


async def test_threads_are_reused_and_never_more_than_the_limit() -> None:
    """I-1"""
    threads = Threads(asyncio.get_running_loop(), 3)
    for _ in range(20):
        await threads.run(threading.get_ident)
    assert len({await threads.run(threading.get_ident) for _ in range(20)}) == 1
    idents = await asyncio.gather(*(threads.run(threading.get_ident) for _ in range(50)))
    assert 1 <= len(set(idents)) <= 3
    threads.close()


async def test_results_exceptions_and_context_come_through() -> None:
    """I-1"""
    threads = Threads(asyncio.get_running_loop(), 1)
    name.set("the caller's")
    assert await threads.run(name.get) == "the caller's"

    def fail() -> None:
        raise LookupError("in the thread")

    with pytest.raises(LookupError, match="in the thread"):
        await threads.run(fail)
    assert await threads.run(lambda: 7) == 7
    threads.close()


async def test_a_job_whose_caller_is_gone_does_not_begin() -> None:
    """R-12: and those behind it do."""
    threads = Threads(asyncio.get_running_loop(), 1)
    go = threading.Event()
    ran: list[str] = []
    first = threads.run(lambda: go.wait(20))
    second = threads.run(lambda: ran.append("second"))
    third = threads.run(lambda: ran.append("third"))
    second.cancel()
    go.set()
    assert await first is True
    await third
    assert ran == ["third"]
    threads.close()


async def test_who_waits_for_a_thread_is_told_and_told_again_when_it_has_one() -> None:
    """R-18: so that the time of an attempt can begin then."""
    threads = Threads(asyncio.get_running_loop(), 1)
    go, on = threading.Event(), threading.Event()
    told: list[bool] = []
    has_one = asyncio.Event()

    def queued(waits: bool) -> None:
        told.append(waits)
        if not waits:
            has_one.set()

    first = threads.run(lambda: go.wait(20), queued)
    assert told == []
    second = threads.run(lambda: on.wait(20), queued)
    assert told == [True]
    go.set()
    await has_one.wait()
    assert told == [True, False]
    on.set()
    assert [await first, await second] == [True, True]
    threads.close()
