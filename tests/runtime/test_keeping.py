"""Engines that remove what ended long ago by themselves [R-9]."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from perdure import App, DefinitionError, step
from perdure.runtime import keeping
from perdure.runtime.parts import part_name
from perdure.storage.sqlite import SqliteStore
from perdure.testing.clock import VirtualSystem
from tests.runtime.lab import Inv, World, app, line, virtually


@step("quick/v1")
async def quick(inv: Inv) -> None:
    pass


@virtually
async def test_an_engine_removes_what_ended_long_ago(system: VirtualSystem) -> None:
    """R-9: in time, again and again, and nothing younger; nothing unless it is asked to."""
    pipeline = line(quick)
    for retention, left in ((None, 3), (timedelta(days=1), 1)):
        world = World(system)
        async with world.engine(app(pipeline, retention=retention)) as engine:
            first = await engine.submit(pipeline, "first")
            await first.result()
            await system.sleep(23 * 3600)
            second = await engine.submit(pipeline, "second")
            await second.result()
            assert len(await engine.list()) == 2
            await system.sleep(3 * 3600)
            assert (await engine.list(limit=1))[0].run_id == second.id
            assert len(await engine.list()) == (2 if retention is None else 1)
            await system.sleep(23 * 3600)
            third = await engine.submit(pipeline, "third")
            await third.result()
            assert len(await engine.list()) == left
        assert not [task for task in asyncio.all_tasks() if task.get_name() == "perdure-retention"]


class Said(logging.Handler):
    """What was logged; can be waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self._news = asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())
        self._news.set()

    async def until(self, words: str) -> str:
        """Wait for it."""
        while not (found := [text for text in self.texts if words in text]):
            self._news.clear()
            await asyncio.wait_for(self._news.wait(), 30)
        return found[0]


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Iterator[Said]:
    """Give what is logged."""
    caplog.set_level(logging.INFO, "perdure")
    handler = Said()
    logging.getLogger("perdure").addHandler(handler)
    yield handler
    logging.getLogger("perdure").removeHandler(handler)


async def test_an_engine_archives_before_it_removes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Said
) -> None:
    """R-9: an archive that cannot be used is named once, and costs no run; as soon as it can, runs go there."""
    monkeypatch.setattr(keeping, "FIRST_S", 0)
    monkeypatch.setattr(keeping, "LEAST_S", 0)
    folder, pipeline = tmp_path / "above" / "old", line(quick)
    kept = App(pipeline.bind(), store="sqlite:///elsewhere/mail.db", retention=0.000_001, archive=str(folder))
    async with kept.engine(store=SqliteStore(tmp_path / "store.db")) as engine:
        run = await engine.submit(pipeline, "x")
        await run.result()
        assert f"the archive {folder}: cannot be used" in await said.until("could not be removed")
        for _ in range(200):
            await engine.counts()
        assert len([text for text in said.texts if "could not be removed" in text]) == 1
        assert len(await engine.list()) == 1
        make(folder.parent)
        await said.until("runs that ended long ago: 1 removed, 1 archived before")
        assert await engine.list() == []
    (part,) = [name for name in map(part_name, names(folder)) if name is not None]
    assert (part.label, part.runs) == ("mail", 1)


async def test_a_damaged_run_stays_and_is_named_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Said
) -> None:
    """R-9, J-11: by the engine, too."""
    monkeypatch.setattr(keeping, "FIRST_S", 0)
    monkeypatch.setattr(keeping, "LEAST_S", 0)
    path, pipeline = tmp_path / "store.db", line(quick)
    async with app(pipeline).engine(store=SqliteStore(path)) as engine:
        run = await engine.submit(pipeline, "x")
        await run.result()
    with sqlite3.connect(path) as con:
        con.execute("UPDATE journal SET facts = replace(facts, '\"x\"', '\"y\"')")
    con.close()
    async with app(pipeline, retention=0.000_001, archive=str(tmp_path / "old")).engine(
        store=SqliteStore(path)
    ) as engine:
        assert "is not archived: its journal was changed" in await said.until(run.id)
        for _ in range(200):
            await engine.counts()
        assert len(await engine.list()) == 1
    assert len([text for text in said.texts if "is not archived" in text]) == 1


def make(folder: Path) -> None:
    folder.mkdir()


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"archive": "old"}, "say so with retention="),
        ({"archive": 7, "retention": 1}, "must be a folder or a URL, not int"),
        ({"archive": "ftp://x/y", "retention": 1}, "no archive is called"),
        ({"retention": -1}, r"App\(retention=...\)"),
        ({"retention": 0}, "longer than nothing"),
    ],
)
def test_what_cannot_be_is_refused_where_it_is_said(options: dict[str, Any], words: str) -> None:
    """R-9: when the app is built, not an hour later."""
    with pytest.raises(DefinitionError, match=words):
        app(line(quick), **options)
