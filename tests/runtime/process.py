"""What the tests of this folder let other processes do: `python -m tests.runtime.process COMMAND ARGUMENTS`.

Every command says what happened in lines; the parent reads them, and kills at the line it likes.
"""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sys
import warnings
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from perdure import (
    App,
    AwaitMessage,
    Canceled,
    ForEach,
    Invocation,
    ItemInvocation,
    PerdureError,
    Pipeline,
    Retry,
    Succeeded,
    step,
)
from perdure.ports.observer import Event
from perdure.storage.sqlite import SqliteStore

EFFECTS = "PERDURE_TEST_EFFECTS"

Inv = Invocation[str, object]


def say(*words: object) -> None:
    """One line to the parent, at once and whole, from whatever thread."""
    os.write(1, f"{' '.join(map(str, words))}\n".encode())


def effect(inv: Invocation[Any, Any], what: str = "") -> str:
    """Something outside the store that cannot be taken back: a line in a file. The token that it left."""
    token = f"{inv.run_id} {what or inv.step_id} {inv.attempt} {os.getpid()}"
    file = os.open(os.environ[EFFECTS], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(file, f"{token}\n".encode())
    os.close(file)
    say("effect", token)
    return token


@step("one/v1")
async def one(inv: Inv) -> str:
    token = effect(inv)
    await asyncio.sleep(0)
    return token


@step("two/v1")
def two(inv: Inv) -> str:
    return effect(inv)


@step("three/v1", retry=Retry(initial=0.01))
async def three(inv: Inv) -> str:
    token = effect(inv)
    if inv.attempt == 1:
        raise OSError("the first time it does not work")
    return token


def tokens(inv: Inv) -> list[str]:
    return [inv[one], inv[two], inv[three]]


work: Pipeline[str, object, list[str]] = Pipeline(
    id="work", input=str, deps=object, steps=(one, two, three), output=tokens
)


@step("poison/v1", retry=Retry(initial=0))
async def swallow(inv: Inv) -> None:
    effect(inv)
    if inv.input == "poison":
        os.kill(os.getpid(), signal.SIGKILL)


def nothing(inv: Inv) -> None:
    return None


poisoned: Pipeline[str, object, None] = Pipeline(
    id="poisoned", input=str, deps=object, steps=(swallow,), output=nothing
)


@step("big/v1")
async def grow(inv: Inv) -> str:
    return "x" * 3000


big: Pipeline[str, object, None] = Pipeline(id="big", input=str, deps=object, steps=(grow,), output=nothing)


@step("wait/v1")
async def wait_for_ever(inv: Inv) -> str:
    say("waiting", inv.run_id)
    await asyncio.get_running_loop().create_future()
    return ""


patient: Pipeline[str, object, None] = Pipeline(
    id="patient", input=str, deps=object, steps=(wait_for_ever,), output=nothing
)

told: AwaitMessage[str, object, str] = AwaitMessage("told/v1", name="word", type=str)
again: AwaitMessage[str, object, str] = AwaitMessage("again/v1", name="word", type=str)


def words(inv: Inv) -> list[str]:
    return [inv[told], inv[again]]


listener: Pipeline[str, object, list[str]] = Pipeline(
    id="listener", input=str, deps=object, steps=(told, again), output=words
)


def numbers(inv: Inv) -> list[int]:
    return list(range(20))


async def one_item(inv: ItemInvocation[str, object, int]) -> str:
    token = effect(inv, f"items/v1#{inv.index}")
    if inv.index >= 10 and inv.attempt == 1:
        say("waiting", inv.index)
        await asyncio.get_running_loop().create_future()
    return token


itemized_step = ForEach("items/v1", items=numbers, handler=one_item, concurrency=4)


def item_tokens(inv: Inv) -> list[str]:
    return inv[itemized_step]


itemized: Pipeline[str, object, list[str]] = Pipeline(
    id="itemized", input=str, deps=object, steps=(itemized_step,), output=item_tokens
)

app = App(
    itemized.bind(),
    work.bind(),
    poisoned.bind(),
    big.bind(),
    patient.bind(),
    listener.bind(),
    build="test",
    drain_timeout=0.1,
)


# --- commands


async def worker(path: str) -> None:
    """An engine, until it is killed or its parent closes the pipe."""
    async with app.engine(store=SqliteStore(path), drain_timeout=0):
        say("started")
        await asyncio.to_thread(sys.stdin.readline)


async def second_engine(path: str) -> None:
    """Try to be the owner; say how it went."""
    try:
        async with app.engine(store=SqliteStore(path)):
            say("started")
    except PerdureError as error:
        say(type(error).__name__, str(error).replace("\n", " "))


async def client(path: str, *calls: str) -> None:
    """Call methods of a client beside the engine, such as `cancel:RUN`; say what came of it."""
    async with app.client(store=SqliteStore(path)) as client:
        for call in calls:
            name, _, argument = call.partition(":")
            match name:
                case "submit":
                    run = await client.submit(work, argument, actor="child")
                    say("submitted", run.id)
                case "result":
                    say(type(await client.result(argument, timeout=30)).__name__)
                case "cancel":
                    await client.cancel(argument, actor="child")
                    say("asked")
                case "resolve":
                    await client.resolve(argument, "wait/v1", value="resolved", actor="child")
                    say("resolved")
                case "send":
                    run_id, word, key = argument.split(" ")
                    try:
                        say("sent" if await client.send(run_id, "word", word, key=key) else "duplicate")
                    except PerdureError as error:
                        say(type(error).__name__)
                case "hold":
                    await client.hold(argument, actor="child")
                    say("held")
                case "release":
                    await client.release(argument, actor="child")
                    say("released")
                case _:
                    raise ValueError(call)


async def fork(path: str) -> None:
    """Fork while an engine works; the child may do nothing with it, the parent goes on."""
    warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of exactly this
    async with app.engine(store=SqliteStore(path), drain_timeout=0) as engine:
        waiting = await engine.submit(patient, "x")
        before = await engine.submit(big, "before")
        child = os.fork()
        if child == 0:
            try:
                engine.cancel(waiting.id).send(None)
                say("child canceled")
            except PerdureError as error:
                say("child", type(error).__name__, "forked" in str(error))
            os._exit(0)
        await asyncio.to_thread(os.waitpid, child, 0)
        after = await engine.submit(big, "after")
        for run in (before, after):
            say(type(await run.result(timeout=30)).__name__)
        await waiting.cancel()
        say(isinstance(await waiting.result(timeout=30), Canceled))


def largest(path: str) -> int:
    """Bytes of the larger one of a database and its log."""
    return max(Path(f"{path}{end}").stat().st_size for end in ("", "-wal"))


def limit_files(size: int) -> None:
    """Let no file of this process grow beyond a size."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


async def fill_disk(path: str) -> None:
    """No file may grow beyond a limit, as on a full disk, while an engine works; then it may again."""
    troubled = asyncio.Event()

    def observer(event: Event) -> None:
        if event.kind == "store-trouble":
            troubled.set()

    async with app.engine(store=SqliteStore(path), observers=[observer]) as engine:
        limit_files(largest(path) + 200_000)
        submitting = [asyncio.ensure_future(engine.submit(big, str(n))) for n in range(200)]
        async with asyncio.timeout(30):
            await troubled.wait()
        waiting = sum(not submitted.done() for submitted in submitting) + engine.running
        limit_files(resource.RLIM_INFINITY)
        runs = [await submitted for submitted in submitting]
        results = [await run.result(timeout=60) for run in runs]
        say("waited", waiting > 0)
        say("succeeded", sum(isinstance(result, Succeeded) for result in results))
        say("found", len((await engine.verify()).findings))


COMMANDS: dict[str, Callable[..., Coroutine[Any, Any, None]]] = {
    function.__name__: function for function in (worker, second_engine, client, fork, fill_disk)
}

if __name__ == "__main__":
    asyncio.run(COMMANDS[sys.argv[1]](*sys.argv[2:]))
