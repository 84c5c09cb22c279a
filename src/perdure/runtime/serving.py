"""What an engine serves from its start on: its pipelines deployed, and invalid runs asked again [D-2, D-4]."""

from __future__ import annotations

from collections.abc import Mapping

from perdure.core.retry import Retry
from perdure.define.pipeline import AnyPipeline
from perdure.runtime.host import Host
from perdure.runtime.line import Line
from perdure.runtime.registry import deploy, deployed, take_part


async def serve(
    host: Host,
    pipelines: Mapping[str, AnyPipeline],
    deps: Mapping[str, object],
    retry: Retry | None,
    timeout_s: float | None,
) -> None:
    """Deploy the pipelines, give the host a line for each, and make runs due that other code may judge otherwise [D-4].

    Invalid runs of a pipeline that no newer generation has superseded are asked again where another build or generation
    judged them [D-2].

    Raises:
        StoreUnusable: a stored topology of one of them does not read.
    """
    store = host.store
    begin = take_part if store.shared else deploy
    judging: dict[str, int] = {}
    for id, known in (await deployed(store, pipelines)).items():
        pipeline = pipelines[id]
        before = known[-1].generation if known else 0
        topology, generation = await begin(store, host.system, id, pipeline.topology, host.worker, known)
        host.lines[id] = Line(pipeline, topology, generation, deps.get(id), retry, timeout_s)
        if before <= generation:
            judging[id] = generation
    if judging:
        await store.wake_invalid(judging, host.options.build, host.system.now_us())
