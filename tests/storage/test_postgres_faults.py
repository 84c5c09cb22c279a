"""PostgreSQL in trouble: connections cut, answers lost, the server gone [J-14, R-2, R-8]."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from tempfile import mkdtemp
from urllib.parse import quote

import pytest

from perdure.errors import InvalidArgument, StoreUnavailable
from perdure.ports.store import Committed, RunFilter, Store, Trouble
from perdure.storage import open_store
from perdure.testing.conformance.lab import Draft, claimed, expect_journal, put, submitted
from tests.postgres import PostgresServer
from tests.storage.helpers import DEADLINE_S, soon

SOCKET = ".s.PGSQL.5432"


class Proxy:
    """Stands between a store and its server, and cuts the line when it is told to.

    Attributes:
        lose: what is sent with these bytes in it is carried to the server, and the answer lost with the connection.
        shut: nobody is let in.
        shuts: nobody is let in after a loss.
    """

    def __init__(self, server: PostgresServer) -> None:
        self.folder = Path(mkdtemp(prefix="perdure-px-", dir="/tmp"))
        self.lose: bytes | None = None
        self.shut = self.shuts = False
        self.lost = 0
        self._target = server.folder / SOCKET
        self._writers: set[asyncio.StreamWriter] = set()

    def url(self, url: str) -> str:
        """The same store, through the proxy."""
        before, _, rest = url.partition("host=")
        return f"{before}host={quote(str(self.folder), safe='')}&{rest.partition('&')[2]}"

    def cut(self) -> None:
        """Cut every line at once."""
        for writer in self._writers:
            writer.transport.abort()

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.shut:
            writer.transport.abort()
            return
        server_reader, server_writer = await asyncio.open_unix_connection(self._target)
        self._writers |= {writer, server_writer}
        answers = asyncio.create_task(self._answers(server_reader, writer))
        with suppress(OSError):
            while data := await reader.read(65536):
                if self.lose is not None and self.lose in data:
                    self.lose = None
                    self.lost += 1
                    answers.cancel()
                    await asyncio.wait({answers})  # it reads no more
                    server_writer.write(data)
                    await server_reader.read(1)  # it has been done
                    if self.shuts:
                        self.shut = True
                        self.cut()
                    break
                server_writer.write(data)
        answers.cancel()
        for end in (writer, server_writer):
            end.transport.abort()
        self._writers -= {writer, server_writer}

    async def _answers(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
            writer.transport.abort()


@asynccontextmanager
async def proxied(server: PostgresServer) -> AsyncGenerator[Proxy]:
    proxy = Proxy(server)
    listening = await asyncio.start_unix_server(proxy.carry, proxy.folder / SOCKET)
    try:
        yield proxy
    finally:
        listening.close()
        proxy.cut()
        (proxy.folder / SOCKET).unlink(missing_ok=True)
        proxy.folder.rmdir()


@asynccontextmanager
async def opened(url: str, owner: str | None = None) -> AsyncGenerator[Store]:
    store = open_store(url)
    await store.open(owner=owner)
    try:
        yield store
    finally:
        await store.close()


class Troubles:
    """What a store told of its troubles, and waiting for more."""

    def __init__(self, store: Store) -> None:
        self.seen: list[Trouble] = []
        self._more = asyncio.Event()
        store.on_trouble(self._add)

    def _add(self, trouble: Trouble) -> None:
        self.seen.append(trouble)
        self._more.set()

    async def until(self, enough: Callable[[list[Trouble]], bool]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not enough(self.seen):
                self._more.clear()
                await self._more.wait()


async def test_lost_answers_are_found_out_by_sending_again(postgres: PostgresServer) -> None:
    """Commits whose answer is lost are committed once, and answered as what they are [J-14]."""
    async with proxied(postgres) as proxy, opened(proxy.url(postgres.url()), "w1") as store:
        troubles = Troubles(store)
        drafts = [await claimed(store, f"run-{n}") for n in range(5)]
        for _ in range(4):
            new = Draft(f"run-new-{proxy.lost}")
            sent = [draft.next(token=1) for draft in drafts]
            proxy.lose = sent[0].append_id
            answers = [store.append(append) for append in sent]
            first = new.submit()
            answers.append(store.append(first))
            for draft, append, answer in zip([*drafts, new], [*sent, first], answers, strict=True):
                draft.accept(append, await soon(answer))
            drafts.append(new)
            await put(store, new, new.claim())
            step = new.next(token=1)
            proxy.lose = step.append_id
            await soon(put(store, new, step))
            proxy.lose = b"COMMIT\0"  # not READ COMMITTED; what comes from outside takes several round trips
            await soon(put(store, new, new.next()))
        for draft in drafts:
            await expect_journal(store, draft)
        assert proxy.lost == 12
        assert len(troubles.seen) == 12
        assert not any(trouble.fatal for trouble in troubles.seen)


async def test_a_server_that_is_gone_is_waited_for(postgres: PostgresServer) -> None:
    """Appends wait while nobody answers, the trouble is told, and reads say so at once [R-8]."""
    async with proxied(postgres) as proxy, opened(proxy.url(postgres.url()), "w1") as store:
        troubles = Troubles(store)
        draft = await claimed(store, "run-1")
        proxy.shut = True
        proxy.cut()
        append = draft.next(token=1)
        answer = store.append(append)
        await troubles.until(lambda seen: len(seen) > 1)
        assert not answer.done()
        with pytest.raises(StoreUnavailable):
            await soon(store.load("run-1"))
        proxy.shut = False
        draft.accept(append, await soon(answer))
        await expect_journal(store, draft)


async def test_closing_in_trouble_ends_the_waiting(postgres: PostgresServer) -> None:
    """Whoever waits for a server that is gone hears that it was not written [R-8]."""
    async with proxied(postgres) as proxy:
        store = open_store(proxy.url(postgres.url()))
        await store.open(owner=None)
        troubles = Troubles(store)
        proxy.shut = True
        proxy.cut()
        answer = store.append(Draft("run-1").submit())
        await troubles.until(bool)
        await soon(store.close())
        with pytest.raises(StoreUnavailable, match="closed before it could be written"):
            await answer


async def test_a_server_that_restarts_loses_nothing(postgres: PostgresServer) -> None:
    """Killed and started again under load: every acknowledged append is there once [J-14, R-8]."""
    server = PostgresServer(fsync=True)
    try:
        server.start()
        async with opened(server.url(), "w1") as store:
            drafts = [await claimed(store, f"run-{n}") for n in range(8)]

            halfway = asyncio.Event()

            async def works(draft: Draft) -> None:
                for turn in range(15):
                    await put(store, draft, draft.next(token=1))
                    if turn == 5:
                        halfway.set()

            work = asyncio.gather(*map(works, drafts))
            await soon(halfway.wait())
            await asyncio.to_thread(server.stop)
            await asyncio.to_thread(server.start)
            await soon(work)
            for draft in drafts:
                await expect_journal(store, draft)
                assert len(draft.rows) == 17
    finally:
        server.remove()


async def test_backends_that_are_ended_hurt_nobody(postgres: PostgresServer) -> None:
    """An administrator ends our connections again and again: the owner stays the owner, listeners hear [R-2, R-8]."""
    url = postgres.url(schema="ended")
    async with opened(url, "w1") as engine, opened(url) as client:
        heard = asyncio.Event()
        engine.on_change(lambda change: heard.set())
        drafts = [await claimed(engine, f"run-{n}") for n in range(4)]
        for turn in range(5):
            postgres.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'perdure'")
            for draft in drafts:
                await soon(put(engine, draft, draft.next(token=1)))
            assert len((await soon(engine.list_runs(RunFilter(), limit=50))).rows) == 4 + turn
            await soon(put(client, draft := Draft(f"run-new-{turn}"), draft.submit()))
        heard.clear()
        await soon(submitted(client, "run-last"))
        await soon(heard.wait())
        for draft in drafts:
            await expect_journal(engine, draft)


async def test_what_cannot_be_stored_hurts_nobody_else(postgres: PostgresServer) -> None:
    """One append of a group has a text that PostgreSQL cannot hold: it alone is refused."""
    async with opened(postgres.url(), "w1") as store:
        good, bad = [Draft(f"run-{n}") for n in range(5)], Draft("run-bad", tenant="a\0b")
        appends = [draft.submit() for draft in good]
        answers = [store.append(append) for append in appends[:3]]
        refused = store.append(bad.submit())
        answers += [store.append(append) for append in appends[3:]]
        for answer in answers:
            assert isinstance(await soon(answer), Committed)
        with pytest.raises(InvalidArgument, match="cannot be stored"):
            await soon(refused)
        assert await store.load("run-bad") is None
