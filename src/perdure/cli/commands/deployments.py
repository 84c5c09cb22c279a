"""`perdure deployments`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli.connect import locate, with_client
from perdure.cli.exits import Exit
from perdure.cli.options import AppOption, JsonOption, StoreOption
from perdure.cli.output import Output
from perdure.cli.problems import refuse

if TYPE_CHECKING:
    from perdure.core.topology import Topology
    from perdure.ports.store import Deployment
    from perdure.runtime.client import Client


def deployments(
    pipeline: Annotated[
        str | None, typer.Argument(metavar="[PIPELINE]", help="One pipeline; default: all.", show_default=False)
    ] = None,
    app: AppOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> int:
    """List which topologies were current, and since when.

    JSON: one object: deployments (each pipeline, generation, digest, at, actor, steps, changes), oldest first.
    """
    out = Output(json=as_json)

    async def work(client: Client) -> int:
        found = await client.deployments(pipeline)
        if pipeline is not None and not found:
            known = sorted({d.pipeline for d in await client.deployments()})
            hint = f"it has {', '.join(known)}" if known else "nothing was deployed in it yet"
            refuse(f"the store knows no pipeline {pipeline!r}", hint, Exit.NOT_FOUND)
        _print(sorted(found, key=lambda d: (d.pipeline, d.generation)), out)
        return 0

    return with_client(locate(app, store), work)


def _print(found: list[Deployment], out: Output) -> None:
    import msgspec

    from perdure.cli.edits import changes_text
    from perdure.cli.tables import Table
    from perdure.cli.text import count
    from perdure.cli.times import iso_local, iso_utc
    from perdure.core.diff import diff
    from perdure.core.topology import Topology, decode_steps

    table = Table(["pipeline", "generation", "since", "by", "changes"], right=frozenset({"generation"}), spare=("by",))
    rows: list[dict[str, object]] = []
    before: dict[str, Topology] = {}
    for each in found:
        topology = Topology(decode_steps(each.steps))
        changes = diff(before[each.pipeline], topology) if each.pipeline in before else None
        before[each.pipeline] = topology
        text = count(len(topology), "step") if changes is None else changes_text(changes) or "the same steps"
        table.add(each.pipeline, str(each.generation), iso_local(each.at_us), each.actor, text)
        rows.append(
            {
                "pipeline": each.pipeline,
                "generation": each.generation,
                "digest": each.digest,
                "at": iso_utc(each.at_us),
                "actor": each.actor,
                "steps": msgspec.to_builtins(topology.steps),
                "changes": None if changes is None else msgspec.to_builtins(changes),
            }
        )
    if out.json:
        out.value({"deployments": rows})
    elif rows:
        out.table(table)
    else:
        out.note("nothing was deployed yet; `perdure run APP` deploys what it starts with")
