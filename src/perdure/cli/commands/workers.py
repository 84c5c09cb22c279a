"""`perdure workers`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli.connect import locate, with_client
from perdure.cli.options import AppOption, JsonOption, StoreOption
from perdure.cli.output import Output

if TYPE_CHECKING:
    from perdure.runtime.client import Client
    from perdure.runtime.workforce import WorkerInfo


def workers(
    all_: Annotated[bool, typer.Option("--all", "-a", help="Also workers that died lately.")] = False,
    app: AppOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> int:
    """List who works on the store, and what they serve.

    A worker is alive, draining (it begins nothing more), silent (it has not renewed its lease for the length of one:
    others find it dead, if there are any), or dead. A generation in brackets is superseded: its worker serves only
    runs that no newer one advanced. Of a SQLite file the one engine is shown.

    JSON: one object: workers (each id, host, process, state, since, seen_at, lease_s, serves (generation by
    pipeline), superseded (pipelines), build, runs).
    """
    out = Output(json=as_json)

    async def work(client: Client) -> int:
        from perdure.cli.times import now_us

        _print(await client.workers(all=all_), await client.store.clock_us() or now_us(), out)
        return 0

    return with_client(locate(app, store), work)


def _print(found: list[WorkerInfo], now: int, out: Output) -> None:
    from perdure.cli.tables import Cell, Table
    from perdure.cli.text import count
    from perdure.cli.times import ago

    if out.json:
        out.value({"workers": [worker_json(worker) for worker in found]})
        return
    if not found:
        out.line("no workers")
        out.note("`perdure worker APP --processes N` starts some, `perdure run APP` one")
        return
    table = Table(
        ["worker", "host", "process", "state", "since", "seen", "runs", "serves"],
        right=frozenset({"process", "runs"}),
        spare=("since", "host", "serves"),
        wraps="serves",
    )
    for worker in found:
        table.add(
            Cell(worker.id, "bold"),
            worker.host,
            str(worker.process),
            Cell(worker.state, STYLES[worker.state]),
            ago(worker.since_us, now),
            "" if worker.seen_us is None else ago(worker.seen_us, now),
            f"{worker.runs:,}",
            serves_words(worker),
        )
    out.table(table)
    behind = sum(bool(worker.superseded) for worker in found if worker.state != "dead")
    if behind:
        out.line(f"{count(behind, 'worker')} with a superseded generation, in brackets")


STYLES = {"alive": "green", "draining": "cyan", "silent": "bold yellow", "dead": "red"}


def serves_words(worker: WorkerInfo) -> str:
    """`payout 7, refund (3)`: pipelines and generations, those in brackets superseded."""
    return ", ".join(
        f"{pipeline} ({generation})" if pipeline in worker.superseded else f"{pipeline} {generation}"
        for pipeline, generation in sorted(worker.serves.items())
    )


def worker_json(worker: WorkerInfo) -> dict[str, object]:
    """A worker for programs."""
    from perdure.cli.times import iso_utc

    return {
        "id": worker.id,
        "host": worker.host,
        "process": worker.process,
        "state": worker.state,
        "since": iso_utc(worker.since_us),
        "seen_at": iso_utc(worker.seen_us),
        "lease_s": worker.lease_us / 1_000_000 or None,
        "serves": worker.serves,
        "superseded": list(worker.superseded),
        "build": worker.build or None,
        "runs": worker.runs,
    }
