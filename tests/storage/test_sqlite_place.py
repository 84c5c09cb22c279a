"""Files that cannot be a store: one clear error each, and nothing is changed in them."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from perdure.errors import StoreUnavailable, StoreUnusable
from perdure.ports.store import RunFilter
from perdure.storage.sqlite import SqliteStore
from perdure.storage.sqlite.place import network_type
from perdure.testing.conformance.lab import Draft, expect_journal, submitted
from tests.storage.helpers import run

NOBODY = "65534"


def directory(path: Path) -> None:
    path.mkdir()


def garbage(path: Path) -> None:
    path.write_bytes(b"this is not a database, it only looks like a file" * 100)


def foreign(path: Path) -> None:
    with sqlite3.connect(path) as con:
        con.execute("CREATE TABLE customers (name TEXT)")
    con.close()


def foreign_id(path: Path) -> None:
    with sqlite3.connect(path) as con:
        con.execute("PRAGMA application_id = 12345")
        con.execute("CREATE TABLE run (id TEXT)")
    con.close()


def lost_its_log(path: Path) -> None:
    path.write_bytes(b"")
    Path(f"{path}-wal").write_bytes(b"x" * 5000)


def pipe(path: Path) -> None:
    os.mkfifo(path)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (directory, "is a directory"),
        (garbage, "not a SQLite database"),
        (foreign, "another program"),
        (foreign_id, "another program"),
        (lost_its_log, "truncated"),
        (pipe, "not a regular file"),
    ],
)
async def test_foreign_files_are_refused_and_left_alone(
    make: Callable[[Path], None], words: str, tmp_path: Path
) -> None:
    path = tmp_path / "store.db"
    make(path)
    before = path.read_bytes() if path.is_file() else None
    for owner in ("w1", None):
        with pytest.raises(StoreUnusable, match=words):
            await SqliteStore(path).open(owner=owner)
    assert before is None or path.read_bytes() == before


async def test_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreUnusable, match="nowhere does not exist; create it"):
        await SqliteStore(tmp_path / "nowhere" / "store.db").open(owner="w1")


async def filled(path: Path) -> list[Draft]:
    """A closed store with some runs in it."""
    store = SqliteStore(path)
    await store.open(owner="w1")
    drafts = [await submitted(store, f"run-{i:03}") for i in range(200)]
    await store.close()
    return drafts


async def test_newer_schema_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    await filled(path)
    con = sqlite3.connect(path)
    con.execute("PRAGMA user_version = 2")
    con.close()
    with pytest.raises(StoreUnusable, match=r"schema version 2.*newer release"):
        await SqliteStore(path).open(owner="w1")


@pytest.mark.parametrize("keep", [0.5, 0.9])
async def test_truncated_file_is_refused(keep: float, tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    await filled(path)
    os.truncate(path, int(path.stat().st_size * keep) // 4096 * 4096)
    with pytest.raises(StoreUnusable, match="damaged or truncated"):
        await SqliteStore(path).open(owner="w1")


async def test_damaged_header_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    await filled(path)
    with path.open("r+b") as file:
        file.write(b"\0" * 16)
    with pytest.raises(StoreUnusable, match="not a SQLite database"):
        await SqliteStore(path).open(owner="w1")


async def test_a_store_without_its_tables_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    await filled(path)
    con = sqlite3.connect(path)
    con.execute("DROP TABLE run")
    con.close()
    with pytest.raises(StoreUnusable, match="does not look like a store"):
        await SqliteStore(path).open(owner="w1")


async def test_refused_store_opens_once_the_reason_is_gone(tmp_path: Path) -> None:
    """A failed `open` leaves no lock and no thread behind."""
    path = tmp_path / "sub" / "store.db"
    store = SqliteStore(path)
    with pytest.raises(StoreUnusable):
        await store.open(owner="w1")
    path.parent.mkdir()
    garbage(path)
    with pytest.raises(StoreUnusable):
        await store.open(owner="w1")
    path.unlink()
    await store.open(owner="w1")
    await expect_journal(store, await submitted(store, "run-1"))
    await store.close()


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """A folder that other users can reach; pytest's own are private."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(os.path.realpath(name))
        folder.chmod(0o755)
        yield folder
        folder.chmod(0o755)


def test_read_only_file_and_directory(public_folder: Path) -> None:
    """Tried as another user where this one may do anything."""
    path = public_folder / "store.db"
    asyncio.run(filled(path))
    user = NOBODY if os.geteuid() == 0 else ""
    path.chmod(0o444)
    public_folder.chmod(0o555)
    assert run("try_open", path, "", user) == [
        f"StoreUnusable {path} cannot be written by this user; SQLite needs to read and write it"
    ]
    path.chmod(0o666)
    for name in ("store.db", "new.db"):
        [told] = run("try_open", public_folder / name, "w2", user)
        assert told.startswith(f"StoreUnusable the directory {public_folder} is read-only for this user")


async def test_file_locked_for_long_by_another_program(tmp_path: Path) -> None:
    """Opening waits for a lock, says so when it lasts, and works once it is gone."""
    path = tmp_path / "store.db"
    drafts = await filled(path)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("PRAGMA journal_mode = DELETE")
    other.execute("BEGIN EXCLUSIVE")
    store = SqliteStore(path, patience_s=0.1)
    with pytest.raises(StoreUnavailable, match="locked by another program"):
        await store.open(owner="w1")
    other.execute("ROLLBACK")
    other.close()
    await store.open(owner="w1")
    await expect_journal(store, drafts[0])
    await store.close()


MOUNTS = """\
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
31 27 0:45 / /mnt/team rw shared:7 - nfs4 server:/team rw,vers=4.2
32 31 254:1 / /mnt/team/local rw - xfs /dev/vdb rw
33 27 0:46 / /mnt/with\\040blank rw - cifs //server/share rw
34 27 0:47 / /home/me/remote rw - fuse.sshfs me@host: rw
broken line
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/lib/store.db", None),
        ("/mnt/team/store.db", "nfs4"),
        ("/mnt/team/deep/er/store.db", "nfs4"),
        ("/mnt/team/local/store.db", None),
        ("/mnt/teamwork/store.db", None),
        ("/mnt/with blank/store.db", "cifs"),
        ("/home/me/remote/store.db", "fuse.sshfs"),
    ],
)
def test_network_file_systems_are_recognised(path: str, kind: str | None) -> None:
    assert network_type(Path(path), MOUNTS) == kind


async def test_network_file_system_is_refused_unless_allowed(tmp_path: Path) -> None:
    """Refused with advice by default, used if the user vouches for it."""
    mounts = f"{MOUNTS}40 27 0:50 / {tmp_path} rw - nfs server:/x rw\n"
    path = tmp_path / "store.db"
    with pytest.raises(StoreUnusable, match=r"network file system \(nfs\).*local disk.*network=allow"):
        await SqliteStore(path, mountinfo=mounts).open(owner="w1")
    assert not path.exists()
    store = SqliteStore(path, network=True, mountinfo=mounts)
    await store.open(owner="w1")
    assert list((await store.list_runs(RunFilter())).rows) == []
    await store.close()
