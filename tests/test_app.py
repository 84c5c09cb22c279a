"""The composition root: what an app takes, where it finds its store, what it opens and closes, which build it is."""

from __future__ import annotations

import math
import os
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from perdure import (
    App,
    DefinitionError,
    InvalidArgument,
    Invocation,
    Pipeline,
    StoreUnusable,
    Succeeded,
    connect,
    nothing,
    step,
)
from perdure.app import DEFAULT_STORE
from perdure.storage.memory import MemoryStore


@step("one/v1")
async def one(inv: Invocation[str, object]) -> None:
    pass


plain: Pipeline[str, object, None] = Pipeline(id="plain", input=str, deps=object, steps=(one,), output=nothing)


# --- what it takes


@pytest.mark.parametrize(
    "options",
    [
        {"concurrency": 0},
        {"concurrency": 1.5},
        {"concurrency": True},
        {"threads": 0},
        {"threads": -1},
        {"payload_limit": 0},
        {"timeout": 0},
        {"timeout": math.nan},
        {"timeout": math.inf},
        {"drain_timeout": -1},
        {"drain_timeout": "5"},
        {"block_limit": 0},
        {"block_limit": timedelta(0)},
        {"retry": 3},
        {"store": 7},
        {"middleware": "text"},
        {"middleware": [1]},
        {"observers": [None]},
        {"build": "\x00"},
    ],
    ids=str,
)
def test_settings_out_of_range_are_refused_when_the_app_is_built(options: dict[str, Any]) -> None:
    """P-2: the setting is named; nothing is opened."""
    [name] = options
    with pytest.raises(DefinitionError, match=name):
        App(plain.bind(), **options)


def test_only_bound_pipelines_each_once() -> None:
    """D-1: one pipeline for each id."""
    with pytest.raises(DefinitionError, match="bind"):
        App(cast(Any, plain))
    with pytest.raises(DefinitionError, match="'plain' is bound twice"):
        App(plain.bind(), plain.bind())
    assert App().pipelines == {}


async def test_building_one_does_no_io(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """D-4: an app is a value; the file comes with the first engine or client."""
    monkeypatch.chdir(tmp_path)
    app = App(plain.bind(), store="sqlite:///app.db")
    assert os.listdir(tmp_path) == []
    async with app.engine() as engine:
        await engine.submit(plain, "x")
    assert "app.db" in os.listdir(tmp_path)


# --- its store


def test_the_store_is_an_argument_or_a_setting_or_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """I-1: in this order."""
    monkeypatch.delenv("PERDURE_STORE", raising=False)
    assert App().store_url == DEFAULT_STORE
    monkeypatch.setenv("PERDURE_STORE", "memory://")
    assert App().store_url == "memory://"
    assert App(store="sqlite:///mine.db").store_url == "sqlite:///mine.db"


@pytest.mark.parametrize("url", ["mysql://x", "sqlite://no-path", "sqlite:///", "just words", "sqlite:///:memory:"])
async def test_a_url_that_names_no_store_is_refused_with_advice(url: str) -> None:
    """I-7"""
    with pytest.raises(InvalidArgument, match="sqlite:///|memory://"):
        async with App(store=url).engine():
            pass


async def test_an_engine_and_a_client_of_one_app_meet_in_its_store(tmp_path: Path) -> None:
    """R-2: and `connect` reads what they wrote without knowing a type."""
    url = f"sqlite:///{tmp_path}/app.db"
    app = App(plain.bind(), store=url)
    async with app.engine() as engine, app.client() as client:
        run = await client.submit(plain, "x")
        assert isinstance(await engine.result(run.id, timeout=30), Succeeded)
    async with connect(url) as reader:
        assert [(info.run_id, info.status) for info in await reader.list()] == [(run.id, "succeeded")]
        assert isinstance(await reader.result(run.id), Succeeded)
        assert (await reader.verify()).findings == ()


async def test_a_store_of_the_callers_own_may_be_given() -> None:
    """I-7"""
    store = MemoryStore()
    async with App(plain.bind(), store="sqlite:///never-opened.db").engine(store=store) as engine:
        assert engine.store is store
    assert "never-opened.db" not in os.listdir()


async def test_a_directory_that_is_missing_is_said_clearly(tmp_path: Path) -> None:
    """R-8"""
    with pytest.raises(StoreUnusable, match="nowhere"):
        async with App(store=f"sqlite:///{tmp_path}/nowhere/app.db").engine():
            pass


# --- dependencies


def needing(deps: type[Any]) -> Pipeline[str, Any, str]:
    """A pipeline whose output is what it found in its dependencies."""

    @step("look/v1")
    async def look(inv: Invocation[str, Any]) -> str:
        return f"{inv.input} {inv.deps}"

    return Pipeline(id="needing", input=str, deps=deps, steps=(look,), output=lambda inv: inv[look])


@asynccontextmanager
async def opened_async() -> AsyncGenerator[str]:
    yield "async"


@contextmanager
def opened_sync() -> Generator[str]:
    yield "sync"


@pytest.mark.parametrize(
    ("deps", "found"),
    [(opened_async, "async"), (opened_sync, "sync"), (lambda: nullcontext("plain"), "plain")],
    ids=["async", "sync", "plain"],
)
async def test_handlers_find_what_was_opened_for_them(deps: Callable[[], Any], found: str) -> None:
    """I-1"""
    pipeline = needing(str)
    async with App(pipeline.bind(deps), store="memory://").engine() as engine:
        result = await (await engine.submit(pipeline, "x")).result(timeout=30)
        assert isinstance(result, Succeeded)
        assert result.output == f"x {found}"


async def test_dependencies_that_cannot_be_opened_keep_the_engine_from_starting(tmp_path: Path) -> None:
    """I-1: those opened before are closed, and the store is not touched."""
    order: list[str] = []

    @asynccontextmanager
    async def first() -> AsyncGenerator[None]:
        order.append("opened")
        try:
            yield None
        finally:
            order.append("closed")

    @asynccontextmanager
    async def broken() -> AsyncGenerator[None]:
        raise OSError("no such service")
        yield None

    other: Pipeline[str, None, None] = Pipeline(
        id="other", input=str, deps=type(None), steps=(cast(Any, one),), output=nothing
    )
    app = App(other.bind(first), needing(str).bind(broken), store=f"sqlite:///{tmp_path}/app.db")
    with pytest.raises(OSError, match="no such service"):
        async with app.engine():
            pass
    assert order == ["opened", "closed"]
    assert os.listdir(tmp_path) == []


async def test_what_is_no_context_manager_is_refused() -> None:
    """I-1: with advice for plain values."""
    pipeline = needing(str)
    with pytest.raises(DefinitionError, match="nullcontext"):
        async with App(pipeline.bind(cast(Any, lambda: "just a value")), store="memory://").engine():
            pass


# --- its build


def test_the_build_is_an_argument_or_a_setting_or_a_digest_of_the_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D-2: the same sources give the same build, whatever else changes; other sources another one."""
    monkeypatch.delenv("PERDURE_BUILD", raising=False)
    assert App(plain.bind(), build="mine").build == "mine"
    digest = App(plain.bind()).build
    assert digest == App(plain.bind(), concurrency=3).build
    assert len(digest) == 12
    monkeypatch.setenv("PERDURE_BUILD", "from the environment")
    assert App(plain.bind()).build == "from the environment"
    monkeypatch.delenv("PERDURE_BUILD")
    builds: list[str] = []
    for text in ("inv.input", "inv.input + '!'"):
        source = tmp_path / "handlers.py"
        source.write_text(f"async def handler(inv):\n    return {text}\n")
        module: dict[str, Any] = {}
        exec(compile(source.read_text(), str(source), "exec"), module)
        module["handler"].__annotations__["return"] = str
        made = cast(Any, step("made/v1"))(module["handler"])
        pipeline: Any = Pipeline(id="made", input=str, deps=object, steps=(made,), output=nothing)
        builds.append(App(pipeline.bind()).build)
    assert builds[0] != builds[1]


def test_sources_that_cannot_be_read_give_a_build_nevertheless() -> None:
    """D-2: of code that was typed in, or lives in an archive."""
    module: dict[str, Any] = {}
    exec(compile("async def handler(inv):\n    return None\n", "<typed in>", "exec"), module)
    module["handler"].__annotations__["return"] = None
    made = cast(Any, step("made/v1"))(module["handler"])
    pipeline: Any = Pipeline(id="made", input=str, deps=object, steps=(made,), output=nothing)
    assert len(App(pipeline.bind()).build) == 12
