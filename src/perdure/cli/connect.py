"""From options to a client: which application, which store, and one event loop for the command."""

from __future__ import annotations

import re
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from perdure.cli.exits import Exit
from perdure.cli.problems import Problem, one_line, refuse
from perdure.cli.settings import Setting, setting
from perdure.cli.stopping import run_to_end
from perdure.cli.target import LoadedApp, find_app

if TYPE_CHECKING:
    from perdure.define.pipeline import AnyPipeline
    from perdure.ports.store import Trouble
    from perdure.runtime.client import Client

SQLITE = "sqlite:///"


@dataclass(frozen=True)
class Place:
    """What a command works on: a store, an application, or an application on another store than its own."""

    app: LoadedApp | None
    store: str | None

    @property
    def pipelines(self) -> Mapping[str, AnyPipeline]:
        """The pipelines of the application by id; none without an application."""
        return {} if self.app is None else self.app.app.pipelines

    @property
    def url(self) -> str:
        """The URL of the store that is used."""
        return self.store or ("" if self.app is None else self.app.app.store_url)


def locate(app: str | None, store: str | None, *, needs_app: bool = False) -> Place:
    """Decide on application and store from arguments, environment and project.

    An application, where one is named anywhere, says which store is meant, so that all commands mean the same one.
    `--store` replaces it, and makes the application unnecessary for commands that only look or operate. Without an
    application PERDURE_STORE and the project say where the store is.

    Raises:
        Problem: neither is known, or the application cannot be had.
    """
    url = None if store is None else store_url(_argument(store))
    if needs_app or app is not None:
        return Place(find_app(app), url)
    if url is not None:
        return Place(None, url)
    if setting("app", None) is not None:
        return Place(_optional_app(), None)
    chosen = setting("store", None)
    if chosen is None:
        refuse(
            "no store and no application given",
            "name one: --store sqlite:///FILE, --app module:name, or [tool.perdure] in pyproject.toml",
        )
    return Place(None, store_url(chosen))


def _argument(store: str) -> Setting:
    chosen = setting("store", store)
    return chosen if chosen is not None else Setting(store, "--store")


def _optional_app() -> LoadedApp:
    """The configured application, for a command that could do without."""
    try:
        return find_app(None)
    except Problem as problem:
        hint = f"{problem.hint}; " if problem.hint else ""
        raise Problem(problem.message, f"{hint}--store URL does without the application", problem.code) from problem


def store_url(chosen: Setting) -> str:
    """The URL, with a relative path in a project's file made relative to that file.

    Raises:
        Problem: it is not a URL of a store that another process can reach.
    """
    text = chosen.text.strip()
    if "://" not in text:
        refuse(f"{chosen.source}: {text!r} is not the URL of a store", f"a SQLite file is {SQLITE}{text}")
    path = text.removeprefix(SQLITE)
    if text.startswith(SQLITE) and chosen.folder is not None and path and not path.startswith("/"):
        return f"{SQLITE}{chosen.folder / path}"
    return text


def shown_url(url: str) -> str:
    """The URL for people and logs: without the password that may be in it."""
    if not url.startswith(("postgresql://", "postgres://")):
        return url
    hidden = re.sub(r"(?<=://)([^:/?]*):[^/?]*@", r"\1:***@", url, count=1)
    return re.sub(r"(?<=[?&])(ssl)?password=[^&]*&?", "", hidden).rstrip("?&")


def sqlite_path(url: str) -> Path | None:
    """The file of a SQLite store; None for stores of another kind."""
    path = unquote(url.removeprefix(SQLITE).partition("?")[0])
    return Path(path) if url.startswith(SQLITE) and path else None


def with_client(place: Place, work: Callable[[Client], Awaitable[int]], *, creates: bool = False) -> int:
    """Open a client beside whatever engine runs, do the work, close it.

    Args:
        place: where.
        work: what to do; its result is the exit code.
        creates: the store may be created; otherwise a missing file is a mistake, not an empty store.
    """
    check_reachable(place.url, creates=creates)

    async def session() -> int:
        from perdure.app import connect

        opened = connect(place.url) if place.app is None else place.app.app.client(store=place.store)
        async with opened as client:
            client.store.on_trouble(trouble_sayer())
            return await work(client)

    return run_to_end(session())


def trouble_sayer() -> Callable[[Trouble], None]:
    """Says on stderr why a command does not come back: the store goes on trying [R-8]. Each problem once."""
    said: set[str] = set()

    def say(trouble: Trouble) -> None:
        if trouble.problem not in said and not trouble.fatal:
            said.add(trouble.problem)
            print(f"waiting: {one_line(trouble.problem)}; trying again, Ctrl-C gives up", file=sys.stderr, flush=True)

    return say


def check_reachable(url: str, *, creates: bool) -> None:
    """Refuse stores that another process cannot reach, and files that are not there.

    Raises:
        Problem: see above.
    """
    if url.startswith("memory:"):
        refuse("a memory:// store lives inside of one process", "look at it from there, or use a sqlite:/// store")
    path = sqlite_path(url)
    if path is not None and not creates and not path.exists():
        hint = "check the path; a store is made by the first `perdure submit` or `perdure run`"
        refuse(f"there is no store {path}", hint, Exit.STORE)
