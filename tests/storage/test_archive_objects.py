"""Archives in an object store, over its real protocol [R-9]."""

from __future__ import annotations

import asyncio
import builtins
import sys
from collections.abc import Iterator

import pytest

from perdure.errors import ArchiveUnavailable, InvalidArgument
from perdure.ports.archive import Archive
from perdure.runtime.restoring import list_parts, restore
from perdure.runtime.retention import Archiver
from perdure.storage import open_archive
from perdure.storage.archives.objects import ObjectArchive
from perdure.storage.memory import MemoryData, MemoryStore
from tests.objects import ObjectServer
from tests.runtime.archives import DyingMemory, Fate, Killed, content, ended_runs, everything, fill


@pytest.fixture(scope="module")
def server() -> Iterator[ObjectServer]:
    """Give a running server, the only one of this file."""
    ended_runs()  # while no event loop is running
    server = ObjectServer()
    try:
        server.start()
        yield server
    finally:
        server.stop()


@pytest.fixture
def s3(server: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> ObjectServer:
    """Give the server, with an environment in which it is found."""
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return server


async def opened(url: str) -> Archive:
    archive = open_archive(url)
    await archive.open(create=True)
    return archive


async def test_what_is_written_is_there_and_is_never_written_again(s3: ObjectServer) -> None:
    """R-9: put if absent; what lies beside the prefix, or below it, is nobody's business."""
    archive = await opened(s3.bucket("contract"))
    s3.put("contract/some/prefix/deeper/x", b"")
    s3.put("contract/other", b"")
    assert await archive.names() == []
    assert await archive.write("part-2", b"two")
    assert await archive.write("part-1", b"one")
    assert not await archive.write("part-1", b"another")
    assert s3.get("contract/some/prefix/part-1") == b"one"
    other = await opened("s3://contract/some/prefix")
    assert await other.names() == ["part-1", "part-2"]
    assert await other.read("part-1") == b"one"
    with pytest.raises(ArchiveUnavailable, match="part-9 cannot be read"):
        await other.read("part-9")
    await other.close()
    with pytest.raises(ArchiveUnavailable, match="is not open"):
        await other.names()


async def test_of_many_writers_of_one_name_one_wins(s3: ObjectServer) -> None:
    """R-9: no two archivers overwrite each other."""
    archives = await asyncio.gather(*[opened(s3.bucket("race")) for _ in range(8)])
    won = await asyncio.gather(*[archive.write("part", str(n).encode()) for n, archive in enumerate(archives)])
    assert sum(won) == 1
    assert await archives[0].read("part") == str(won.index(True)).encode()


async def test_runs_go_and_come_back_whenever_the_process_dies(s3: ObjectServer) -> None:
    """R-9: as with folders; each run is somewhere at every moment, and comes back once."""

    class Dying(ObjectArchive):
        def __init__(self, url: str, fate: Fate) -> None:
            super().__init__(url)
            self._fate = fate

        async def write(self, name: str, data: bytes, /) -> bool:
            self._fate()
            written = await super().write(name, data)
            self._fate()
            return written

    for moment in range(1, 8):
        fate, data, url = Fate(moment), MemoryData(), s3.bucket(f"dying-{moment}")
        store = DyingMemory(data, fate)
        await store.open(owner=None)
        await fill(store)
        dying = Dying(url, fate)
        await dying.open(create=True)
        try:
            await archive_all(store, dying)
        except Killed:
            pass
        else:
            assert moment == 7
        archive = await opened(url)
        assert await content(store) | await restored(archive) == everything()
        await archive_all(await memory(data), archive)
        assert await content(store) == {}
        assert await restored(archive) == everything()
        assert len(await list_parts(archive)) == 1


async def archive_all(store: MemoryStore, archive: Archive) -> None:
    async for _ in Archiver(store, archive, "shop").parts(10**18, None):
        pass


async def memory(data: MemoryData | None = None) -> MemoryStore:
    store = MemoryStore(data)
    await store.open(owner=None)
    return store


async def restored(archive: Archive) -> dict[str, object]:
    store = await memory()
    report = await restore(archive, store, run_id=None, since_us=None, until_us=None, now_us=0, progress=None)
    assert report.findings == ()
    return await content(store)


async def test_a_run_is_found_and_damage_is_named(s3: ObjectServer) -> None:
    """R-9: by the lists of ids; a truncated object gives what it has."""
    archive, store = await opened(s3.bucket("damaged")), await memory()
    await fill(store)
    await archive_all(store, archive)
    (part,) = await list_parts(archive)
    path = f"damaged/some/prefix/{part.name}"
    s3.put(path, s3.get(path)[:-9])
    run_id = ended_runs()[0].row.run.run_id
    report = await restore(
        archive, await memory(), run_id=run_id, since_us=None, until_us=None, now_us=0, progress=None
    )
    assert report.restored == 1
    assert "it is truncated" in report.findings[0].problem


async def test_a_missing_bucket_and_a_dead_server_say_so(s3: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """R-9: before anything is removed, in one line, without the endpoint's secrets."""
    with pytest.raises(ArchiveUnavailable, match=r"s3://nobody/x: cannot be used: .*NoSuchBucket") as error:
        await opened("s3://nobody/x")
    assert "\n" not in str(error.value)
    monkeypatch.setattr("perdure.storage.archives.objects._RETRIES", 0)
    monkeypatch.setenv("AWS_ENDPOINT", "http://127.0.0.1:1")
    with pytest.raises(ArchiveUnavailable, match=r"s3://nobody/x: cannot be used: "):
        await opened("s3://nobody/x")


@pytest.mark.parametrize(
    "url", ["s3://", "s3:///prefix", "s3://key:secret@bucket/x", "s3://bucket/x?a=b", "s3://b/x#y"]
)
def test_urls_that_are_none_are_refused_without_their_secrets(url: str) -> None:
    with pytest.raises(InvalidArgument, match="is followed by a bucket") as error:
        open_archive(url)
    assert "secret" not in str(error.value)


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for the extra `postgres`."""
    real = builtins.__import__

    def without(name: str, *rest: object, **options: object) -> object:
        if name.startswith("obstore"):
            raise ImportError("No module named 'obstore'", name="obstore")
        found: object = real(name, *rest, **options)  # type: ignore[arg-type]  # passed on as it came
        return found

    monkeypatch.delitem(sys.modules, "perdure.storage.archives.objects")
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(InvalidArgument, match=r"pip install 'perdure\[objects\]'"):
        open_archive("s3://bucket/x")
