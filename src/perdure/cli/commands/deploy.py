"""`perdure deploy`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli.connect import Place, locate, with_client
from perdure.cli.evolution import edited, one_app
from perdure.cli.exits import Exit
from perdure.cli.options import ActorOption, AppArgument, AppOption, JsonOption, StoreOption, who
from perdure.cli.output import Output
from perdure.cli.problems import refuse
from perdure.errors import NotFound

if TYPE_CHECKING:
    from perdure.define.pipeline import AnyPipeline
    from perdure.runtime.client import Client
    from perdure.runtime.deploying import Deploy


def deploy(
    app_argument: AppArgument = None,
    rollback: Annotated[
        int | None,
        typer.Option("--rollback", metavar="GENERATION", min=1, help="Make this former generation current again."),
    ] = None,
    pipeline: Annotated[
        str | None, typer.Option("--pipeline", "-p", metavar="ID", help="Only this pipeline; --rollback needs it.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Even though runs become invalid, or nothing of it is known here.")
    ] = False,
    actor: ActorOption = None,
    app: AppOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> int:
    """Make the topologies of the application current, or a former generation.

    It checks first, and refuses what would make runs invalid. `perdure run` deploys what it starts with by itself: this
    command is for doing it beforehand, and for going back. An engine that is running goes on with what it started
    with until it is restarted, and one that starts deploys its own code. Where many workers share a store, one that
    starts with a superseded topology deploys nothing, and those that have the topology of now take it up by themselves.

    JSON: one object: deployed (each pipeline, generation, new), engine (who owns the store now, or null) and
    superseded_workers (ids of workers that have another generation now).
    """
    out = Output(json=as_json)
    if rollback is not None and pipeline is None:
        refuse("--rollback needs --pipeline", "each pipeline has its own; `perdure deployments` lists them")
    named = one_app(app_argument, app)
    place = locate(named, store) if rollback is not None else edited(app_argument, app, store)

    async def work(client: Client) -> int:
        if rollback is not None and pipeline is not None:
            try:
                done = [await client.roll_back(pipeline, rollback, actor=who(actor), force=force)]
            except NotFound as error:
                refuse(str(error), "`perdure deployments` lists what there is", Exit.NOT_FOUND)
        else:
            done = await client.deploy(_chosen(place, pipeline), actor=who(actor), force=force)
        owner = str((await client.doctor()).get("owner", "nobody"))
        chosen = {each.pipeline for each in done}
        behind = [worker.id for worker in await client.workers() if chosen & set(worker.superseded)]
        _say(done, None if owner == "nobody" else owner, behind, out)
        return 0

    return with_client(place, work, creates=rollback is None)


def _chosen(place: Place, pipeline: str | None) -> list[AnyPipeline]:
    from perdure.cli.commands.submit import find_pipeline

    return list(place.pipelines.values()) if pipeline is None else [find_pipeline(place, pipeline)]


def _say(done: list[Deploy], owner: str | None, behind: list[str], out: Output) -> None:
    from perdure.cli.tables import Cell
    from perdure.cli.text import count

    if out.json:
        rows = [{"pipeline": d.pipeline, "generation": d.generation, "new": d.new} for d in done]
        out.value({"deployed": rows, "engine": owner, "superseded_workers": behind})
        return
    for each in done:
        news = "is current now" if each.new else "is current already"
        out.line(Cell(each.pipeline, "bold"), f": generation {each.generation} {news}")
    if owner is not None and any(each.new for each in done):
        out.note(f"the engine that is running ({owner}) goes on with what it started with: restart it")
    if behind:
        out.note(
            f"{count(len(behind), 'worker')} with another generation: those that have this topology take it up within "
            "a third of their lease, others serve only what it has not advanced"
        )
