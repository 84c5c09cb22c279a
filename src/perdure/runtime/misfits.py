"""Runs that a new generation cannot go on with are judged when it comes, not when their wait is over [D-2, D-3]."""

from __future__ import annotations

from perdure.core.operations import InvalidOp
from perdure.core.reconciler import reconcile
from perdure.core.signature import decode_ledger, projection_of
from perdure.core.topology import Topology
from perdure.ports.store import Store


async def wake_misfits(store: Store, pipeline: str, topology: Topology, now_us: int) -> int:
    """Make runs due that rest at a ledger which is invalid under `topology`; how many.

    Whoever claims one then judges it by its facts. Costs one reconciliation a ledger, however many runs share it; a
    run whose ledger the index does not know is judged when it is due by itself.
    """
    woken = 0
    for entry in await store.ledgers():
        if entry.pipeline != pipeline or not entry.signature:
            continue
        if isinstance(reconcile(projection_of(decode_ledger(entry.ledger)), topology), InvalidOp):
            woken += await store.wake_resting(pipeline, entry.signature, now_us)
    return woken
