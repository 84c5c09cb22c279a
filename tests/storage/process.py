"""What the tests of this folder let other processes do: `python -m tests.storage.process COMMAND ARGUMENTS`."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sys
import warnings
from collections.abc import Callable, Coroutine
from pathlib import Path

from perdure.errors import PerdureError
from perdure.ports.store import Committed, Store, Trouble
from perdure.storage import open_store
from perdure.storage.sqlite import SqliteStore
from perdure.testing.conformance.lab import Draft, put, submitted


def say(*words: object) -> None:
    """One line to the parent, at once."""
    print(*words, flush=True)


async def hold(path: str, worker: str) -> None:
    """Own the file until the parent writes a line or kills."""
    store = SqliteStore(path)
    await store.open(owner=worker)
    say("owner")
    await asyncio.to_thread(sys.stdin.readline)
    await store.close()


async def try_open(path: str, owner: str, user: str = "") -> None:
    """Open, submit a run, close; say how it went. With a user, as that user from now on."""
    if user:
        os.setgid(int(user))
        os.setuid(int(user))
    store = SqliteStore(path, patience_s=20.0)
    try:
        await store.open(owner=owner or None)
        await submitted(store, f"run-{os.getpid()}")
        await store.close()
    except PerdureError as error:
        say(type(error).__name__, error)
    else:
        say("ok")


async def migrate_halfway(url: str) -> None:
    """Make some of the tables of a store, and come no further."""
    from perdure.storage.postgres.session import Session

    execute, made = Session.run, 0

    async def run(self: Session, sql: str, values: object = ()) -> int:
        nonlocal made
        made += sql.strip().startswith("CREATE TABLE")
        if made > 4:
            say("halfway")
            await asyncio.get_running_loop().create_future()
        return await execute(self, sql, values)  # type: ignore[arg-type]  # handed on as it came

    type.__setattr__(Session, "run", run)  # in this process alone
    await open_store(url).open(owner=None)


def store_at(place: str) -> Store:
    """The store of a path or a URL."""
    return open_store(place) if "://" in place else SqliteStore(place)


async def write_for_ever(place: str, prefix: str) -> None:
    """Many runs side by side; says run, sequence and append id of every append after it was acknowledged."""
    store = store_at(place)
    await store.open(owner=prefix)

    async def one(number: int) -> None:
        draft = Draft(f"{prefix}-{number}")
        append = draft.submit()
        while True:
            draft.accept(append, await store.append(append))
            say(append.run_id, append.first_seq, append.append_id.hex())
            append = draft.next()

    await asyncio.gather(*[one(number) for number in range(8)])


async def write_some(path: str, prefix: str, runs: str, rows: str) -> None:
    """As a client: so many runs of so many rows each; says the troubles and the slowest append."""
    store = SqliteStore(path)
    troubles: list[Trouble] = []
    store.on_trouble(troubles.append)
    await store.open(owner=None)
    loop = asyncio.get_running_loop()
    slowest = 0.0

    async def one(number: int) -> None:
        nonlocal slowest
        draft = Draft(f"{prefix}-{number}")
        append = draft.submit()
        for _ in range(int(rows)):
            before = loop.time()
            draft.accept(append, await store.append(append))
            slowest = max(slowest, loop.time() - before)
            append = draft.next()

    await asyncio.gather(*[one(number) for number in range(int(runs))])
    await store.close()
    say("troubles", len(troubles), "slowest", f"{slowest:.3f}")


def largest(path: str) -> int:
    """Bytes of the larger one of a database and its log."""
    return max(Path(f"{path}{end}").stat().st_size for end in ("", "-wal"))


def limit_files(size: int) -> None:
    """Let no file of this process grow beyond a size."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


async def fill_disk(path: str) -> None:
    """No file of this process may grow beyond a limit, as on a full disk; then it may again."""
    store = SqliteStore(path)
    troubled, answered = asyncio.Event(), asyncio.Event()
    problems: list[str] = []

    def told(trouble: Trouble) -> None:
        problems.append(trouble.problem)
        troubled.set()

    store.on_trouble(told)
    await store.open(owner="w1")
    draft = await submitted(store, "run-1")
    limit_files(largest(path) + 20_000)
    acknowledged = 0
    trouble = asyncio.ensure_future(troubled.wait())
    append = draft.next()
    while True:
        future = store.append(append)
        future.add_done_callback(lambda _: None if trouble.done() else answered.set())
        answered.clear()
        await asyncio.wait({trouble, asyncio.ensure_future(answered.wait())}, return_when=asyncio.FIRST_COMPLETED)
        if not future.done():
            break
        draft.accept(append, future.result())
        acknowledged += 1
        append = draft.next()
    reads_go_on = await store.load("run-1") is not None
    limit_files(resource.RLIM_INFINITY)
    result = await asyncio.wait_for(future, 30)
    await store.close()
    say(acknowledged > 0, reads_go_on, isinstance(result, Committed), problems[0])


async def fork(place: str) -> None:
    """Use a store in a forked child, then in the parent."""
    store = store_at(place)
    await store.open(owner="w1")
    draft = await submitted(store, "run-1")
    child = os.fork()
    if child == 0:
        for use in (
            lambda: store.append(draft.next()),
            lambda: store.load("run-1").send(None),
            lambda: store.take_over(1).send(None),
        ):
            try:
                use()
            except PerdureError as error:
                say("child", type(error).__name__, "forked" in str(error))
        store.abort()
        os._exit(0)
    await asyncio.to_thread(os.waitpid, child, 0)
    await put(store, draft, draft.next())
    second = store_at(place)
    try:
        await second.open(owner="w2")
    except PerdureError as error:
        say("parent", type(error).__name__)
    await store.close()


COMMANDS: dict[str, Callable[..., Coroutine[None, None, None]]] = {
    "hold": hold,
    "try_open": try_open,
    "write_for_ever": write_for_ever,
    "migrate_halfway": migrate_halfway,
    "write_some": write_some,
    "fill_disk": fill_disk,
    "fork": fork,
}

if __name__ == "__main__":
    warnings.filterwarnings("ignore", message=".*multi-threaded, use of fork", category=DeprecationWarning)
    asyncio.run(COMMANDS[sys.argv[1]](*sys.argv[2:]))
