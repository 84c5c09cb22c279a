"""From options to a client: which application, which store, and one event loop for the command."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from perdure.cli.problems import refuse
from perdure.cli.settings import Setting, setting
from perdure.cli.target import LoadedApp, find_app

if TYPE_CHECKING:
    from perdure.runtime.client import Client

SQLITE = "sqlite:///"


@dataclass(frozen=True)
class Place:
    """What a command works on: a store, an application, or an application on another store than its own."""

    app: LoadedApp | None
    store: str | None


def locate(app: str | None, store: str | None, *, needs_app: bool = False) -> Place:
    """Decide on application and store from arguments, environment and project.

    A store that somebody named makes the application unnecessary for commands that only look or operate; an
    application named on the command line is used in any case. PERDURE_STORE, like `--store`, replaces the
    application's own store.

    Raises:
        Problem: neither is known, or the application cannot be had.
    """
    chosen = setting("store", store)
    if needs_app or app is not None:
        return Place(find_app(app), _overriding(chosen))
    if chosen is not None:
        return Place(None, store_url(chosen))
    if setting("app", None) is None:
        refuse(
            "no store and no application given",
            "name one: --store sqlite:///FILE, --app module:name, or [tool.perdure] in pyproject.toml",
        )
    return Place(find_app(None), None)


def _overriding(chosen: Setting | None) -> str | None:
    """A store in pyproject.toml stands in for a missing application, it does not move an application's data."""
    return None if chosen is None or chosen.source.startswith("[") else store_url(chosen)


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


def sqlite_path(url: str) -> Path | None:
    """The file of a SQLite store; None for stores of another kind."""
    path = unquote(url.removeprefix(SQLITE).partition("?")[0])
    return Path(path) if url.startswith(SQLITE) and path else None


def with_client(place: Place, work: Callable[[Client], Awaitable[int]]) -> int:
    """Open a client beside whatever engine runs, do the work, close it; returns the exit code of the work."""
    if (place.store or "").startswith("memory:"):
        refuse("a memory:// store lives inside of one process", "look at it from there, or use a sqlite:/// store")

    async def session() -> int:
        from perdure.app import connect

        opened = connect(place.store) if place.app is None else place.app.app.client(store=place.store)
        async with opened as client:
            return await work(client)

    return asyncio.run(session())
