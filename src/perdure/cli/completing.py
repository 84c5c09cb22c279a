"""What the shell offers for an argument: pipelines, schedules and run ids, as far as they can be had without a word."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from typing import TYPE_CHECKING

import typer

from perdure.cli.connect import Place, locate, with_client

if TYPE_CHECKING:
    from perdure.runtime.client import Client

SHOWN = 30


def complete_pipeline(ctx: typer.Context, incomplete: str) -> list[str]:
    """Pipelines of the application."""
    return _quietly(lambda: sorted(id for id in _place(ctx, needs_app=True).pipelines if id.startswith(incomplete)))


def complete_run(ctx: typer.Context, incomplete: str) -> list[str]:
    """The newest runs of the store, and `last`."""
    found: list[str] = []

    async def look(client: Client) -> int:
        found.extend(await client.store.ids_from(incomplete, SHOWN))
        return 0

    def work() -> list[str]:
        with_client(_place(ctx), look)
        return [run_id for run_id in found if run_id.startswith(incomplete)]

    return [word for word in ("last",) if word.startswith(incomplete)] + _quietly(work)


def complete_schedule(ctx: typer.Context, incomplete: str) -> list[str]:
    """Schedules that the store knows."""
    found: list[str] = []

    async def look(client: Client) -> int:
        found.extend(info.id for info in await client.schedules(ticks=0))
        return 0

    def work() -> list[str]:
        with_client(_place(ctx), look)
        return [id for id in found if id.startswith(incomplete)]

    return _quietly(work)


def _place(ctx: typer.Context, *, needs_app: bool = False) -> Place:
    return locate(ctx.params.get("app"), ctx.params.get("store"), needs_app=needs_app)


def _quietly(work: Callable[[], list[str]]) -> list[str]:
    """Somebody is typing: what an application prints, or why it cannot be loaded, is nothing to show them now."""
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        try:
            return work()
        except (Exception, SystemExit):
            return []
