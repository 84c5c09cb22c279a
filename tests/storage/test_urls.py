"""`open_store`: which URL is which store, and a message for every other."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict

from perdure.errors import InvalidArgument
from perdure.ports.store import RunFilter
from perdure.storage import open_store
from perdure.storage.postgres import Place, PostgresStore
from perdure.storage.postgres.hosts import Hosts
from perdure.storage.sqlite import SqliteStore
from perdure.testing.conformance.lab import submitted


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:///payouts.db", "payouts.db"),
        ("sqlite:///data/payouts.db", "data/payouts.db"),
        ("sqlite:////var/lib/payouts.db", "/var/lib/payouts.db"),
        ("sqlite:///with%20blank.db", "with blank.db"),
        ("sqlite:////mnt/share/payouts.db?network=allow", "/mnt/share/payouts.db"),
    ],
)
def test_sqlite_paths(url: str, path: str) -> None:
    store = open_store(url)
    assert isinstance(store, SqliteStore)
    assert store.path == Path(path)


@pytest.mark.parametrize(
    ("url", "schema", "pooler", "conninfo"),
    [
        ("postgresql://me@db/x", "perdure", False, "postgresql://me@db/x"),
        ("postgres://me:pw@db:5433/x?schema=mine", "mine", False, "postgresql://me:pw@db:5433/x"),
        (
            "postgresql://db/x?sslmode=require&schema=mine&pooler=transaction",
            "mine",
            True,
            "postgresql://db/x?sslmode=require",
        ),
        (  # as libpq reads them
            "postgresql://db/x?options=-c%20a%3D1&application_name=a+b",
            "perdure",
            False,
            "postgresql://db/x?options=-c%20a%3D1&application_name=a%2Bb",
        ),
    ],
)
def test_postgres_places(url: str, schema: str, pooler: bool, conninfo: str) -> None:
    store = open_store(url)
    assert isinstance(store, PostgresStore)
    assert (store.place.schema, store.place.pooler, store.place.conninfo) == (schema, pooler, conninfo)
    assert "pw" not in store.place.shown


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://u:pw@a:1,b:2/x", "x at a:1, b:2"),
        ("postgresql://u:pw@a,b:5433/x", "x at a, b:5433"),
        ("postgresql://u:pw,pw@a,b/x", "x at a, b"),
        ("postgresql:///x?host=a,b&port=1,2&password=pw", "x at a:1, b:2"),
        ("postgresql://u:pw@/x?host=/run/a,/run/b", "x at /run/a, /run/b"),
        ("postgresql://u:pw@/x?hostaddr=10.0.0.1,10.0.0.2&port=5", "x at 10.0.0.1:5, 10.0.0.2:5"),
        ("postgresql://u:pw@[::1]:5,b:6/x", "x at ::1:5, b:6"),
    ],
)
def test_several_hosts_are_shown_without_the_password(url: str, shown: str) -> None:
    store = open_store(url)
    assert isinstance(store, PostgresStore)
    assert store.place.shown == f"{shown} (schema perdure)"
    assert store.place.hosts is not None
    assert Place.of("postgresql://u:pw@a/x").hosts is None


def test_how_long_a_server_may_be_silent() -> None:
    place = Place.of("postgresql://db/x?answer_timeout=2.5&sslmode=require")
    assert (place.answer_s, place.conninfo) == (2.5, "postgresql://db/x?sslmode=require")
    assert Place.of("postgresql://db/x").answer_s == 30


def test_several_hosts_are_asked_for_one_that_takes_writes() -> None:
    hosts = Hosts()
    given = conninfo_to_dict("postgresql://a:1,b:2,c:3/x")
    assert hosts.settings(given) == {**given, "target_session_attrs": "read-write"}
    chosen = {**given, "target_session_attrs": "primary"}
    assert hosts.settings(chosen) == chosen


@pytest.mark.parametrize("password", ["p@w", "p/w", "p?w", "p#w", "12/w", "p/w@v"])
def test_a_password_that_ends_too_early_is_not_shown(password: str) -> None:
    """What looks like the end of the password would be read as host or database, and shown as such."""
    with pytest.raises(InvalidArgument, match="written as a number") as refused:
        open_store(f"postgresql://u:{password}@a,b/x")
    assert "w" not in str(refused.value).replace("written", "").replace("password", "")


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("perdure.storage.postgres")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(InvalidArgument, match=r"pip install 'perdure\[postgres\]'"):
        open_store("postgresql://me@db/x")


@pytest.mark.parametrize(
    ("url", "word"),
    [
        ("", "supported"),
        ("payouts.db", "supported"),
        ("mysql://localhost/x", "supported"),
        ("postgresql://localhost/x?schema=public", "schema of its own"),
        ("postgresql://localhost/x?schema=A", "schema of its own"),
        ("postgresql://localhost/x?schema=pg_mine", "schema of its own"),
        ("postgresql://localhost/x?pooler=session", "pooler=transaction"),
        ("postgresql://localhost/x?answer_timeout=0", "seconds above 0"),
        ("postgresql://localhost/x?answer_timeout=-1", "seconds above 0"),
        ("postgresql://localhost/x?answer_timeout=30s", "seconds above 0"),
        ("sqlite:payouts.db", "names no file"),
        ("sqlite://payouts.db", "three"),
        ("sqlite:///", "names no file"),
        ("sqlite:///folder/", "names no file"),
        ("sqlite:///a%00b", "names no file"),
        ("sqlite:///:memory:", "memory://"),
        ("sqlite:///x.db?network=yes", "network=allow"),
        ("sqlite:///x.db?sync=off", "network=allow"),
        ("memory://name/path", "memory://NAME"),
        ("memory:///path", "memory://NAME"),
    ],
)
def test_what_is_not_a_store(url: str, word: str) -> None:
    with pytest.raises(InvalidArgument, match=word):
        open_store(url)


async def test_named_memory_is_shared_and_unnamed_is_not() -> None:
    first, second = open_store("memory://test-urls"), open_store("memory://test-urls")
    alone = open_store("memory://")
    for store in (first, second, alone):
        await store.open(owner=None)
    await submitted(first, "run-1")
    assert len((await second.list_runs(RunFilter())).rows) == 1
    assert len((await alone.list_runs(RunFilter())).rows) == 0
    for store in (first, second, alone):
        await store.close()


async def test_relative_path_is_taken_when_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store("sqlite:///here.db")
    monkeypatch.chdir(tmp_path)
    await store.open(owner="w1")
    await submitted(store, "run-1")
    await store.close()
    assert (tmp_path / "here.db").exists()
