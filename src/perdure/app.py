"""The composition root: bound pipelines, a store, and how many run at once."""

from __future__ import annotations

import hashlib
import inspect
import os
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TypeVar

from perdure.core.durations import Duration, duration_us
from perdure.core.retry import Retry
from perdure.define.child import ChildStep
from perdure.define.functions import name_of
from perdure.define.limit import AnyLimit
from perdure.define.names import name_problem
from perdure.define.pipeline import AnyPipeline, Bound
from perdure.define.schedule import AnySchedule, Schedule
from perdure.errors import DefinitionError, InvalidArgument
from perdure.ports.clock import System
from perdure.ports.observer import Observer
from perdure.ports.store import Store
from perdure.runtime.client import Client
from perdure.runtime.engine import Engine
from perdure.runtime.host import Middleware, Options
from perdure.runtime.keeping import Keeper
from perdure.runtime.membership import DEFAULT_LEASE_S
from perdure.runtime.parts import label_of
from perdure.runtime.storetime import store_time
from perdure.runtime.system import RealSystem
from perdure.storage import open_archive, open_store

F = TypeVar("F")

DEFAULT_STORE = "sqlite:///perdure.db"


class App:
    """Pipelines bound to their dependencies, and a store. Building one does no I/O.

    Args:
        pipelines: what `Pipeline.bind` returned, one for each pipeline id; those of child runs, too.
        store: a URL: `sqlite:///relative.db`, `sqlite:////absolute.db`, `memory://`; default: `PERDURE_STORE`, else
            `sqlite:///perdure.db`.
        concurrency: runs that one engine executes at the same time.
        threads: threads for `def` handlers.
        retry: for steps whose pipeline has no policy either [M-5].
        timeout: bound of one attempt, likewise [R-18].
        payload_limit: greatest size of an encoded input, state or output, in bytes [P-4].
        drain_timeout: how long a stopping engine lets running attempts end [R-6].
        lease: on a store that many workers share, a worker that is silent for so long is taken for dead, and its runs
            go to others [R-3]. A worker cannot begin anything while it cannot renew. The same for all workers.
        block_limit: how long a handler may block the event loop before it is named in the log.
        middleware: wraps every attempt, the first outermost [R-15].
        observers: told of lifecycle events.
        build: names this version of the code; invalid runs are asked again when it changes [D-2]. Default:
            `PERDURE_BUILD`, else a digest of the source files that define the handlers.
        schedules: of pipelines that are bound here; every engine of the app submits what they ask for [R-14].
        retention: engines remove runs that ended so long ago, as `Client.gc` does, every hour or more often; default:
            never, `perdure gc` does it [R-9].
        archive: where these runs are archived before: what `open_archive` takes. A damaged run stays, and is logged.
    """

    def __init__(
        self,
        *pipelines: Bound,
        store: str | None = None,
        concurrency: int = 256,
        threads: int = 32,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        payload_limit: int = 1_048_576,
        drain_timeout: Duration = 30.0,
        lease: Duration = DEFAULT_LEASE_S,
        block_limit: Duration = 1.0,
        middleware: Sequence[Middleware] = (),
        observers: Sequence[Observer] = (),
        build: str | None = None,
        schedules: Sequence[AnySchedule] = (),
        retention: Duration | None = None,
        archive: str | None = None,
    ) -> None:
        self.pipelines: dict[str, AnyPipeline] = {}
        self._bound: dict[str, Bound] = {}
        for bound in pipelines:
            if not isinstance(bound, Bound):  # pyright: ignore[reportUnnecessaryIsInstance] # what untyped code passes
                raise DefinitionError(f"App takes bound pipelines, `pipeline.bind(deps)`, not {type(bound).__name__}")
            if bound.pipeline.id in self.pipelines:
                raise DefinitionError(f"pipeline {bound.pipeline.id!r} is bound twice in this app")
            self.pipelines[bound.pipeline.id] = bound.pipeline
            self._bound[bound.pipeline.id] = bound
        if store is not None and not isinstance(store, str):  # pyright: ignore[reportUnnecessaryIsInstance]  # see above
            raise DefinitionError(f"App(store=...) must be a URL, not {type(store).__name__}")
        if retry is not None and not isinstance(retry, Retry):  # pyright: ignore[reportUnnecessaryIsInstance]  # see above
            raise DefinitionError(f"App(retry=...) must be a Retry, not {type(retry).__name__}")
        self.store_url = store or os.environ.get("PERDURE_STORE") or DEFAULT_STORE
        self.concurrency = _at_least_one("concurrency", concurrency)
        self._threads = _at_least_one("threads", threads)
        self._payload_limit = _at_least_one("payload_limit", payload_limit)
        self._retry = retry
        self._timeout_s = None if timeout is None else _seconds("timeout", timeout)
        self.drain_timeout_s = _seconds("drain_timeout", drain_timeout, zero=True)
        self._lease_s = _seconds("lease", lease)
        self._block_limit_s = _seconds("block_limit", block_limit)
        self._middleware = _functions("middleware", middleware)
        self._observers = _functions("observers", observers, plain=True)
        self.schedules = _schedules(schedules, self.pipelines)
        _check_children(self.pipelines)
        self._retention_s = None if retention is None else _seconds("retention", retention)
        self._archive = _archive(archive, self._retention_s)
        _check_limits(self.pipelines)
        self._build = _build_id("App(build=...)", build) if build not in (None, "") else None

    @property
    def build(self) -> str:
        """See the argument of this name."""
        if self._build is not None:
            return self._build
        given = os.environ.get("PERDURE_BUILD")
        return _build_id("PERDURE_BUILD", given) if given else _source_digest(self.pipelines)

    @asynccontextmanager
    async def engine(
        self,
        *,
        store: str | Store | None = None,
        concurrency: int | None = None,
        drain_timeout: Duration | None = None,
        lease: Duration | None = None,
        observers: Sequence[Observer] = (),
        system: System | None = None,
    ) -> AsyncGenerator[Engine]:
        """Open the dependencies and the store, and execute runs for as long as the context lasts.

        Args:
            store, concurrency, drain_timeout, lease: instead of the app's.
            observers: in addition to the app's.
            system: time and chance; tests pass their own.

        Raises:
            StoreInUse: another engine owns the store, and it is none that many share.
            StoreUnusable: the store is not one that this release can use.
        """
        system = RealSystem() if system is None else system
        opened = _open(store if store is not None else self.store_url)
        async with AsyncExitStack() as stack:
            deps = {name: await stack.enter_async_context(bound.open()) for name, bound in self._bound.items()}
            worker = system.worker_id()
            await opened.open(owner=worker)
            stack.push_async_callback(opened.close)
            system = await store_time(system, opened)
            engine = self._engine(opened, system, worker, concurrency, drain_timeout, lease, observers)
            stack.push_async_callback(engine.stop)
            await engine.start(deps)
            if self._retention_s is not None:
                keeper = self._keeper(opened, system, self._retention_s, store if isinstance(store, str) else None)
                stack.push_async_callback(keeper.stop)
                keeper.start()
            yield engine

    @asynccontextmanager
    async def lifespan(self, _web_app: object) -> AsyncGenerator[dict[str, Engine]]:
        """An engine for as long as an ASGI application lives: `Starlette(lifespan=app.lifespan)`.

        Requests find it in `request.state.engine`.
        """
        async with self.engine() as engine:
            yield {"engine": engine}

    def _engine(
        self,
        store: Store,
        system: System,
        worker: str,
        concurrency: int | None,
        drain_timeout: Duration | None,
        lease: Duration | None,
        observers: Sequence[Observer],
    ) -> Engine:
        options = Options(
            capacity=self.concurrency if concurrency is None else _at_least_one("concurrency", concurrency),
            threads=self._threads,
            payload_limit=self._payload_limit,
            block_limit_s=self._block_limit_s,
            build=self.build,
        )
        return Engine(
            store,
            system,
            self.pipelines,
            worker=worker,
            options=options,
            retry=self._retry,
            timeout_s=self._timeout_s,
            middleware=self._middleware,
            observers=(*self._observers, *_functions("observers", observers, plain=True)),
            drain_timeout_s=self.drain_timeout_s
            if drain_timeout is None
            else _seconds("drain_timeout", drain_timeout, zero=True),
            schedules=self.schedules,
            lease_s=self._lease_s if lease is None else _seconds("lease", lease),
        )

    def _keeper(self, store: Store, system: System, age_s: float, url: str | None) -> Keeper:
        place = self._archive
        return Keeper(
            store,
            system,
            age_us=round(age_s * 1_000_000),
            open_archive=None if place is None else lambda: open_archive(place),
            label=label_of(url or self.store_url),
        )

    @asynccontextmanager
    async def client(self, *, store: str | Store | None = None, system: System | None = None) -> AsyncGenerator[Client]:
        """A client of the app's store, beside a running engine or without one; knows the app's types."""
        opened = _client(store if store is not None else self.store_url, system, self.pipelines, self._payload_limit)
        async with opened as client:
            yield client


@asynccontextmanager
async def connect(store: str | Store, *, system: System | None = None) -> AsyncGenerator[Client]:
    """A client that knows a store and no pipelines: to read and to operate, not to submit."""
    async with _client(store, system, {}, None) as client:
        yield client


@asynccontextmanager
async def _client(
    store: str | Store, system: System | None, pipelines: Mapping[str, AnyPipeline], payload_limit: int | None
) -> AsyncGenerator[Client]:
    opened = _open(store)
    await opened.open(owner=None)
    try:
        clock = await store_time(RealSystem() if system is None else system, opened)
        client = Client(opened, clock, pipelines, payload_limit=payload_limit)
    except BaseException:
        await opened.close()
        raise
    try:
        yield client
    finally:
        await opened.close()
        client.release_waiters()


def _open(store: str | Store) -> Store:
    return open_store(store) if isinstance(store, str) else store


def _schedules(given: Sequence[AnySchedule], pipelines: Mapping[str, AnyPipeline]) -> tuple[AnySchedule, ...]:
    """The schedules given, each of a pipeline of this app, and no two of one id [R-14]."""
    if not isinstance(given, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]  # see App
        raise DefinitionError(
            f"App(schedules=...) must be a tuple of schedules, not {given!r}; a tuple of one ends in a comma"[:300]
        )
    found: dict[str, AnySchedule] = {}
    for schedule in given:
        if not isinstance(schedule, Schedule):  # pyright: ignore[reportUnnecessaryIsInstance]  # see App
            raise DefinitionError(f"App(schedules=...) must hold schedules, not {schedule!r}"[:300])
        if schedule.id in found:
            raise DefinitionError(f"schedule {schedule.id!r} stands twice in this app")
        bound = pipelines.get(schedule.pipeline.id)
        if bound is not schedule.pipeline:
            which = "not bound in this app" if bound is None else "another one than is bound in this app under that id"
            raise DefinitionError(f"schedule {schedule.id!r}: pipeline {schedule.pipeline.id!r} is {which}")
        found[schedule.id] = schedule
    return tuple(found.values())


def _check_children(pipelines: Mapping[str, AnyPipeline]) -> None:
    """Every pipeline whose runs a step starts is bound here, too: nobody would run them [B-21]."""
    for pipeline in pipelines.values():
        for step in pipeline.steps.values():
            if isinstance(step, ChildStep) and step.child.id not in pipelines:
                raise DefinitionError(
                    f"pipeline {pipeline.id!r}, step {step.id!r}: pipeline {step.child.id!r} of its child runs is not "
                    "bound in this app"
                )


def _check_limits(pipelines: Mapping[str, AnyPipeline]) -> None:
    """One id is one limit, wherever it is named [R-11]."""
    known: dict[str, tuple[AnyLimit, str]] = {}
    for pipeline in pipelines.values():
        named = [(limit, f"pipeline {pipeline.id!r}") for limit in pipeline.limits]
        for step in pipeline.steps.values():
            named += [(limit, f"pipeline {pipeline.id!r}, step {step.id!r}") for limit in step.limits]
        for limit, where in named:
            other, there = known.setdefault(limit.id, (limit, where))
            if other != limit:
                raise DefinitionError(f"{where} and {there} each have their own limit {limit.id!r}; an id names one")


def _archive(place: str | None, retention_s: float | None) -> str | None:
    """The archive's name, known to be one; it needs a retention to be of use [R-9]."""
    if place is None:
        return None
    if not isinstance(place, str):  # pyright: ignore[reportUnnecessaryIsInstance]  # see App
        raise DefinitionError(f"App(archive=...) must be a folder or a URL, not {type(place).__name__}")
    if retention_s is None:
        raise DefinitionError("App(archive=...) is where runs go whose time is over: say so with retention=...")
    try:
        open_archive(place)
    except InvalidArgument as error:
        raise DefinitionError(f"App(archive=...): {error}") from None
    return place


def _at_least_one(name: str, value: int) -> int:
    if type(value) is not int or value < 1:
        raise DefinitionError(f"App({name}=...) must be a whole number of at least one, not {value!r}")
    return value


def _functions(name: str, given: Sequence[F], *, plain: bool = False) -> tuple[F, ...]:
    """The functions given, known to be callable; `plain`: and not `async`, since nobody would await them."""
    if isinstance(given, str) or not isinstance(given, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]  # see App
        raise DefinitionError(f"App({name}=...) must be a sequence of functions, not {given!r}"[:300])
    for function in given:
        if not callable(function):
            raise DefinitionError(f"App({name}=...) must hold a function, not {function!r}"[:300])
        if plain and (inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)):
            raise DefinitionError(f"App({name}=...): {name_of(function)} is async; it must be a plain `def`")
    return tuple(given)


def _build_id(what: str, build: str | None) -> str:
    """It stands in facts, so it has to be text that can be stored."""
    problem = name_problem(build)
    if problem is not None:
        raise DefinitionError(f"{what} {problem}: {ascii(build)[:80]}")
    return str(build)


def _seconds(name: str, value: Duration, *, zero: bool = False) -> float:
    try:
        us = duration_us(value)
    except ValueError as error:
        raise DefinitionError(f"App({name}=...) {error}") from None
    if not us and not zero:
        raise DefinitionError(f"App({name}=...) must be longer than nothing")
    return us / 1_000_000


def _source_digest(pipelines: Mapping[str, AnyPipeline]) -> str:
    """Twelve hex digits over the source files of all handlers, conditions and output functions."""
    files: set[str] = set()
    for pipeline in pipelines.values():
        functions: list[object] = [pipeline.output, pipeline.failure_output]
        for step in pipeline.steps.values():
            functions += [step.handler, step.unwind, step.unwind_in_doubt, step.when, step.if_skipped]
        for function in functions:
            code = getattr(inspect.unwrap(function), "__code__", None) if callable(function) else None
            if code is not None:
                files.add(code.co_filename)
    digest = hashlib.sha256()
    for name in sorted(files):
        try:
            with open(name, "rb") as file:
                digest.update(file.read())
        except OSError:
            digest.update(name.encode())
    return digest.hexdigest()[:12]
