"""Which topology is current: deployments in the store, and what an engine adds to them at start [D-4, D-5]."""

from __future__ import annotations

import msgspec

from perdure.core.topology import Topology, decode_steps, encode_steps
from perdure.errors import DefinitionError, StoreUnusable
from perdure.ports.clock import System
from perdure.ports.store import Deployment, Store


def topologies(deployments: list[Deployment]) -> list[Topology]:
    """The stored topologies, in order of generation.

    Raises:
        StoreUnusable: one of them does not read; an operator restores the row.
    """
    return [_topology(deployment) for deployment in deployments]


def _topology(deployment: Deployment) -> Topology:
    try:
        return Topology(decode_steps(deployment.steps))
    except (msgspec.MsgspecError, DefinitionError) as error:
        where = f"generation {deployment.generation} of pipeline {deployment.pipeline!r}"
        raise StoreUnusable(f"the deployment of {where} in this store is damaged: {error}") from error


async def deploy(store: Store, system: System, pipeline: str, topology: Topology, actor: str) -> tuple[Topology, int]:
    """Make `topology` current, on a store with one engine: a new generation unless it is current already [D-5].

    Returns:
        The topology, knowing what former generations declared, and its generation.
    """
    while True:
        known = sorted(await store.deployments(pipeline), key=lambda d: d.generation)
        former = topologies(known)
        if known and known[-1].digest == topology.digest:
            return topology.after(former), known[-1].generation
        generation = known[-1].generation + 1 if known else 1
        steps = encode_steps(topology.steps)
        if await store.deploy(Deployment(pipeline, generation, topology.digest, steps, system.now_us(), actor)):
            return topology.after(former), generation


async def take_part(
    store: Store, system: System, pipeline: str, topology: Topology, actor: str
) -> tuple[Topology, int]:
    """Find or make the generation of a worker's topology, on a store with many workers [D-4].

    One that was never seen becomes a new generation. One that is superseded stays so; its worker serves what no newer
    generation advanced.

    Returns:
        As `deploy`.
    """
    return await find(store, pipeline, topology) or await deploy(store, system, pipeline, topology, actor)


async def find(store: Store, pipeline: str, topology: Topology) -> tuple[Topology, int] | None:
    """A topology as its newest generation: what is known of former ones follows from that, whoever asks and when.

    Returns:
        As `deploy`; None for one that was never deployed.
    """
    known = sorted(await store.deployments(pipeline), key=lambda d: d.generation)
    own = max((d.generation for d in known if d.digest == topology.digest), default=0)
    return (topology.after(topologies([d for d in known if d.generation <= own])), own) if own else None


async def current(store: Store, pipeline: str) -> tuple[Topology, int] | None:
    """The current topology of a pipeline as the store knows it, and its generation; None if there is none."""
    known = sorted(await store.deployments(pipeline), key=lambda d: d.generation)
    if not known:
        return None
    former = topologies(known)
    return former[-1].after(former), known[-1].generation
