"""Payloads, serialisation, and what failures are made of [P-1, P-2, P-4, M-10]."""

from __future__ import annotations

import asyncio
import decimal
import email.errors
import http.client
import json
import logging
import pickle
import queue
import socket
import sqlite3
import ssl
import subprocess
import tarfile
import threading
import tokenize
import urllib.error
import zipfile
import zlib
from collections.abc import Callable
from configparser import NoSectionError
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import ParseError

import msgspec
import pytest

from perdure import (
    App,
    Failed,
    InvalidArgument,
    InvalidRun,
    Invocation,
    PayloadError,
    Pipeline,
    Retry,
    Succeeded,
    connect,
    step,
)
from perdure.storage.memory import MemoryStore
from perdure.storage.sqlite import SqliteStore
from perdure.testing.clock import VirtualSystem
from tests.runtime.lab import Gate, Inv, World, app, facts, line, names, until, virtually


def noted(error: Exception) -> Exception:
    error.add_note("seen at noon")
    return error


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


LIBRARY: list[tuple[Callable[[], BaseException], str]] = [
    (lambda: json.JSONDecodeError("no value", "{", 1), "no value"),
    (lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"), "invalid start byte"),
    (lambda: UnicodeEncodeError("ascii", "é", 0, 1, "ordinal not in range"), "ordinal not in range"),
    (lambda: subprocess.CalledProcessError(3, ["rm", "-r"]), "exit status 3"),
    (lambda: subprocess.TimeoutExpired(["sleep"], 5), "5"),
    (lambda: urllib.error.HTTPError("http://x", 503, "unavailable", http.client.HTTPMessage(), None), "503"),
    (lambda: urllib.error.URLError("no route"), "no route"),
    (lambda: http.client.IncompleteRead(b"abc", 10), "3 bytes read"),
    (lambda: http.client.RemoteDisconnected("closed"), "closed"),
    (lambda: ssl.SSLCertVerificationError(1, "certificate verify failed"), "certificate"),
    (lambda: socket.gaierror(-2, "name not known"), "name not known"),
    (lambda: sqlite3.OperationalError("database is locked"), "locked"),
    (lambda: OSError(28, "No space left on device", "/tmp/file"), "No space left"),
    (lambda: ConnectionResetError(104, "reset by peer"), "reset by peer"),
    (lambda: zipfile.BadZipFile("no zip"), "no zip"),
    (lambda: tarfile.ReadError("no tar"), "no tar"),
    (lambda: zlib.error("bad data"), "bad data"),
    (lambda: NoSectionError("main"), "main"),
    (lambda: decimal.InvalidOperation([decimal.ConversionSyntax]), "InvalidOperation|ConversionSyntax"),
    (lambda: pickle.PicklingError("cannot"), "cannot"),
    (queue.Empty, "Empty"),
    (lambda: asyncio.InvalidStateError("not set"), "not set"),
    (lambda: asyncio.IncompleteReadError(b"a", 5), "1 bytes read"),
    (lambda: email.errors.HeaderParseError("odd"), "odd"),
    (lambda: tokenize.TokenError("EOF in multi-line", (1, 0)), "EOF"),
    (lambda: ParseError("no element found"), "no element"),
    (lambda: msgspec.ValidationError("expected int"), "expected int"),
    (lambda: KeyError("missing"), "missing"),
    (lambda: ExceptionGroup("several", [ValueError("one"), OSError(5, "two")]), "two"),
    (lambda: noted(ValueError("with a note")), "seen at noon"),
    (lambda: caused(RuntimeError("outer"), LookupError("inner")), "inner"),
]


@virtually
async def test_exceptions_of_thirty_libraries_are_recorded_with_their_own_words(system: VirtualSystem) -> None:
    """M-10: type and text are there, whatever the constructor takes; nothing is pickled."""
    current: list[Callable[[], BaseException]] = []

    @step("one/v1", retry=Retry(max_attempts=1, then="fail"))
    async def one(inv: Inv) -> None:
        raise current[-1]()

    pipeline = line(one)
    world = World(system)
    recorded: dict[str, Failed] = {}
    async with world.engine(app(pipeline)) as engine:
        for make, words in LIBRARY:
            current.append(make)
            run = await engine.submit(pipeline, "x")
            result = await run.result()
            assert isinstance(result, Failed)
            assert result.failure.error == type(make()).__name__
            assert any(word in result.failure.message for word in words.split("|")), result.failure
            recorded[run.id] = result
    async with connect(MemoryStore(world.data), system=system) as reader:
        for run_id, result in recorded.items():
            assert await reader.result(run_id) == result


@pytest.mark.parametrize("place", ["memory", "sqlite"])
async def test_text_that_stores_choke_on_ends_the_run_failed_once(tmp_path: Path, place: str) -> None:
    """M-10: NUL and lone surrogates in an exception are sanitised before they meet a store."""
    calls: list[int] = []

    @step("one/v1", retry=Retry(max_attempts=1, then="fail"))
    async def one(inv: Inv) -> None:
        calls.append(1)
        raise ValueError("a\x00b\ud800c")

    pipeline = line(one)
    store = MemoryStore() if place == "memory" else SqliteStore(tmp_path / "store.db")
    async with app(pipeline).engine(store=store) as engine:
        run = await engine.submit(pipeline, "x")
        result = await run.result(timeout=30)
        assert isinstance(result, Failed)
        assert result.failure.message.startswith("a")
        assert "\x00" not in result.failure.message
        assert calls == [1]
        assert (await names(run)).count("RunFailed") == 1


@pytest.mark.parametrize("place", ["memory", "sqlite"])
async def test_one_character_has_one_outcome_at_every_entrance_and_on_every_store(tmp_path: Path, place: str) -> None:
    """P-1, P-2: NUL in a payload comes back exactly; a lone surrogate is refused with its path; ids refuse both."""

    def same(inv: Inv) -> str:
        return inv.input

    @step("state/v1")
    async def state(inv: Inv) -> str:
        return str(await inv.memo("memo", lambda: inv.input, type=str))

    pipeline: Any = Pipeline(id="line", input=str, deps=object, steps=(state,), output=same)
    store = MemoryStore() if place == "memory" else SqliteStore(tmp_path / "store.db")
    async with app(pipeline).engine(store=store) as engine:
        text = "a\x00b\u2028\U0001f600\x7f"
        result = await (await engine.submit(pipeline, text)).result(timeout=30)
        assert isinstance(result, Succeeded)
        assert result.output == text
        with pytest.raises(PayloadError, match="surrogate|utf-8"):
            await engine.submit(pipeline, "a\ud800")
        held = await engine.submit(pipeline, "x", delay=3600)
        with pytest.raises(PayloadError):
            await held.resolve("state/v1", value="\udfff")
        for bad in ("\x00", "\ud800"):
            with pytest.raises(InvalidArgument):
                await engine.submit(pipeline, "x", resource=bad)
            with pytest.raises(InvalidArgument):
                await held.cancel(reason=bad)


@virtually
async def test_an_input_that_cannot_be_stored_is_named_by_path_and_type(system: VirtualSystem) -> None:
    """P-2: not by what some library tried."""

    @step("one/v1")
    async def one(inv: Invocation[Any, object]) -> None:
        raise AssertionError("never called")

    def nothing(inv: Invocation[Any, object]) -> None:
        return None

    pipeline: Any = Pipeline(id="line", input=dict[str, list[Any]], deps=object, steps=(one,), output=nothing)
    async with World(system).engine(app(pipeline)) as engine:
        with pytest.raises(PayloadError) as caught:
            await engine.submit(pipeline, {"a": [threading.Lock()]})
        assert "a" in caught.value.path
        assert "[0]" in caught.value.path
        assert "lock" in caught.value.problem
        assert await engine.list() == []


@virtually
async def test_a_result_that_is_too_large_is_not_sent_again_and_again(system: VirtualSystem) -> None:
    """P-4: one effect, a held run, and an error that names step, size, limit and the way out; also in middleware."""
    effects: list[int] = []

    async def wrapper(inv: Any, following: Any) -> object:
        value: str = await following()
        return value * 1000

    @step("one/v1")
    async def one(inv: Inv) -> str:
        effects.append(1)
        return "0123456789"

    pipeline = line(one)
    async with World(system).engine(app(pipeline, payload_limit=1000, middleware=[wrapper])) as engine:
        run = await engine.submit(pipeline, "x")
        info = await until(run, "held")
        await system.sleep(100_000)
        assert (info.reason, info.step, effects) == ("payload-too-large", "one/v1", [1])
        await run.resolve("one/v1", value="a reference", actor="me")
        assert isinstance(await run.result(), Succeeded)


@virtually
async def test_a_state_whose_type_is_gone_is_a_reason_and_not_a_hang(system: VirtualSystem) -> None:
    """D-1, P-3: what cannot be decoded any more makes the run invalid, naming it; nobody waits for ever."""

    gate = Gate()
    world = World(system)
    first = line_of(dict[str, int], gate)
    async with world.engine(app(first, build="1")) as engine:
        run = await engine.submit(first, "x")
        await gate.until(1)
        engine.abort()
    async with world.engine(app(line_of(int, gate), build="2")) as engine:
        with pytest.raises(InvalidRun, match="make/v1") as caught:
            await engine.result(run.id, timeout=10)
        assert caught.value.reason == "payload-unreadable"


def line_of(kind: Any, gate: Gate) -> Any:
    """A pipeline whose first step has a state of this type, and whose second reads it."""

    async def made(inv: Inv) -> object:
        return {"a": 1}

    made.__annotations__["return"] = kind
    make: Any = step("make/v1")(made)

    @step("use/v1", needs=(make,))
    async def use(inv: Inv) -> None:
        inv[make]
        await gate()

    return line(make, use)


@virtually
async def test_recovery_reads_only_what_it_has_places_for(system: VirtualSystem) -> None:
    """R-7: after a restart no journals are read ahead; memory is bounded by the number of places."""
    gate = Gate()

    @step("one/v1")
    async def one(inv: Inv) -> str:
        return "x" * 10_000

    @step("two/v1")
    async def two(inv: Inv) -> None:
        await gate()

    pipeline = line(one, two)
    world = World(system)
    async with world.engine(app(pipeline)) as engine:
        runs = [await engine.submit(pipeline, str(n)) for n in range(100)]
        await gate.until(100)
        engine.abort()
    async with world.engine(app(pipeline), concurrency=3) as engine:
        await gate.until(103)
        await system.sleep(100)
        assert engine.running == 3
        assert world.stores[-1].calls["load"] == 3
        gate.go.set()
        for run in runs:
            assert isinstance(await engine.result(run.id), Succeeded)


@virtually
async def test_text_that_people_send_is_data_wherever_it_goes(system: VirtualSystem) -> None:
    """P-2: a name like a statement, a message like a format string."""
    odd = "x'; drop table run; -- %s {0} \\ \u202e"

    @step("one/v1", retry=Retry(max_attempts=1, then="fail"))
    async def one(inv: Inv) -> None:
        logging.getLogger("perdure").info("%s", inv.input)
        raise ValueError(odd)

    pipeline = line(one, slot="live")
    async with World(system).engine(app(pipeline)) as engine:
        run = await engine.submit(pipeline, odd, resource=odd, tenant=odd, actor=odd, annotations={odd: odd})
        result = await run.result()
        assert isinstance(result, Failed)
        assert result.failure.message == odd
        assert [info.run_id for info in await engine.list(resource=odd, tenant=odd)] == [run.id]
        assert getattr((await facts(run))[0], "annotations", None) == {odd: odd}


async def test_the_same_on_a_file(tmp_path: Path) -> None:
    """P-2"""
    odd = "x'; drop table run; --"

    @step("one/v1")
    async def one(inv: Inv) -> None:
        pass

    pipeline = line(one, id=odd)
    small: App = app(pipeline)
    async with small.engine(store=SqliteStore(tmp_path / "store.db")) as engine:
        run = await engine.submit(pipeline, odd, resource=odd, tenant=odd)
        assert isinstance(await run.result(timeout=30), Succeeded)
        listed = await engine.list(pipeline=odd, resource=odd, tenant=odd, after=None)
        assert [info.run_id for info in listed] == [run.id]
        assert await engine.counts(pipeline=odd) == {(odd, "succeeded"): 1}
