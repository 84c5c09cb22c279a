"""Looking at an application and a store for `doctor`."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path

from perdure.cli import diagnosis
from perdure.cli.commands.pipelines import held_line
from perdure.cli.connect import sqlite_path, store_url
from perdure.cli.diagnosis import Check
from perdure.cli.examine_server import check_lacking, server_checks, survey_checks
from perdure.cli.problems import Problem, report
from perdure.cli.settings import setting
from perdure.cli.stopping import run_to_end
from perdure.cli.target import LoadedApp, find_app
from perdure.cli.text import size
from perdure.cli.times import now_us
from perdure.errors import PerdureError, StoreUnusable
from perdure.ports.store import RunFilter, Store
from perdure.storage import open_store
from perdure.storage.sqlite.owner import Holder, holder_of

OVERDUE_US = 60_000_000


def examine(app: str | None, store: str | None) -> list[Check]:
    """Everything `doctor` looks at, given the options."""
    checks = [diagnosis.check_python(), diagnosis.check_event_loop(), diagnosis.check_sqlite()]
    loaded, app_check = examine_app(app)
    checks.append(app_check)
    url = _url(store, loaded)
    if url is None:
        return [*checks, Check("store", "warn", "none named", "name one with --store or PERDURE_STORE, or name an App")]
    return [*checks, *examine_store(url)]


def examine_app(argument: str | None) -> tuple[LoadedApp | None, Check]:
    """Can the application be imported? Its pipelines are checked when they are built, which is then."""
    if argument is None and setting("app", None) is None:
        advice = "name it with --app, PERDURE_APP, or app under [tool.perdure] in pyproject.toml"
        return None, Check("application", "warn", "none named", advice)
    try:
        loaded = find_app(argument)
    except Problem as problem:
        return None, Check("application", "fail", problem.message, problem.hint)
    names = ", ".join(sorted(loaded.app.pipelines)) or "no pipelines"
    return loaded, Check("application", "ok", f"{loaded.target.text} ({loaded.target.source}): {names}")


def _url(store: str | None, loaded: LoadedApp | None) -> str | None:
    if store is None and loaded is not None:
        return loaded.app.store_url
    chosen = setting("store", store)
    return None if chosen is None else store_url(chosen)


def examine_store(url: str) -> list[Check]:
    """The place of a store, and the store itself."""
    path = sqlite_path(url)
    if path is None and url.startswith("memory:"):
        return [Check("store", "ok", f"{url}: only its own process can look into it")]
    if path is None:
        return _content_checks(url, None)
    path = path.absolute()
    if not path.parent.is_dir():
        return [Check("store", "fail", f"the folder {path.parent} is missing", "make it, or name another file")]
    checks = _place_checks(path)
    if not path.exists():
        return [Check("store", "warn", f"{path} is not there yet", "the first submit or engine makes it"), *checks]
    return [*_content_checks(url, path), *checks]


def _place_checks(path: Path) -> list[Check]:
    checks = [diagnosis.check_file_system(path, diagnosis.own_mounts()), diagnosis.check_space(path.parent)]
    try:
        checks.append(diagnosis.check_sync(diagnosis.sync_times_ms(path.parent)))
    except OSError as error:
        advice = "SQLite keeps its log beside the file, so the folder has to be writable"
        checks.append(Check("disk sync", "fail", f"{path.parent} cannot be written: {error.strerror}", advice))
    return checks


def _content_checks(url: str, path: Path | None) -> list[Check]:
    checks: list[Check] = []

    async def look() -> None:
        if path is None:
            surveyed, usable = await survey_checks(url)
            checks.extend(surveyed)
            if not usable:
                return
        store = open_store(url)
        await store.open(owner=None)
        try:
            checks.extend(await (_look_at_server(store) if path is None else _look_into(store, path)))
        finally:
            await store.close()

    try:
        run_to_end(look())
    except PerdureError as error:
        checks.append(Check("store", "fail", str(error), _advice(error, path)))
    return checks


def _advice(error: PerdureError, path: Path | None) -> str:
    """What to do about a store that cannot be opened; the usual hint would send the reader here."""
    if isinstance(error, StoreUnusable):
        if path is None:
            return "mend what the message names: in the URL, or on the server"
        return "name another file with --store, or put a backup in its place"
    known = report(error)
    return "" if known is None else known.hint


async def _look_into(store: Store, path: Path) -> list[Check]:
    info = await store.info()
    found = f"{path}, schema {info.get('schema_version', '?')}, {size(int(info.get('size_bytes', 0)))}"
    holder = holder_of(path)
    alive = holder is not None and is_alive(holder)
    overdue = await store.due(now_us() - OVERDUE_US, 1_000)
    checks = [Check("store", "ok", found), *diagnosis.check_settings(info), check_owner(holder, alive=alive)]
    return [*checks, *await _run_checks(store, info, len(overdue), alive=alive)]


async def _look_at_server(store: Store) -> list[Check]:
    info = await store.info()
    checks, alive = await server_checks(store, info)
    overdue = await store.due((await store.clock_us() or now_us()) - OVERDUE_US, 1_000)
    runs = await _run_checks(store, info, len(overdue), alive=alive)
    return [*checks, *runs, *await check_lacking(store, overdue)]


async def _run_checks(store: Store, info: Mapping[str, str | int], overdue: int, *, alive: bool) -> list[Check]:
    """Of runs, held pipelines and what removing left behind; the same in every store."""
    checks: list[Check] = []
    counts: dict[str, int] = {}
    for (_, status), number in (await store.count_runs(RunFilter())).numbers.items():
        counts[status] = counts.get(status, 0) + number
    if info.get("stray_runs"):
        advice = "`perdure gc --older-than 30d` collects what removing left behind; engines rebuild lost index rows"
        checks.append(Check("stray runs", "warn", str(info["stray_runs"]), advice))
    for hold in await store.pipeline_holds():
        advice = f"`perdure release-pipeline {hold.pipeline}` lets it go on"
        checks.append(Check("held pipeline", "warn", held_line(hold), advice))
    return [*checks, *diagnosis.check_runs(counts, overdue, alive=alive)]


def check_owner(holder: Holder | None, *, alive: bool) -> Check:
    """The engine that owns the file, if any."""
    if holder is None:
        return Check("engine", "ok", "none is running")
    if alive:
        return Check("engine", "ok", holder.text())
    return Check(
        "engine", "warn", f"{holder.text()} died without letting go", "`perdure run` takes over; nothing is lost"
    )


def is_alive(holder: Holder) -> bool:
    """Is the process of an owner still there? One on another machine is taken to be."""
    if holder.host != socket.gethostname():
        return True
    try:
        os.kill(holder.pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
