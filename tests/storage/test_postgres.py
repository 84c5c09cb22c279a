"""What only PostgreSQL has: tables that are made once, clear refusals, and many processes at once [R-2, R-16, J-5]."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import psycopg
import pytest
from msgspec.structs import replace

from perdure.core.chain import chain_hash
from perdure.errors import StoreUnavailable, StoreUnusable
from perdure.ports.store import Committed, Conflict, IndexState, RunFilter, Store
from perdure.storage import open_store
from perdure.storage.postgres import Place, schema
from perdure.testing.conformance.lab import (
    ENDED,
    READY,
    T0,
    Draft,
    claimed,
    expect_journal,
    loaded,
    owned,
    put,
    submitted,
)
from tests.postgres import SECRET, PostgresServer
from tests.storage.helpers import kill, line, run, soon, start


@asynccontextmanager
async def opened(url: str, owner: str | None = None) -> AsyncGenerator[Store]:
    store = open_store(url)
    await soon(store.open(owner=owner))
    try:
        yield store
    finally:
        await soon(store.close())


# --- tables


async def test_many_processes_make_the_tables_once(postgres: PostgresServer) -> None:
    """Whoever comes first makes them, everybody else waits and finds them."""
    url = postgres.url()
    stores = [open_store(url) for _ in range(8)]
    await soon(asyncio.gather(*[store.open(owner=None) for store in stores]))
    for number, store in enumerate(stores):
        await submitted(store, f"run-{number}")
    assert (await stores[0].info())["runs"] == 8
    for store in stores:
        await store.close()


async def test_a_migrator_that_dies_leaves_nothing_behind(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While another process migrates one waits for a while; when that process is killed one goes on."""
    monkeypatch.setattr(schema, "PATIENCE_S", 1)
    url = postgres.url()
    place = Place.of(url)
    other = await psycopg.AsyncConnection.connect(place.conninfo)
    await other.execute("SELECT pg_advisory_xact_lock(%s::bigint)", (place.key("migrate"),))
    with pytest.raises(StoreUnavailable, match="another process has been changing the tables"):
        await soon(open_store(url).open(owner=None))
    postgres.sql(f"SELECT pg_terminate_backend({other.info.backend_pid})")
    async with opened(url) as store:
        await submitted(store, "run-1")
    await other.close()


async def test_a_newer_schema_is_refused(postgres: PostgresServer) -> None:
    """Nothing is changed in it; the message says what to do."""
    url = postgres.url(schema="newer")
    async with opened(url):
        postgres.sql("UPDATE newer.meta SET version = 99")
    with pytest.raises(StoreUnusable, match=r"version 99.*newer release"):
        await soon(open_store(url).open(owner="w1"))


async def test_tables_of_another_program_are_left_alone(postgres: PostgresServer) -> None:
    postgres.sql("CREATE SCHEMA foreigner CREATE TABLE customer (id int)")
    with pytest.raises(StoreUnusable, match="another program"):
        await soon(open_store(postgres.url(schema="foreigner")).open(owner=None))


async def test_a_store_that_was_exchanged_is_found_out(postgres: PostgresServer) -> None:
    """After a lost connection the store has to be the one that it was: a restored one has other facts [J-14]."""
    url = postgres.url(schema="exchanged")
    async with opened(url, "w1") as store:
        await claimed(store, "run-1")
        postgres.sql("UPDATE exchanged.meta SET store = gen_random_uuid()")
        postgres.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'perdure'")
        seen: list[bool] = []
        store.on_trouble(lambda trouble: seen.append(trouble.fatal))
        with pytest.raises(StoreUnusable, match="another store by now"):
            await soon(store.append(Draft("run-2").submit()))
        assert seen[-1]


# --- refusals


async def refusal(url: str) -> str:
    with pytest.raises(StoreUnusable) as caught:
        await soon(open_store(url).open(owner=None))
    return str(caught.value)


async def test_refusals_say_what_is_wrong(postgres: PostgresServer) -> None:
    """Each names who has to act, and no message tells the password."""
    postgres.sql(f"CREATE ROLE careful LOGIN PASSWORD '{SECRET}'")
    wrong = await refusal(postgres.url(user="careful", password="sesame closed"))
    assert "password in the URL is wrong" in wrong
    assert "sesame" not in wrong
    assert "may not create" in await refusal(postgres.url(user="careful", password=SECRET))
    assert "is not there" in await refusal(postgres.url(user="nobody_such"))
    assert "is not there" in await refusal(postgres.url().replace("/postgres?", "/no_such_database?"))
    assert "not known" in await refusal(postgres.url() + "&colour=red")
    postgres.sql("CREATE ROLE reader LOGIN; ALTER ROLE reader SET default_transaction_read_only = on")
    assert "read-only replica" in await refusal(postgres.url(user="reader"))
    postgres.sql("CREATE ROLE hasty LOGIN; ALTER ROLE hasty SET synchronous_commit = off")
    assert "synchronous_commit" in await refusal(postgres.url(user="hasty"))


async def test_a_server_that_is_not_there_is_unavailable() -> None:
    with pytest.raises(StoreUnavailable, match="cannot be reached") as caught:
        await soon(open_store("postgresql://me:secret@/x?host=/nowhere").open(owner=None))
    assert not isinstance(caught.value, StoreUnusable)
    assert "secret" not in str(caught.value)


async def test_a_user_without_rights_works_in_tables_that_are_there(postgres: PostgresServer) -> None:
    """Who made the tables need not be who uses them: opening a store that is up to date changes nothing."""
    async with opened(postgres.url(schema="granted")):
        pass
    postgres.sql(
        "CREATE ROLE modest LOGIN; GRANT USAGE ON SCHEMA granted TO modest; "
        "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA granted TO modest"
    )
    async with opened(postgres.url(schema="granted", user="modest"), "w1") as store:
        await put(store, draft := Draft("run-1"), draft.submit())


async def test_a_user_who_may_only_read_is_told_which_rights_are_needed(postgres: PostgresServer) -> None:
    """Nothing is damaged: a backup is no remedy [J-14]."""
    async with opened(postgres.url(schema="shown")):
        pass
    postgres.sql(
        "CREATE ROLE onlooker LOGIN; GRANT USAGE ON SCHEMA shown TO onlooker; "
        "GRANT SELECT ON ALL TABLES IN SCHEMA shown TO onlooker"
    )
    async with opened(postgres.url(schema="shown", user="onlooker")) as store:
        with pytest.raises(StoreUnusable, match="this user needs .* INSERT") as caught:
            await put(store, draft := Draft("run-1"), draft.submit())
    assert "backup" not in str(caught.value)


# --- many at once


async def test_rivals_neither_deadlock_nor_lose(postgres: PostgresServer) -> None:
    """Engine and clients append to the same runs, in other orders: one winner a place, nobody waits in a circle."""
    url = postgres.url(schema="rivals")
    before = int(postgres.sql("SELECT deadlocks FROM pg_stat_database WHERE datname = 'postgres'"))
    async with opened(url, "w1") as engine, opened(url) as one, opened(url) as two:
        drafts = [await claimed(engine, f"run-{n}") for n in range(12)]
        for turn in range(15):
            sent = [
                [draft.next(token=1, index=owned() if turn % 2 else None) for draft in drafts],
                [draft.next(index=READY) for draft in reversed(drafts)],
                [draft.next() for draft in drafts],
            ]
            futures = [[store.append(a) for a in part] for store, part in zip((engine, one, two), sent, strict=True)]
            for place, draft in enumerate(drafts):
                rivals = (sent[0][place], sent[1][-1 - place], sent[2][place])
                waiting = (futures[0][place], futures[1][-1 - place], futures[2][place])
                results = [await soon(future) for future in waiting]
                won = [n for n, result in enumerate(results) if isinstance(result, Committed)]
                assert len(won) == 1
                assert results.count(Conflict()) == 2
                draft.accept(rivals[won[0]], results[won[0]])
                if won != [0]:
                    assert draft.run_id in await engine.attention("w1")
        for draft in drafts:
            await expect_journal(engine, draft)
    after = int(postgres.sql("SELECT deadlocks FROM pg_stat_database WHERE datname = 'postgres'"))
    assert after == before


def _awaiting(*targets: str, token: int = 1) -> IndexState:
    return IndexState("ready", token=token, generation=1, awaits=targets, need=len(targets), at_us=T0 + 77)


async def test_no_wake_up_is_lost_between_processes(postgres: PostgresServer) -> None:
    """One process writes that a run waits for another, a second ends that one at the same time [R-16]."""
    url = postgres.url()
    async with opened(url, "w1") as engine, opened(url) as client:
        for n in range(40):
            target, waiter = await submitted(engine, f"target-{n}"), await claimed(engine, f"waiter-{n}")
            waits = waiter.next(token=1, index=_awaiting(target.run_id))
            ends = target.next(index=ENDED, at_us=T0 + 50)
            first, second = engine.append(waits), client.append(ends)
            waiter.accept(waits, await soon(first))
            target.accept(ends, await soon(second))
            assert (await loaded(engine, waiter)).row.state.due_us in (T0 + 50, T0 + 77), f"turn {n}"


async def test_no_slot_is_lost_between_processes(postgres: PostgresServer) -> None:
    """One process submits a run that waits, a second ends the run that has the slot at the same time [R-5, R-16]."""
    url = postgres.url()
    async with opened(url, "w1") as engine, opened(url) as client:
        for n in range(40):
            holder, waiter = await submitted(engine, f"holder-{n}", slot=f"slot-{n}"), Draft(f"w-{n}", slot=f"slot-{n}")
            waiter.new = replace(waiter.new, waits="queue")
            ends, comes = holder.next(index=ENDED, at_us=T0 + 50), waiter.submit(IndexState("ready"))
            first, second = engine.append(ends), client.append(comes)
            holder.accept(ends, await soon(first))
            waiter.accept(comes, await soon(second))
            row = (await loaded(engine, waiter)).row
            assert (row.waiting, row.state.due_us is None) == (False, False), f"turn {n}"


async def test_letting_go_and_facts_from_outside_see_each_other(postgres: PostgresServer) -> None:
    """An owner lets runs go while a client appends to them: one of both comes second, and knows it [J-6, R-2]."""
    url = postgres.url()
    backoff, outside = IndexState("ready", T0 + 9, token=1, reason="backoff"), IndexState("ready", T0 + 3, token=1)
    async with opened(url, "w1") as engine, opened(url) as client:
        for turn in range(20):
            drafts = [await claimed(engine, f"run-{turn}-{n}") for n in range(6)]
            sent = [draft.next(index=outside) for draft in drafts]
            let_go = [engine.set_index(draft.locator, backoff, draft.tail) for draft in drafts]
            told = [client.append(append) for append in reversed(sent)]
            for draft, append, done, answer in zip(drafts, sent, let_go, reversed(told), strict=True):
                draft.accept(append, await soon(answer))
                row = (await loaded(engine, draft)).row
                wanted = (outside, False) if await soon(done) else (owned(), True)
                assert (row.state, row.attention) == wanted


# --- hearing of others


async def test_a_pooler_is_looked_past(postgres: PostgresServer) -> None:
    """With a pooler nothing is prepared and nobody listens: commits of others are looked for [R-2]."""
    url = postgres.url(schema="pooled")
    async with opened(url + "&pooler=transaction", "w1") as engine, opened(url + "&pooler=transaction") as client:
        heard = asyncio.Event()
        engine.on_change(lambda change: heard.set())
        for n in range(3):
            heard.clear()
            await submitted(client, f"run-{n}")
            await soon(heard.wait())
        listening = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN \"perdure_pooled%'"
        assert postgres.sql(listening).strip() == "0"


# --- processes


async def test_a_forked_child_leaves_the_parents_connections_alone(postgres: PostgresServer) -> None:
    """The child is told; what it does on its way out says goodbye to no server in its parent's name."""
    assert await asyncio.to_thread(run, "fork", postgres.url()) == [
        "child StoreUnavailable True",
        "child StoreUnavailable True",
        "child StoreUnavailable True",
    ]


async def test_nothing_acknowledged_is_lost_by_kills(postgres: PostgresServer) -> None:
    """Killed again and again, each time followed at once by the next owner [J-1, J-14, R-2]."""
    url = postgres.url()
    acknowledged: set[tuple[str, int, str]] = set()
    for number in range(4):
        process = await asyncio.to_thread(start, "write_for_ever", url, f"w{number}")
        told = [await asyncio.to_thread(line, process) for _ in range(100 + 37 * number)]
        for words in map(str.split, [*told, *kill(process)]):
            acknowledged.add((words[0], int(words[1]), words[2]))
    async with opened(url, "last") as store:
        stored: set[tuple[str, int, str]] = set()
        for row in (await store.list_runs(RunFilter(), limit=100)).rows:
            found = await store.load_all_rows(row.run.run_id)
            assert found is not None
            before = b""
            for kept in found.rows:
                assert kept.hash == chain_hash(
                    before, kept.first_seq, kept.count, kept.at_us, kept.append_id, kept.facts
                )
                before = kept.hash
                stored.add((row.run.run_id, kept.first_seq, kept.append_id.hex()))
    assert acknowledged <= stored
