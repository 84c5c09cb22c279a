"""Which topology is current: deployments in the store, and what an engine adds to them at start [D-4, D-5]."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

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


async def deployed(store: Store, pipelines: Collection[str]) -> dict[str, list[Deployment]]:
    """What the registry has of these pipelines, each in order of generation: one read, however many they are."""
    found: dict[str, list[Deployment]] = {name: [] for name in pipelines}
    for deployment in await store.deployments(*pipelines if len(pipelines) == 1 else ()):
        if deployment.pipeline in found:
            found[deployment.pipeline].append(deployment)
    return {name: _in_order(known) for name, known in found.items()}


def _in_order(known: Iterable[Deployment]) -> list[Deployment]:
    return sorted(known, key=lambda d: d.generation)


async def deploy(
    store: Store,
    system: System,
    pipeline: str,
    topology: Topology,
    actor: str,
    known: list[Deployment] | None = None,
) -> tuple[Topology, int]:
    """Make `topology` current, on a store with one engine: a new generation unless it is current already [D-5].

    Args:
        known: what the registry had of the pipeline a moment ago, see `deployed`; else it is read.

    Returns:
        The topology, knowing what former generations declared, and its generation.
    """
    while True:
        known = _in_order(await store.deployments(pipeline)) if known is None else known
        former = topologies(known)
        if known and known[-1].digest == topology.digest:
            return topology.after(former), known[-1].generation
        generation = known[-1].generation + 1 if known else 1
        steps = encode_steps(topology.steps)
        if await store.deploy(Deployment(pipeline, generation, topology.digest, steps, system.now_us(), actor)):
            return topology.after(former), generation
        known = None


async def take_part(
    store: Store, system: System, pipeline: str, topology: Topology, actor: str, known: list[Deployment]
) -> tuple[Topology, int]:
    """Find or make the generation of a worker's topology, on a store with many workers [D-4].

    One that was never seen becomes a new generation. One that is superseded stays so; its worker serves what no newer
    generation advanced.

    Args:
        known: as of `deploy`. Whatever became newer since, its heart finds out.

    Returns:
        As `deploy`.
    """
    return _found(known, topology) or await deploy(store, system, pipeline, topology, actor, known)


async def find(store: Store, pipeline: str, topology: Topology) -> tuple[Topology, int] | None:
    """A topology as its newest generation: what is known of former ones follows from that, whoever asks and when.

    Returns:
        As `deploy`; None for one that was never deployed.
    """
    return _found(_in_order(await store.deployments(pipeline)), topology)


def _found(known: Sequence[Deployment], topology: Topology) -> tuple[Topology, int] | None:
    own = max((d.generation for d in known if d.digest == topology.digest), default=0)
    return (topology.after(topologies([d for d in known if d.generation <= own])), own) if own else None


async def current(store: Store, pipeline: str) -> tuple[Topology, int] | None:
    """The current topology of a pipeline as the store knows it, and its generation; None if there is none."""
    known = _in_order(await store.deployments(pipeline))
    if not known:
        return None
    former = topologies(known)
    return former[-1].after(former), known[-1].generation
