"""`perdure limits`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure.cli.connect import locate, with_client
from perdure.cli.options import AppOption, JsonOption, StoreOption
from perdure.cli.output import Output

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure.ports.limits import LimitUse
    from perdure.runtime.client import Client


def limits(app: AppOption = None, store: StoreOption = None, as_json: JsonOption = False) -> int:
    """List the limits of the store that are in use: what is taken, and who waits.

    JSON: one object: limits (each limit, key, kind, bound, held, waiting, queue, oldest), by limit and key. The bound
    of a rate is the microseconds from one start to the next; queue is how many may wait, null for any number. Limits of
    one worker are counted there, and not listed.
    """
    out = Output(json=as_json)

    async def work(client: Client) -> int:
        _print(await client.limits(), out)
        return 0

    return with_client(locate(app, store), work)


def _print(found: Sequence[LimitUse], out: Output) -> None:
    from perdure.cli.tables import Table
    from perdure.cli.times import iso_local, iso_utc

    table = Table(["limit", "key", "held", "waiting", "oldest since"], right=frozenset({"held", "waiting"}))
    rows: list[dict[str, object]] = []
    for use in found:
        held = f"{1_000_000 / use.bound:g} a second" if use.kind == "rate" else f"{use.held} of {use.bound}"
        oldest = "" if use.oldest_us is None else iso_local(use.oldest_us)
        waiting = str(use.waiting)
        if use.queue is not None:  # places that are free have room for some who wait
            waiting += f" of {use.queue + max(use.bound - use.held, 0)}"
        table.add(use.limit, use.key, held, waiting, oldest)
        rows.append(
            {
                "limit": use.limit,
                "key": use.key,
                "kind": use.kind,
                "bound": use.bound,
                "held": use.held,
                "waiting": use.waiting,
                "queue": use.queue,
                "oldest": None if use.oldest_us is None else iso_utc(use.oldest_us),
            }
        )
    if out.json:
        out.value({"limits": rows})
    elif rows:
        out.table(table)
    else:
        out.note("no limit of the store is in use")
