"""Archives: what is written is whole and stays as it is, and a bad destination costs no run [R-9]."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from perdure import connect
from perdure.errors import ArchiveUnavailable, InvalidArgument
from perdure.storage import open_archive
from perdure.storage.archives.folder import FolderArchive
from perdure.storage.memory import MemoryData, MemoryStore
from perdure.testing.conformance.lab import ended


async def opened(path: Path, *, create: bool = True) -> FolderArchive:
    archive = FolderArchive(path)
    await archive.open(create=create)
    return archive


async def test_what_is_written_is_there_and_is_never_written_again(tmp_path: Path) -> None:
    """R-9: the first one stays; nothing half written is ever listed, or left behind."""
    archive = await opened(tmp_path / "a")
    assert await archive.write("part-2", b"two")
    assert await archive.write("part-1", b"one")
    assert not await archive.write("part-1", b"another")
    other = await opened(tmp_path / "a", create=False)
    assert await other.names() == ["part-1", "part-2"]
    assert await other.read("part-1") == b"one"
    assert sorted(os.listdir(tmp_path / "a")) == ["part-1", "part-2"]
    await archive.close()


async def test_a_file_system_without_links_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """R-9: such as FAT, and some of networks."""

    def refused(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    archive = await opened(tmp_path)
    monkeypatch.setattr(os, "link", refused)
    assert await archive.write("part-1", b"one")
    assert not await archive.write("part-1", b"another")
    assert await archive.read("part-1") == b"one"
    assert os.listdir(tmp_path) == ["part-1"]


async def test_bytes_are_durable_before_their_name_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """R-9: the file, then its name, then the folder."""
    archive = await opened(tmp_path)
    seen: list[tuple[str, bool]] = []
    sync = os.fsync

    def watched(descriptor: int) -> None:
        target = os.readlink(f"/proc/self/fd/{descriptor}")
        seen.append(("folder" if target == str(tmp_path) else "file", (tmp_path / "part-1").exists()))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    assert await archive.write("part-1", b"one")
    assert seen == [("file", False), ("folder", True)]


async def test_a_full_disk_costs_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """R-9: says so, leaves nothing behind, and nothing was removed."""
    data, archive = MemoryData(), await opened(tmp_path)
    store = MemoryStore(data)
    await store.open(owner=None)
    await ended(store, "run-1")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async with connect(MemoryStore(data)) as client:
        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(ArchiveUnavailable, match=r"cannot be written: No space left on device"):
            await client.gc(0, archive=archive)
        assert await store.load("run-1") is not None
        assert os.listdir(tmp_path) == []
        monkeypatch.undo()
        assert (await client.gc(0, archive=archive)).archived == 1


def a_file(folder: Path) -> Path:
    (folder / "file").write_text("x")
    return folder / "file"


async def test_what_killed_processes_left_half_written_is_removed_in_time(tmp_path: Path) -> None:
    """R-9: after a day, by whoever writes there next; nothing else is, and no reader does it."""
    old, young, other = tmp_path / ".part-1.0123abcd", tmp_path / ".part-2.0123abcd", tmp_path / ".hidden"
    for path in (old, young, other):
        path.write_bytes(b"half")
        os.utime(path, (1, 1))
    os.utime(young)
    await opened(tmp_path, create=False)
    assert old.exists()
    archive = await opened(tmp_path)
    assert sorted(os.listdir(tmp_path)) == [other.name, young.name]
    assert await archive.names() == []


BAD: list[tuple[Callable[[Path], Path], str]] = [
    (a_file, "Not a directory"),
    (lambda folder: a_file(folder) / "below", "Not a directory"),
    (lambda folder: folder / "missing" / "below", "No such file or directory"),
    (lambda folder: folder / ("x" * 300), "File name too long"),
]


@pytest.mark.parametrize(("place", "problem"), BAD)
async def test_bad_folders_are_refused_before_anything_is_done(
    place: Callable[[Path], Path], problem: str, tmp_path: Path
) -> None:
    """R-9: a folder is made, the folders above it are not."""
    with pytest.raises(ArchiveUnavailable, match=problem):
        await opened(place(tmp_path))


async def test_what_is_not_there_cannot_be_read(tmp_path: Path) -> None:
    """R-9"""
    with pytest.raises(ArchiveUnavailable, match="cannot be used: No such file"):
        await opened(tmp_path / "a", create=False)
    archive = await opened(tmp_path)
    with pytest.raises(ArchiveUnavailable, match="part-1 cannot be read: No such file"):
        await archive.read("part-1")
    (tmp_path / "part-2").mkdir()
    with pytest.raises(ArchiveUnavailable, match="part-2 cannot be read: Is a directory"):
        await archive.read("part-2")


def test_urls_of_folders() -> None:
    """A path as it is, or file:// with an absolute one."""
    assert open_archive("old/runs").location == str(Path("old/runs"))
    assert open_archive("file:///var/old%20runs").location == str(Path("/var/old runs"))
    assert open_archive("file://localhost/var/runs").location == str(Path("/var/runs"))
    for place in ("", "a\0b", "file://host/share", "file://", "file:///a?b=c", "ftp://host/x", "sqlite:///a.db"):
        with pytest.raises(InvalidArgument):
            open_archive(place)
