"""Retention: archived whole before they are removed, whatever happens in between, and restored as they were [R-9]."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import sqlite3
import tempfile
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from perdure import NotFound, connect
from perdure.errors import ArchiveUnavailable, InvalidArgument
from perdure.ports.store import IndexState, LoadedRun, RunFilter, RunTail, Store
from perdure.runtime import retention
from perdure.runtime.info import RestoreReport
from perdure.runtime.parts import part_name
from perdure.runtime.restoring import list_parts, restore
from perdure.runtime.retention import Archiver
from perdure.storage.archives.folder import FolderArchive
from perdure.storage.memory import MemoryData, MemoryStore
from perdure.storage.postgres import Place
from perdure.storage.sqlite import SqliteStore
from perdure.testing.conformance.lab import claimed, submitted
from tests.postgres import PostgresServer
from tests.runtime.archives import (
    DyingFolder,
    DyingMemory,
    DyingPostgres,
    DyingSqlite,
    Fate,
    Killed,
    Sent,
    content,
    ended_runs,
    everything,
    fill,
    runs_of,
)

FAR_US = 10**18
KINDS = ("memory", "sqlite", "postgres")

Make = Callable[[Fate], Store]
"""Gives a store on the data of the test at every call; it dies when fate says so."""


@pytest.fixture(autouse=True, scope="module")
def made() -> None:
    """Make the runs while no other event loop is running."""
    ended_runs()


@pytest.fixture(params=KINDS)
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    """Give stores of each kind."""
    if request.param == "memory":
        data = MemoryData()
        return lambda fate: DyingMemory(data, fate)
    if request.param == "sqlite":
        return lambda fate: DyingSqlite(tmp_path / "store.db", fate)
    server: PostgresServer = request.getfixturevalue("postgres")
    place = Place.of(server.url())

    def on_postgres(fate: Fate) -> Store:
        store = DyingPostgres(place)
        store.fate = fate
        return store

    return on_postgres


NEVER = -1


async def opened(store: Store) -> Store:
    await store.open(owner=None)
    return store


async def archive_all(store: Store, archive: FolderArchive, limit: int | None = None) -> Archiver:
    await archive.open(create=True)
    archiver = Archiver(store, archive, "shop")
    async for _ in archiver.parts(FAR_US, limit):
        pass
    return archiver


async def restored(archive: FolderArchive, run_id: str | None = None) -> tuple[dict[str, object], RestoreReport]:
    """What a fresh store has after a restore."""
    store = await opened(MemoryStore())
    report = await _restore(archive, store, run_id)
    return await content(store), report


async def _restore(archive: FolderArchive, store: Store | None, run_id: str | None = None) -> RestoreReport:
    await archive.open(create=False)
    return await restore(archive, store, run_id=run_id, since_us=None, until_us=None, now_us=0, progress=None)


def parts_in(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.gz"))


def lists_in(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.ids"))


# --- there and back


async def test_runs_go_and_come_back_as_they_were(make: Make, tmp_path: Path) -> None:
    """R-9, J-11: every byte of the journal, every column; what is restored verifies, in every store."""
    store = await opened(make(Fate(NEVER)))
    await fill(store)
    live = await claimed(store, "live")
    archiver = await archive_all(store, FolderArchive(tmp_path / "a"))
    assert (archiver.removed, archiver.findings) == (6, [])
    assert await content(store) == {}
    assert [row.run.run_id for row in (await store.list_runs(RunFilter())).rows] == ["live"]
    found, report = await restored(FolderArchive(tmp_path / "a"))
    assert found == everything()
    facts = sum(row.count for run in ended_runs() for row in run.rows)
    assert report == RestoreReport(1, 6, facts, 6, 0)
    await _restore(FolderArchive(tmp_path / "a"), store)  # into the store itself: ended runs, nothing else
    assert await content(store) == everything()
    assert list(await store.due(FAR_US, 9)) == []
    assert await store.journal_of(live.run_id) is not None
    await store.close()
    async with connect(make(Fate(NEVER))) as client:
        verified = await client.verify()
        assert [finding.run_id for finding in verified.findings if finding.run_id != "live"] == []
        assert verified.runs == 7


async def test_a_client_archives_and_restores(tmp_path: Path) -> None:
    """R-9: what is young enough stays, a dry run counts, limits hold, and a batch is a part."""
    data, archive = MemoryData(), FolderArchive(tmp_path / "a")
    await archive.open(create=True)
    await fill(await opened(MemoryStore(data)))
    async with connect(MemoryStore(data)) as client:
        dry = await client.gc(0, archive=archive, dry_run=True)
        assert (dry.removed, dry.remaining, list(await archive.names())) == (0, 6, [])
        seen: list[int] = []
        report = await client.gc(timedelta(0), archive=archive, limit=4, label="shop", progress=seen.append)
        assert (report.archived, report.removed, report.remaining, len(report.parts), seen) == (4, 4, 2, 1, [4])
        report = await client.gc(0, archive=archive)
        assert (report.archived, report.removed, report.remaining) == (2, 2, 0)
        assert (await client.gc(0, archive=archive)).parts == ()
        assert [(part.store, part.runs) for part in await list_parts(archive)] == [("shop", 4), ("store", 2)]
        for label in ("", "Shop", "a/b", "a--b", "ä"):
            with pytest.raises(InvalidArgument, match="label"):
                await client.gc(0, archive=archive, label=label)
    run_id = ended_runs()[4].row.run.run_id
    async with connect("memory://") as inspector:
        assert (await inspector.restore(archive, run_id)).restored == 1
        assert (await inspector.info(run_id)).status == "failed"
        assert [fact.seq for fact in await inspector.journal(run_id)]
        assert (await inspector.verify()).findings == ()
        assert (await inspector.restore(archive)).known == 1
        with pytest.raises(NotFound, match="has no run 'nobody', in 2 parts"):
            await inspector.restore(archive, "nobody")


async def test_only_what_ended_in_a_span_is_restored(tmp_path: Path) -> None:
    """R-9: from the first time on, before the second; parts outside are not read."""
    store, archive = await opened(MemoryStore()), FolderArchive(tmp_path)
    await fill(store)
    await archive_all(store, archive, 1)  # the first to end has a part of its own
    await archive_all(store, archive)
    ends = sorted(run.row.ended_us or 0 for run in ended_runs())
    times = [datetime.fromtimestamp(end / 1e6, UTC) for end in ends]
    async with connect("memory://") as inspector:
        report = await inspector.restore(archive, since=times[2], until=times[4])
        assert (report.parts, report.restored) == (1, 2)
        assert sorted([info.ended_us for info in await inspector.list()], key=str) == ends[2:4]
        assert (await inspector.restore(archive, until=times[0])).runs == 0
        assert (await inspector.restore(archive, since=times[5])).runs == 1


async def test_parts_are_bounded_in_bytes_and_transactions_in_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R-9: a part is closed by the run that fills it; one transaction removes few rows, or one run."""
    monkeypatch.setattr(retention, "PART_BYTES", 1)
    monkeypatch.setattr(retention, "REMOVE_ROWS", 1)
    calls: list[int] = []

    class Counted(MemoryStore):
        async def remove_runs(self, runs: Sequence[RunTail], /) -> int:
            calls.append(len(runs))
            return await super().remove_runs(runs)

    store = await opened(Counted())
    await fill(store)
    await archive_all(store, FolderArchive(tmp_path))
    assert len(parts_in(tmp_path)) == 6
    assert calls == [1] * 6
    assert (await restored(FolderArchive(tmp_path)))[0] == everything()
    monkeypatch.setattr(retention, "PART_BYTES", 10**6)
    monkeypatch.setattr(retention, "REMOVE_ROWS", len(ended_runs()[0].rows) * 2)
    await fill(store)
    calls.clear()
    await archive_all(store, FolderArchive(tmp_path))
    assert sum(calls) == 6
    assert 1 < len(calls) < 6


# --- death in between


async def test_whenever_the_process_dies_each_run_is_somewhere_and_comes_back_once(make: Make, tmp_path: Path) -> None:
    """R-9: killed before and after every write and every removal; the next one finishes, and no run is twice."""
    moment = 0
    while True:
        moment += 1
        fate, folder = Fate(moment), tmp_path / f"a{moment}"
        store = await opened(make(fate))
        await fill(store)
        died = False
        try:
            await archive_all(store, DyingFolder(folder, fate))
        except Killed:
            died = True
        store.abort()
        store = await opened(make(Fate(NEVER)))
        kept, archived = await content(store), (await restored(FolderArchive(folder)))[0]
        assert kept | archived == everything(), f"a run is lost at moment {moment}"
        await archive_all(store, FolderArchive(folder))
        assert await content(store) == {}
        found, report = await restored(FolderArchive(folder))
        assert found == everything()
        assert (report.restored, report.known, report.findings) == (6, 0, ()), "the same batch is the same part"
        await store.close()
        if not died:
            break
    assert moment == 7, "before and after two writes and a removal, and once to the end"


async def test_a_run_in_two_parts_is_one_run(tmp_path: Path) -> None:
    """R-9: another batch after a crash has it again, in another part."""
    data = MemoryData()
    store = await opened(DyingMemory(data, Fate(1)))
    await fill(store)
    with pytest.raises(Killed):
        await archive_all(store, FolderArchive(tmp_path), 2)
    await archive_all(await opened(MemoryStore(data)), FolderArchive(tmp_path), 4)
    found, report = await restored(FolderArchive(tmp_path))
    assert len(found) == 4
    assert (report.parts, report.runs, report.restored, report.known, report.findings) == (2, 6, 4, 2, ())
    assert [name.number for path in parts_in(tmp_path) if (name := part_name(path.name))] == [1, 2]


async def test_two_archivers_at_once_lose_nothing(make: Make, tmp_path: Path) -> None:
    """R-9: neither overwrites the other's part, and a run goes once."""
    stores = [await opened(make(Fate(NEVER))) for _ in range(2)]
    await fill(stores[0])
    archivers = await asyncio.gather(*[archive_all(store, FolderArchive(tmp_path / "a")) for store in stores])
    assert sum(archiver.removed for archiver in archivers) == 6
    found, report = await restored(FolderArchive(tmp_path / "a"))
    assert found == everything()
    assert report.findings == ()
    for store in stores:
        await store.close()


async def test_a_run_that_changed_since_it_was_read_stays(tmp_path: Path) -> None:
    """R-9: only what was archived is removed, by the hash of its tail."""

    class Meddled(MemoryStore):
        async def load_all_rows(self, run_id: str, /) -> LoadedRun | None:
            loaded = await super().load_all_rows(run_id)
            run = self.data.run(run_id)
            if run is not None and run_id == ended_runs()[2].row.run.run_id:
                run.rows.append(replace(run.rows[-1], first_seq=99, hash=bytes(32)))
            return loaded

    store = await opened(Meddled())
    await fill(store)
    assert (await archive_all(store, FolderArchive(tmp_path))).removed == 5
    assert list(await content(store)) == [ended_runs()[2].row.run.run_id]


# --- what cannot be archived, or read


async def test_damaged_runs_stay_and_are_named(tmp_path: Path) -> None:
    """R-9, J-11: an archive of what does not verify is worth nothing, and the store has the evidence."""
    store = await opened(SqliteStore(tmp_path / "store.db"))
    await fill(store)
    await store.close()
    runs = [run.row.run.run_id for run in ended_runs()]
    second = ended_runs()[1].rows[1].first_seq
    number = "(SELECT n FROM run WHERE id = ?)"
    with sqlite3.connect(tmp_path / "store.db") as con:
        con.execute(f"UPDATE journal SET facts = replace(facts, 'number', 'numbed') WHERE run = {number}", (runs[0],))
        con.execute(f"DELETE FROM journal WHERE first_seq = {second} AND run = {number}", (runs[1],))
        last = f"(SELECT max(first_seq) FROM journal WHERE run = {number})"
        con.execute(f"DELETE FROM journal WHERE run = {number} AND first_seq = {last}", (runs[2], runs[2]))
        con.execute(f"DELETE FROM journal WHERE run = {number}", (runs[3],))
    con.close()
    store = await opened(SqliteStore(tmp_path / "store.db"))
    archiver = await archive_all(store, FolderArchive(tmp_path / "a"))
    assert {finding.run_id: finding.problem.split(":")[0] for finding in archiver.findings} == {
        runs[0]: "its journal was changed",
        runs[1]: f"its journal has no row that begins at {second}",
        runs[2]: "its tail is lost",
        runs[3]: "its journal is gone",
    }
    assert archiver.removed == 2
    assert set(await content(store)) == set(runs[:4])
    assert set((await restored(FolderArchive(tmp_path / "a")))[0]) == set(runs[4:])
    await store.close()


async def one_part(folder: Path) -> Path:
    """The part of all runs."""
    store = await opened(MemoryStore())
    await fill(store)
    await archive_all(store, FolderArchive(folder))
    (part,) = parts_in(folder)
    return part


def rewritten(part: Path, lines: list[bytes]) -> None:
    part.write_bytes(gzip.compress(b"".join(lines)))


async def test_what_a_truncated_part_still_has_is_restored(tmp_path: Path) -> None:
    """R-9: named, with how much could be read; whole runs only."""
    part = await one_part(tmp_path)
    data = part.read_bytes()
    for keep in (len(data) - 1, len(data) * 3 // 4, len(data) // 2, 20, 5, 0):
        part.write_bytes(data[:keep])
        found, report = await restored(FolderArchive(tmp_path))
        (finding,) = report.findings
        assert finding.part == part.name
        assert finding.problem == f"it is truncated; {len(found)} of 6 runs could be read"
        assert found.items() <= everything().items()
        assert report.runs == report.restored == len(found)
    assert len((await restored(FolderArchive(tmp_path)))[0]) == 0


async def test_flipped_bits_are_found(tmp_path: Path) -> None:
    """R-9, J-11: wherever they are, nothing that differs from what was written is restored."""
    part = await one_part(tmp_path)
    data = part.read_bytes()
    for place in range(3, len(data), 97):
        part.write_bytes(data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :])
        found, report = await restored(FolderArchive(tmp_path))
        assert report.findings, f"nothing was said of byte {place}"
        assert found.items() <= everything().items(), f"byte {place}"


async def test_changed_lines_are_found_by_their_hashes(tmp_path: Path) -> None:
    """J-11: a line that somebody edited, with a new checksum around it, is not restored; its neighbours are."""
    part = await one_part(tmp_path)
    lines = gzip.decompress(part.read_bytes()).splitlines(keepends=True)
    edited = lines[1].replace(b'"input":"number 1"', b'"input":"number 7"')
    assert edited != lines[1]
    line, ended = json.loads(lines[2]), b'"status":"succeeded"'
    edits = {
        "a fact": (1, edited, "its journal was changed"),
        "a status": (2, lines[2].replace(ended, b'"status":"failed"', 1), "its index row says failed"),
        "alive": (2, lines[2].replace(ended, b'"status":"ready"', 1), "it has not ended, it is ready"),
        "no rows": (2, json.dumps({**line, "rows": []}).encode() + b"\n", "its journal is gone"),
        "half a line": (2, lines[2][:99] + b"\n", "a line is no run"),
        "another word": (2, json.dumps({**line, "status": "great"}).encode() + b"\n", "a line is no run"),
        "no hex": (2, json.dumps({**line, "tail_hash": "xyz"}).encode() + b"\n", "a line is no run"),
    }
    for what, (place, text, problem) in edits.items():
        rewritten(part, [*lines[:place], text, *lines[place + 1 :]])
        found, report = await restored(FolderArchive(tmp_path))
        assert any(finding.problem.startswith(problem) for finding in report.findings), (what, report.findings)
        assert any("not those that its name tells" in finding.problem for finding in report.findings)
        assert len(found) == 5, what
        assert found.items() <= everything().items()


async def test_a_part_of_a_newer_release_is_refused_and_says_which(tmp_path: Path) -> None:
    """R-9: also where its lines look like ours."""
    part = await one_part(tmp_path)
    lines = gzip.decompress(part.read_bytes()).splitlines(keepends=True)
    newer = {**json.loads(lines[0]), "format": 2, "perdure": "3.1.0"}
    strange: dict[str, object] = {"format": 2, "perdure": "3.1.0", "journal": {}}
    rewritten(part, [json.dumps(newer).encode() + b"\n", json.dumps(strange).encode() + b"\n", *lines[2:]])
    found, report = await restored(FolderArchive(tmp_path))
    said = "it was written by perdure 3.1.0, in format 2; this release reads up to 1: use that release, or a newer one"
    assert [finding.problem for finding in report.findings][:2] == [said, said]
    assert len(found) == 4


async def test_a_run_is_found_without_reading_all_parts(tmp_path: Path) -> None:
    """R-9: by the lists of ids; where one is lost or damaged, in its part."""
    store = await opened(MemoryStore())
    await fill(store)
    for _ in range(6):
        await archive_all(store, FolderArchive(tmp_path), 1)
    run_id = ended_runs()[1].row.run.run_id
    _, report = await restored(FolderArchive(tmp_path), run_id)
    assert (report.parts, report.restored) == (1, 1)
    for path in lists_in(tmp_path):
        if run_id in path.read_text():
            path.write_text("")
        else:
            path.unlink()
    _, report = await restored(FolderArchive(tmp_path), run_id)
    assert report.restored == 1
    assert report.parts > 1


async def test_strangers_in_the_folder_are_left_alone(tmp_path: Path) -> None:
    """What has no name of a part is nobody's business."""
    await one_part(tmp_path)
    for name in (
        "notes.txt",
        "shop.jsonl.gz",
        ".half.jsonl.gz",
        "x.20261399T000000Z.20261130T000000Z.000001.1.0123456789abcdef.jsonl.gz",
    ):
        (tmp_path / name).write_text("hello")
    os.mkdir(tmp_path / "more")
    found, report = await restored(FolderArchive(tmp_path))
    assert (len(found), report.findings) == (6, ())


async def test_other_bytes_under_the_same_name_stop_the_archiver(tmp_path: Path) -> None:
    """R-9: nothing is overwritten, and nothing removed for its sake."""
    part = await one_part(tmp_path)
    part.write_bytes(part.read_bytes()[:-1])
    store = await opened(MemoryStore())
    await fill(store)
    with pytest.raises(ArchiveUnavailable, match="has other bytes under"):
        await archive_all(store, FolderArchive(tmp_path))
    assert await content(store) == everything()


async def test_another_run_of_the_same_id_stays(tmp_path: Path) -> None:
    """R-9: restoring never writes over what is there."""
    await one_part(tmp_path)
    store = await opened(MemoryStore())
    run_id = ended_runs()[0].row.run.run_id
    await submitted(store, run_id, IndexState("held"))
    report = await _restore(FolderArchive(tmp_path), store)
    assert [(finding.run_id, finding.problem) for finding in report.findings] == [
        (run_id, "the store has another run of that id, which stays")
    ]
    assert (report.restored, report.known) == (5, 0)


# --- any runs

TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40)
SENT = st.tuples(TEXTS, st.dictionaries(st.sampled_from(("a", "ä", "😀", "b c")), TEXTS, max_size=2))


@settings(max_examples=8, deadline=None)
@given(sent=st.lists(SENT, min_size=1, max_size=4), limit=st.integers(1, 3))
def test_whatever_is_in_them_runs_come_back_and_verify(sent: list[Sent], limit: int) -> None:
    """R-9, J-11: archived in parts of any size and restored, the facts are the same, byte for byte, and verify."""
    runs = runs_of(sent)

    async def there_and_back(folder: Path) -> None:
        store, archive = await opened(MemoryStore()), FolderArchive(folder)
        await fill(store, runs)
        for _ in runs:
            await archive_all(store, archive, limit)
        async with connect("memory://") as inspector:
            report = await inspector.restore(archive)
            assert (report.restored, report.findings) == (len(runs), ())
            assert await content(inspector.store, runs) == everything(runs)
            assert (await inspector.verify()).findings == ()

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(there_and_back(Path(folder)))
