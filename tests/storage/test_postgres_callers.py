"""Transactions of callers on a PostgreSQL store: who has to wait for them, and who has not [I-1, R-16]."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import psycopg
import pytest
from msgspec.structs import replace
from psycopg.rows import TupleRow

from perdure.errors import StoreUnavailable
from perdure.ports.store import Committed, IndexState, Snapshot
from perdure.testing.conformance.lab import READY, T0, Draft, claimed, expect_journal, loaded, owned, put, submitted
from tests.postgres import PostgresServer
from tests.storage.helpers import soon
from tests.storage.test_postgres_faults import Troubles, opened


@asynccontextmanager
async def outside(url: str) -> AsyncGenerator[psycopg.AsyncConnection[TupleRow]]:
    """A connection of a caller's, in the schema of the store."""
    schema = url.rpartition("schema=")[2]
    parts = urlsplit(url)
    conninfo = parts._replace(query=parts.query.rpartition("&schema=")[0]).geturl()
    async with await psycopg.AsyncConnection.connect(conninfo, options=f"-c search_path={schema}") as con:
        yield con


async def test_an_open_transaction_stalls_nobody_else(postgres: PostgresServer) -> None:
    """A run that somebody holds waits; runs of the same group and of later ones do not, and it gets its turn."""
    url = postgres.url()
    async with opened(url, "w1") as store, outside(url) as caller:
        held, plain, others = await claimed(store, "run-a"), await claimed(store, "run-b"), list[Draft]()
        await caller.execute("SELECT 1 FROM run WHERE id = 'run-a' FOR UPDATE")
        waiting = held.next(token=1, index=owned())
        answer = store.append(waiting)
        step = plain.next(token=1)
        together = store.append(step)
        plain.accept(step, await soon(together))
        for n in range(3):
            others.append(await submitted(store, f"run-c{n}"))
            await put(store, plain, plain.next(token=1))
        store.put_snapshot(held.locator, Snapshot(1, held.rows[0].hash, 1, 1, b"x"))
        later = store.set_index(held.locator, owned(), 1)  # it would only wait, too: the group does not try
        await put(store, plain, plain.next(token=1))
        assert not answer.done()
        assert not later.done()
        await caller.rollback()
        held.accept(waiting, await soon(answer))
        assert await soon(later) in (True, False)
        for draft in (held, plain, *others):
            await expect_journal(store, draft)


async def test_many_that_wait_take_turns(postgres: PostgresServer) -> None:
    """More wait than there are connections for it; one whose turn it is gets through whatever the others wait for."""
    url = postgres.url()
    async with opened(url, "w1") as store, outside(url) as caller, outside(url) as other:
        drafts = [await claimed(store, f"run-{n}") for n in range(7)]
        await caller.execute("SELECT 1 FROM run WHERE id < 'run-6' FOR UPDATE")
        await other.execute("SELECT 1 FROM run WHERE id = 'run-6' FOR UPDATE")
        sent = [draft.next(token=1, index=owned()) for draft in drafts]
        answers = [store.append(append) for append in sent]
        free = await claimed(store, "run-free")
        assert not any(answer.done() for answer in answers)
        await other.rollback()
        drafts[6].accept(sent[6], await soon(answers[6]))
        await put(store, free, free.next(token=1))
        assert not any(answer.done() for answer in answers[:6])
        await caller.rollback()
        for draft, append, answer in zip(drafts[:6], sent[:6], answers[:6], strict=True):
            draft.accept(append, await soon(answer))


async def test_sweeps_wait_aside(postgres: PostgresServer) -> None:
    """What an engine does to many runs at once waits for the caller; steps do not."""
    url = postgres.url()
    async with opened(url, "w1") as store, outside(url) as caller:
        draft, plain = await claimed(store, "run-a"), await claimed(store, "run-b")
        await caller.execute("SELECT 1 FROM run WHERE id = 'run-a' FOR UPDATE")
        sweep = asyncio.ensure_future(store.take_over(1))
        await asyncio.sleep(0)
        await put(store, plain, plain.next(token=1))
        assert not sweep.done()
        await caller.rollback()
        assert await soon(sweep) == 2
        assert isinstance(await soon(store.append(draft.next(token=1))), Committed)


async def test_the_sweep_of_slots_waits_for_no_holder(postgres: PostgresServer) -> None:
    """R-16: slots that are taken stay as they are, however many runs wait: their holders are neither waited for, nor
    kept from going on meanwhile; slots that nobody has are passed on."""
    url = postgres.url()
    async with opened(url, "w1") as store, outside(url) as caller:
        taken = await claimed(store, "run-a", slot="s")
        free = await claimed(store, "run-b", slot="t")
        for slot in ("s", "t"):
            waiting = Draft(f"run-{slot}", slot=slot, input='"another"')
            waiting.new = replace(waiting.new, waits="queue")
            await put(store, waiting, waiting.submit(replace(READY, due_us=None)))
        row = (await loaded(store, free)).row
        await store.restore_index(free.locator, row.run, row.state, None, slot_held=False)
        await caller.execute("SELECT 1 FROM run WHERE n = %s FOR UPDATE", (taken.locator,))
        assert await soon(store.grant_slots(T0 + 5)) == 1


async def test_closing_does_not_wait_for_a_caller(postgres: PostgresServer) -> None:
    """One more try, then the store is closed, and who waited is told so."""
    url = postgres.url()
    async with outside(url) as caller:
        async with opened(url, "w1") as store:
            troubles = Troubles(store)
            held, plain = await claimed(store, "run-a"), await claimed(store, "run-b")
            await caller.execute("SELECT 1 FROM run WHERE id = 'run-a' FOR UPDATE")
            answer = store.append(held.next(token=1, index=owned()))
            await put(store, plain, plain.next(token=1))
        with pytest.raises(StoreUnavailable, match="open transaction of somebody else"):
            await soon(answer)
        assert troubles.seen == []


async def test_a_store_that_is_aborted_waits_for_nobody(postgres: PostgresServer) -> None:
    """As a killed process would."""
    url = postgres.url()
    tasks = asyncio.all_tasks()
    async with outside(url) as caller, opened(url, "w1") as store:
        held, plain = await claimed(store, "run-a"), await claimed(store, "run-b")
        await caller.execute("SELECT 1 FROM run WHERE id = 'run-a' FOR UPDATE")
        answer = store.append(held.next(token=1, index=owned()))
        await put(store, plain, plain.next(token=1))
        ours = asyncio.all_tasks() - tasks
        store.abort()
        with pytest.raises(asyncio.CancelledError):
            await soon(answer)
        await soon(asyncio.gather(*ours, return_exceptions=True))


async def test_a_ledger_of_an_open_transaction_stalls_nobody(postgres: PostgresServer) -> None:
    """D-6, I-1: the first run of a pipeline is a caller's; whoever submits the next one shares its ledger at once."""
    url = postgres.url()
    state = IndexState("ready", due_us=T0, signature=b"s" * 16, ledger=b"l")
    async with opened(url, "w1") as store, outside(url) as caller:
        joined = await store.join(caller)
        mine = Draft("run-a")
        mine.accept(first := mine.submit(state), await joined.append(first))
        for number in range(3):
            other = Draft(f"run-b{number}")
            await put(store, other, other.submit(state))
        counted = await store.ledgers()
        assert [(entry.count, entry.ledger) for entry in counted] == [(3, b"l")]
        await caller.commit()
        await expect_journal(store, mine)
        assert [entry.count for entry in await store.ledgers()] == [4]
