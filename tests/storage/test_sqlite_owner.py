"""One engine owns a file [R-2]: in a process, across processes, after a kill, across a fork."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.errors import StoreInUse
from perdure.storage.sqlite import SqliteStore
from perdure.testing.conformance.lab import expect_journal, submitted
from tests.storage.helpers import kill, line, run, start


async def test_second_engine_in_the_process_is_refused_by_name(tmp_path: Path) -> None:
    first = SqliteStore(tmp_path / "store.db")
    await first.open(owner="w-first")
    (tmp_path / "alias.db").symlink_to(tmp_path / "store.db")
    for name in ("store.db", "alias.db"):
        with pytest.raises(StoreInUse, match=r"worker w-first.*in this very process"):
            await SqliteStore(tmp_path / name).open(owner="w-second")
    assert "w-first" in str((await first.info())["owner"])
    await first.close()
    second = SqliteStore(tmp_path / "store.db")
    await second.open(owner="w-second")
    await second.close()


def test_second_process_is_refused_by_name_and_a_kill_frees_the_file(tmp_path: Path) -> None:
    """Ownership ends with the process, however it ends; nobody has to clean up."""
    path = tmp_path / "store.db"
    holder = start("hold", path, "w-holder")
    assert line(holder) == "owner"
    [told] = run("try_open", path, "w-late")
    assert told.startswith("StoreInUse")
    assert f"worker w-holder (process {holder.pid} on " in told
    assert run("try_open", path, "") == ["ok"]  # a client may
    kill(holder)
    assert run("try_open", path, "w-late") == ["ok"]


async def test_a_killed_owner_is_not_named_as_owner(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    holder = start("hold", path, "w-holder")
    assert line(holder) == "owner"
    client = SqliteStore(path)
    await client.open(owner=None)
    assert "w-holder" in str((await client.info())["owner"])
    kill(holder)
    assert (await client.info())["owner"] == "nobody"
    await client.close()


async def test_clients_of_the_process_do_not_give_ownership_away(tmp_path: Path) -> None:
    """POSIX drops a process's locks when any descriptor of the file is closed; clients come and go all the time."""
    path = tmp_path / "store.db"
    engine = SqliteStore(path)
    await engine.open(owner="w1")
    for number in range(3):
        client = SqliteStore(path)
        await client.open(owner=None)
        draft = await submitted(client, f"run-{number}")
        await client.info()
        await client.close()
        await expect_journal(engine, draft)
    [told] = run("try_open", path, "w2")
    assert told.startswith("StoreInUse")
    await engine.close()


def test_forked_child_is_refused_and_the_parent_goes_on(tmp_path: Path) -> None:
    """Threads and locks do not travel to a child; a clear error at every use does, and ownership stays behind."""
    assert run("fork", tmp_path / "store.db") == [
        "child StoreUnavailable True",
        "child StoreUnavailable True",
        "child StoreUnavailable True",
        "parent StoreInUse",
    ]
