"""What an administrator, a stranger or another release may do to a store that is at work in PostgreSQL [J-14, R-8].

In all of them it is said what is wrong, the store waits, and goes on when the hindrance is gone: nothing
that was acknowledged is lost, and nothing is there twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from urllib.parse import quote

import psycopg
import pytest

from perdure.errors import StoreUnavailable, StoreUnusable
from perdure.ports.store import Committed, Fenced, IndexState, Store
from perdure.storage import open_store
from perdure.storage.postgres import Place
from perdure.storage.postgres.session import MAX_READERS, Session
from perdure.testing.conformance.lab import T0, Draft, claimed, expect_journal, loaded, put, submitted
from perdure.testing.conformance.workers import worker
from tests.postgres import SECRET, PostgresServer
from tests.storage.helpers import Troubles, soon


@asynccontextmanager
async def opened(url: str) -> AsyncGenerator[Store]:
    store = open_store(url)
    await soon(store.open(owner="w1"))
    try:
        yield store
    finally:
        await soon(store.close())


@asynccontextmanager
async def stranger(server: PostgresServer) -> AsyncGenerator[psycopg.AsyncConnection[tuple[object, ...]]]:
    """A connection of somebody else, in a transaction."""
    con = await psycopg.AsyncConnection.connect(Place.of(server.url()).conninfo)
    try:
        yield con
    finally:
        await con.close()


def role(server: PostgresServer, name: str, *settings: str) -> None:
    """A role that may do everything, with settings of its own."""
    server.sql(f"CREATE ROLE {name} LOGIN SUPERUSER PASSWORD '{SECRET}'")
    for setting in settings:
        server.sql(f"ALTER ROLE {name} {setting}")


def change(server: PostgresServer, name: str, setting: str) -> None:
    """Change a role that is at work: its connections are ended, as when a server is restarted for it."""
    server.sql(f"ALTER ROLE {name} {setting}")
    server.sql(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{name}'")


async def told(troubles: Troubles, words: str) -> None:
    """Wait until a trouble that passes is told with these words."""
    while not any(words in trouble.problem for trouble in troubles.seen):
        await troubles.next()
    assert not any(trouble.fatal for trouble in troubles.seen)


@pytest.mark.parametrize("name", ["statement_timeout", "transaction_timeout"])
async def test_a_time_out_of_the_role_is_named_and_outlasted(postgres: PostgresServer, name: str) -> None:
    if name == "transaction_timeout" and int(postgres.sql("SHOW server_version_num")) < 170000:
        pytest.skip("PostgreSQL has transaction_timeout since 17")
    role(postgres, name)
    async with opened(postgres.url(schema=name, user=name)) as store:
        draft = await claimed(store, "run-1")
        postgres.sql(
            f"CREATE FUNCTION {name}.slow() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN PERFORM pg_sleep(60); RETURN NEW; END $$;"
            f"CREATE TRIGGER slow BEFORE INSERT ON {name}.journal FOR EACH ROW EXECUTE FUNCTION {name}.slow()"
        )
        change(postgres, name, f"SET {name} = '250ms'")
        troubles = Troubles(store)
        append = draft.next(token=1)
        answer = store.append(append)
        await told(troubles, f"is {name} set for this role")
        postgres.sql(f"DROP TRIGGER slow ON {name}.journal")
        draft.accept(append, await soon(answer))
        await expect_journal(store, draft)


async def test_connections_that_have_nothing_to_do_stay(postgres: PostgresServer) -> None:
    """Whatever the role's own setting: nobody would hear of others' commits, and every write would begin in vain."""
    role(postgres, "idle", "SET idle_session_timeout = '1ms'")
    async with opened(postgres.url(user="idle")) as store:
        troubles = Troubles(store)
        draft = await claimed(store, "run-1")
        before = postgres.sql("SELECT pid FROM pg_stat_activity WHERE usename = 'idle' ORDER BY pid")
        postgres.sql("SELECT pg_sleep(0.1)")
        await soon(put(store, draft, draft.next(token=1)))
        assert before == postgres.sql("SELECT pid FROM pg_stat_activity WHERE usename = 'idle' ORDER BY pid")
        assert not troubles.seen


async def test_a_server_that_lets_nobody_in_is_waited_for(postgres: PostgresServer) -> None:
    """All connections that the role may have are others' by now; what waits is written when there is room again."""
    async with opened(postgres.url(schema="outnumbered")) as store:
        await claimed(store, "run-0")
    postgres.sql(
        "CREATE ROLE outnumbered LOGIN; GRANT USAGE ON SCHEMA outnumbered TO outnumbered; "
        "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA outnumbered TO outnumbered"
    )
    async with opened(postgres.url(schema="outnumbered", user="outnumbered")) as store:
        draft = await claimed(store, "run-1")
        troubles = Troubles(store)
        change(postgres, "outnumbered", "CONNECTION LIMIT 0")
        append = draft.next(token=1)
        answer = store.append(append)
        await told(troubles, "admits no more connections")
        with pytest.raises(StoreUnavailable, match="admits no more connections"):
            await soon(store.load("run-1"))
        postgres.sql("ALTER ROLE outnumbered CONNECTION LIMIT -1")
        draft.accept(append, await soon(answer))
        await expect_journal(store, draft)


@pytest.mark.parametrize("state", ["40001", "40P01"])
async def test_a_transaction_that_is_to_be_tried_again_is(postgres: PostgresServer, state: str) -> None:
    """Serialization failures and deadlocks: at once, and after ten of them with a pause, which is told."""
    schema = f"refused_{state.lower()}"
    async with opened(postgres.url(schema=schema)) as store:
        draft = await claimed(store, "run-1")
        postgres.sql(
            f"CREATE SEQUENCE {schema}.faults; CREATE FUNCTION {schema}.fault() RETURNS trigger LANGUAGE plpgsql AS $$ "
            f"BEGIN IF nextval('{schema}.faults') <= 12 THEN RAISE EXCEPTION 'refused' USING ERRCODE = '{state}'; "
            "END IF; RETURN NEW; END $$; "
            f"CREATE TRIGGER fault BEFORE INSERT ON {schema}.journal FOR EACH ROW EXECUTE FUNCTION {schema}.fault()"
        )
        troubles = Troubles(store)
        new = Draft("run-2")
        sent = [(draft, draft.next(token=1)), (new, new.submit())]
        answers = [store.append(append) for _, append in sent]
        for (each, append), answer in zip(sent, answers, strict=True):
            each.accept(append, await soon(answer))
            await expect_journal(store, each)
        assert 1 <= len(troubles.seen) <= 12
        assert all("refused" in trouble.problem and not trouble.fatal for trouble in troubles.seen)


async def test_what_is_sent_again_is_sent_in_its_own_workers_name(postgres: PostgresServer) -> None:
    """Its engine was found dead meanwhile, and goes on as another worker; what it had queued is refused [R-3, J-14]."""
    url = postgres.url(schema="renamed")
    async with opened(url) as store, opened_client(url) as others:
        await store.register(worker("w1"))
        draft = await claimed(store, "run-1")
        troubles = Troubles(store)
        postgres.sql(
            "CREATE FUNCTION renamed.fault() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE EXCEPTION 'no answer' USING ERRCODE = '58000'; END $$; "
            "CREATE TRIGGER fault BEFORE INSERT ON renamed.journal EXECUTE FUNCTION renamed.fault()"
        )
        answer = store.append(draft.next(token=1, index=IndexState("ready", due_us=T0, token=1)))
        await told(troubles, "no answer")
        await soon(others.bury("w1", 0))
        await soon(store.register(worker("w2")))
        postgres.sql("DROP TRIGGER fault ON renamed.journal")
        assert isinstance(await soon(answer), Fenced)
        await expect_journal(store, draft)


async def test_a_server_that_becomes_read_only_is_waited_for(postgres: PostgresServer) -> None:
    """As after a failover, while a URL still names the replica."""
    role(postgres, "reading")
    async with opened(postgres.url(schema="reading", user="reading")) as store:
        draft = await claimed(store, "run-1")
        troubles = Troubles(store)
        change(postgres, "reading", "SET default_transaction_read_only = on")
        append = draft.next(token=1)
        answer = store.append(append)
        await told(troubles, "the URL has to name the primary")
        change(postgres, "reading", "RESET default_transaction_read_only")
        draft.accept(append, await soon(answer))
        await expect_journal(store, draft)


async def test_a_password_that_was_changed_is_waited_for(postgres: PostgresServer) -> None:
    """It may be changed back, or in libpq's own file; no message tells it."""
    role(postgres, "wary")
    async with opened(postgres.url(schema="wary", user="wary", password=SECRET)) as store:
        draft = await claimed(store, "run-1")
        troubles = Troubles(store)
        change(postgres, "wary", "PASSWORD 'another'")
        append = draft.next(token=1)
        answer = store.append(append)
        await told(troubles, "password in the URL is wrong")
        assert not any(SECRET in trouble.problem for trouble in troubles.seen)
        change(postgres, "wary", f"PASSWORD '{SECRET}'")
        draft.accept(append, await soon(answer))
        await expect_journal(store, draft)


async def test_a_release_that_takes_over_ends_the_old_one(postgres: PostgresServer) -> None:
    """The tables were changed for a newer release meanwhile: this one writes nothing more, and says why."""
    async with opened(postgres.url(schema="succeeded")) as store:
        await claimed(store, "run-1")
        troubles = Troubles(store)
        postgres.sql("UPDATE succeeded.meta SET version = 99")
        postgres.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'perdure'")
        with pytest.raises(StoreUnusable, match=r"version 99.*newer release"):
            await soon(store.append(Draft("run-2").submit()))
        assert troubles.seen[-1].fatal
    assert postgres.sql("SELECT count(*) FROM succeeded.run").strip() == "1"


async def test_a_stranger_with_our_advisory_lock_holds_up_only_what_needs_it(postgres: PostgresServer) -> None:
    """Nobody else uses the number, but anybody may: runs that come to wait for others wait; all else goes on."""
    url = postgres.url()
    async with opened(url) as store, stranger(postgres) as other:
        target, waiter, draft = [await claimed(store, f"run-{n}") for n in range(3)]
        await other.execute("SELECT pg_advisory_lock(%s::bigint)", (Place.of(url).key("awaits"),))
        state = IndexState("ready", token=1, awaits=(target.run_id,), need=1, at_us=T0)
        waits = waiter.next(token=1, index=state)
        answer = store.append(waits)
        for _ in range(3):
            await soon(put(store, draft, draft.next(token=1)))
        assert not answer.done()
        async with opened_client(url) as another:
            await submitted(another, "run-new")
        await other.close()
        waiter.accept(waits, await soon(answer))
        await expect_journal(store, waiter)


@asynccontextmanager
async def opened_client(url: str) -> AsyncGenerator[Store]:
    store = open_store(url)
    await soon(store.open(owner=None))
    yield store
    await soon(store.close())


async def test_a_paused_process_in_a_transaction_holds_nobody_up_for_long(postgres: PostgresServer) -> None:
    """Its transaction is ended by the server, whatever the role's own setting; here after a tenth of a second."""
    url = postgres.url()
    async with opened(url) as store:
        draft = await claimed(store, "run-1")
        brief = quote("-c idle_in_transaction_session_timeout=100")
        paused = await Session.connect(Place.of(f"{url}&options={brief}"))
        await paused.plain("BEGIN")
        await paused.run("SELECT 1 FROM @run WHERE n = %s FOR UPDATE", (draft.locator,))
        await soon(put(store, draft, draft.next(token=1, index=IndexState("ready", token=1))))
        with pytest.raises(psycopg.Error):
            await paused.plain("COMMIT")
        paused.drop()
        await expect_journal(store, draft)
        usual = await Session.connect(Place.of(url))
        assert await usual.plain("SHOW idle_in_transaction_session_timeout") == ("10s",)
        usual.drop()


async def test_settings_of_a_role_change_nothing(postgres: PostgresServer) -> None:
    """Impatience with idle transactions, another encoding, and a schema before the server's with traps in it."""
    postgres.sql(
        "CREATE SCHEMA trap; CREATE TABLE trap.run (id int); CREATE TABLE trap.meta (version int);"
        "CREATE FUNCTION trap.pg_notify(text, text) RETURNS void LANGUAGE sql AS $$ SELECT 1 / 0 $$;"
        "CREATE FUNCTION trap.unnest(bigint[]) RETURNS SETOF bigint LANGUAGE sql AS $$ SELECT 1 / 0 $$;"
        "CREATE FUNCTION trap.same(bigint, bigint) RETURNS boolean LANGUAGE sql AS $$ SELECT false $$;"
        "CREATE OPERATOR trap.= (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = trap.same)"
    )
    role(
        postgres,
        "odd",
        "SET search_path = trap, pg_catalog",
        "SET client_encoding = 'LATIN1'",
        "SET idle_in_transaction_session_timeout = '1ms'",
        "SET DateStyle = 'German'",
        "SET standard_conforming_strings = off",
        "SET default_transaction_isolation = 'serializable'",
    )
    url = postgres.url(user="odd") + "&client_encoding=LATIN1"
    async with opened(url) as store:
        troubles = Troubles(store)
        drafts = [await claimed(store, f"run-{n}") for n in range(4)]
        for _ in range(3):
            sent = [draft.next(token=1, index=IndexState("held", token=1, reason="ü€語")) for draft in drafts]
            answers = [store.append(append) for append in sent]
            for draft, append, answer in zip(drafts, sent, answers, strict=True):
                draft.accept(append, await soon(answer))
        for draft in drafts:
            await expect_journal(store, draft)
            assert (await loaded(store, draft)).row.state.reason == "ü€語"
        assert isinstance(await soon(store.append(Draft("run-ü€語").submit())), Committed)
        assert await store.load("run-ü€語") is not None
        assert troubles.seen == []
    assert postgres.sql("SELECT count(*) FROM trap.run").strip() == "0"


async def test_a_full_server_is_named_and_readers_take_turns(postgres: PostgresServer) -> None:
    """As many reads at once as anybody likes, on the connections that the role may have."""
    async with opened(postgres.url(schema="crowded")) as store:
        await claimed(store, "run-1")
    postgres.sql(
        "CREATE ROLE crowded LOGIN CONNECTION LIMIT 4; GRANT USAGE ON SCHEMA crowded TO crowded; "
        "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA crowded TO crowded"
    )
    url = postgres.url(schema="crowded", user="crowded")
    async with opened(url) as store:
        found = await soon(asyncio.gather(*[store.load("run-1") for _ in range(40)]))
        assert all(found)
        draft = await submitted(store, "run-2")
        await expect_journal(store, draft)
        with pytest.raises(Exception, match="admits no more connections; a process needs one to write"):
            await soon(asyncio.gather(*[open_and_close(url) for _ in range(4)]))


async def open_and_close(url: str) -> None:
    async with opened_client(url) as store:
        await store.info()


async def test_a_database_that_is_empty_by_now_is_refused(postgres: PostgresServer) -> None:
    """The schema is gone, as behind a URL that leads elsewhere by now: no new store is made under a worker's feet."""
    async with opened(postgres.url(schema="vanished")) as store:
        draft = await claimed(store, "run-1")
        postgres.sql("DROP SCHEMA vanished CASCADE")
        postgres.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'perdure'")
        with pytest.raises(StoreUnusable, match=r"empty by now|does not exist"):
            await soon(store.append(draft.next(token=1)))
    assert postgres.sql("SELECT count(*) FROM pg_namespace WHERE nspname = 'vanished'").strip() == "0"


async def test_a_read_is_answered_however_many_connections_were_lost(postgres: PostgresServer) -> None:
    """A server that restarted takes all of them: whoever reads next does not try one after the other [R-8]."""
    async with opened(postgres.url(schema="readers")) as store:
        draft = await claimed(store, "run-1")
        await asyncio.gather(*[store.load("run-1") for _ in range(3 * MAX_READERS)])
        postgres.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'perdure'")
        assert (await soon(loaded(store, draft))).row.run.run_id == "run-1"
