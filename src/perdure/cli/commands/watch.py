"""`perdure watch`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from perdure.cli.connect import locate, with_client
from perdure.cli.exits import Exit
from perdure.cli.options import AppOption, JsonOption, RunArgument, StoreOption, TimeoutOption
from perdure.cli.output import Output

if TYPE_CHECKING:
    from perdure.runtime.client import Client
    from perdure.runtime.info import RunInfo


def watch(
    run: RunArgument,
    timeout: TimeoutOption = None,
    app: AppOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> int:
    """Follow a run to its end; exit code 1 if that is not success.

    Stops with exit code 6 on an invalid run and 7 on a corrupt one: neither goes on by itself.

    JSON: one object a line for every change, as in `list`, with parent and progress as in `show`.
    """
    from perdure.cli.times import parse_duration_us

    limit_s = None if timeout is None else parse_duration_us(timeout, "--timeout") / 1e6
    out = Output(json=as_json)

    async def work(client: Client) -> int:
        from perdure.cli.runids import resolve_run

        return await follow(client, await resolve_run(client, run), limit_s, out)

    return with_client(locate(app, store), work)


async def follow(client: Client, run_id: str, limit_s: float | None, out: Output) -> int:
    """Print every change of a run until it ends or can go no further; returns the exit code.

    Raises:
        TimeoutError: it took longer than `limit_s`.
    """
    try:
        async with asyncio.timeout(limit_s):
            last = await _follow(client, run_id, out)
    except TimeoutError:
        raise TimeoutError(f"run {run_id} has not ended within {limit_s:g} s; it goes on without us") from None
    if not out.json:
        from perdure.cli.commands.show import show_run

        out.line("")
        await show_run(client, run_id, out)
    return exit_of(last)


async def _follow(client: Client, run_id: str, out: Output) -> RunInfo:
    from perdure.cli.looks import STATUS_STYLES
    from perdure.cli.tables import Cell
    from perdure.cli.times import iso_local, now_us
    from perdure.cli.views import TERMINAL, info_json, status_words
    from perdure.cli.waits import detail_json, progress_words

    handle = await client.run(run_id)
    info = await handle.info()
    shown = None
    async for info in handle.watch():
        if out.json:
            out.value({**info_json(info), **detail_json(info)})
        elif (line := (info.status, info.step, info.reason, info.canceling, stage(info))) != shown:
            now, shown = now_us(), line
            words = Cell(status_words(info, now), STATUS_STYLES.get(info.status, ""))
            reason = f" ({info.reason})" if info.reason else ""
            progress = "" if info.progress is None else f": {progress_words(info.progress)}"
            out.line(iso_local(now), "  ", words, f"  {info.step}{reason}{progress}")
            if info.status == "held":
                out.note("it waits for `perdure release`, `retry` or `resolve`; Ctrl-C stops watching")
        if info.status in TERMINAL or info.status in {"invalid", "corrupt"}:
            break
    return info


def stage(info: RunInfo) -> tuple[int, int]:
    """How far its items are, coarse enough that a run of many prints some lines, not one for each."""
    progress = info.progress
    if progress is None:
        return 0, 0
    most = progress.total if progress.total is not None else progress.done
    return progress.done // max(1, most // 20), progress.failed // max(1, most // 20)


def exit_of(info: RunInfo) -> int:
    """What the end of a run means for whoever waited for it."""
    match info.status:
        case "succeeded":
            return Exit.OK
        case "invalid":
            return Exit.INVALID_RUN
        case "corrupt":
            return Exit.CORRUPT
        case _:
            return Exit.FINDING
