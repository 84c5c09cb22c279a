"""What the writer of a store is asked to do, and how one of it is done: in one transaction of ours [J-14]."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, TypeAlias, TypeVar

import msgspec
import psycopg

from perdure.errors import PerdureError, StoreUnavailable
from perdure.ports.store import Append
from perdure.storage.postgres.entries import Entry, PutSnapshot, SetIndex, told
from perdure.storage.postgres.group import apply_group
from perdure.storage.postgres.place import Place
from perdure.storage.postgres.session import Session
from perdure.storage.postgres.telling import written

T = TypeVar("T")

MAX_GROUP = 1024
MAX_GROUP_BYTES = 4 << 20

Blocked = psycopg.errors.LockNotAvailable
"""Somebody else's open transaction holds what is to be written."""


class Work(msgspec.Struct, gc=False):
    """Something that is not part of a group: it has a transaction of its own."""

    run: Callable[[Session], Awaitable[object]]
    long: bool = False

    async def do(self, session: Session) -> object:
        """Do it; what may be about very many rows may take long."""
        session.long = self.long
        try:
            return await self.run(session)
        finally:
            session.long = False


Job: TypeAlias = tuple["asyncio.Future[Any] | None", "Entry | Work", str]
"""Who waits for it, what it is, and in whose name it was queued: that stays, whoever its engine is by then [R-3]."""
Subject: TypeAlias = tuple[str | int, ...]


async def transaction(
    session: Session, place: Place, work: Callable[[Session], Awaitable[T]], *, patience_ms: int, tells: str
) -> T:
    """Do something in a transaction of its own.

    Args:
        patience_ms: how long it waits for a lock.
        tells: what others are told; empty: nothing, nor where `work` returns 0 or False.

    Raises:
        Blocked: somebody held a lock for longer; nothing was written.
    """
    session.waits_s = patience_ms / 1000
    try:
        await session.plain(f"BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = {patience_ms}")
        result = await work(session)
        if isinstance(result, int) and not result:
            tells = ""  # nothing was found to be done
        said = tells.replace("'", "''")
        await session.plain(f"NOTIFY \"{place.channel}\", '{said}'; COMMIT" if tells else "COMMIT")
    except BaseException:
        if not await session.rolled_back():
            session.drop()
        raise
    return result


async def do_alone(session: Session, place: Place, entry: Entry | Work, *, patience_ms: int, teller: str) -> object:
    """Do one thing alone; see `transaction`."""
    if isinstance(entry, Work):
        return await transaction(session, place, entry.do, patience_ms=patience_ms, tells=teller)
    tells = written(teller, told((entry,)))
    found = await transaction(
        session, place, lambda s: apply_group(s, place, [entry]), patience_ms=patience_ms, tells=tells
    )
    return found[0]


def subjects(entry: Entry | Work) -> list[Subject]:
    """What an entry may have to wait for: its run, or the slot, the mutexes, the room and the key that it would
    take."""
    if isinstance(entry, (Work, PutSnapshot)):
        return []
    if isinstance(entry, SetIndex) or entry.new is None:
        return [(entry.locator,)]
    new, found = entry.new, list[Subject]()
    if new.slot_key is not None:
        found.append(("slot", new.slot_key, new.pipeline, new.tenant))
    found += [("mutex", name, new.resource, new.tenant) for name in new.mutexes]
    found += [("entrance", entrance.limit, entrance.key) for entrance in new.entrances]
    if entry.key is not None:
        found.append(("key", entry.key.key, entry.key.pipeline, entry.key.tenant))
    return found


def answer(job: Job, result: object) -> None:
    """Tell whoever waits for it what became of a job."""
    future = job[0]
    if future is not None and not future.done():
        future.set_result(result)


def refuse(jobs: Sequence[Job], error: PerdureError | None) -> None:
    """Tell whoever waits for them that jobs were not done."""
    for future, *_ in jobs:
        if future is not None and not future.done():
            future.set_exception(error or StoreUnavailable("the store was closed"))


def parts(jobs: Sequence[Job]) -> Iterator[Sequence[Job]]:
    """Groups of bounded size, each in the name of one worker; works alone; order kept."""
    part: list[Job] = []
    size = 0
    for job in jobs:
        entry = job[1]
        alone = isinstance(entry, Work)
        if part and (alone or len(part) >= MAX_GROUP or size >= MAX_GROUP_BYTES or job[2] != part[0][2]):
            yield part
            part, size = [], 0
        if alone:
            yield [job]
            continue
        part.append(job)
        if type(entry) is Append:
            size += len(entry.facts)
    if part:
        yield part
