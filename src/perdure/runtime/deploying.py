"""Making a topology current by hand: that of an application, or a former generation [D-5].

An engine reads the registry when it starts, and deploys its own topologies then. A running engine goes on with what it
started with until it is restarted.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from perdure.core.future import Candidate
from perdure.core.topology import Topology
from perdure.errors import InvalidArgument, NotAllowed, NotFound
from perdure.ports.clock import System
from perdure.ports.store import Store
from perdure.runtime.census import check, take_census
from perdure.runtime.misfits import wake_misfits
from perdure.runtime.registry import deploy, topologies


class Deploy(msgspec.Struct, frozen=True):
    """What became of one pipeline: its current generation, and whether that is a new one."""

    pipeline: str
    generation: int
    new: bool


async def deploy_all(
    store: Store, system: System, candidates: Mapping[str, Candidate], actor: str, *, force: bool
) -> list[Deploy]:
    """Make these topologies current, each a new generation unless it is current already.

    Raises:
        InvalidArgument: there is nothing to deploy.
        NotAllowed: a run would become invalid, or nothing of what is deployed is known here; nothing was deployed.
    """
    if not candidates:
        raise InvalidArgument("the application has no pipelines: there is nothing to deploy")
    if not force:
        await _allow(store, system, candidates)
    return [await _deploy(store, system, name, candidates[name].topology, actor) for name in sorted(candidates)]


async def roll_back(store: Store, system: System, pipeline: str, generation: int, actor: str, *, force: bool) -> Deploy:
    """Make the topology of a former generation current again, as a new generation.

    Raises:
        NotFound: there is no such pipeline or generation.
        NotAllowed: a run would become invalid; nothing was deployed.
    """
    known = {d.generation: d for d in await store.deployments(pipeline)}
    if not known:
        raise NotFound(f"no topology of pipeline {pipeline!r} is registered in this store")
    if generation not in known:
        raise NotFound(f"pipeline {pipeline!r} has no generation {generation}; it has {_span(sorted(known))}")
    (topology,) = topologies([known[generation]])
    if not force:
        await _allow(store, system, {pipeline: Candidate(topology)})
    return await _deploy(store, system, pipeline, topology, actor)


def _span(generations: list[int]) -> str:
    return str(generations[0]) if len(generations) == 1 else f"{generations[0]} to {generations[-1]}"


async def _deploy(store: Store, system: System, name: str, topology: Topology, actor: str) -> Deploy:
    before = max((d.generation for d in await store.deployments(name)), default=0)
    deployed, generation = await deploy(store, system, name, topology, actor)
    if generation > before:
        await wake_misfits(store, name, deployed, system.now_us())
    return Deploy(name, generation, generation > before)


async def _allow(store: Store, system: System, candidates: Mapping[str, Candidate]) -> None:
    census = await take_census(store, system.now_us())
    for name, candidate in candidates.items():
        former = census.former(name)
        if former and not candidate.topology.position.keys() & former[-1].position.keys():
            raise NotAllowed(
                f"none of the steps of pipeline {name!r} as deployed ({', '.join(former[-1].ids[:3])}) is in what is "
                f"to be deployed: this looks like another application; nothing was deployed"
            )
    report = check(census, candidates)
    for found in report.pipelines:
        if found.invalid and found.pipeline in candidates:
            raise NotAllowed(f"pipeline {found.pipeline!r}: {found.sentences[0]}; nothing was deployed")
