"""Runs that a new generation cannot go on with are judged when it comes, not when their wait is over [D-2, D-3].

On a store of many workers that is when nobody is left who can: as long as a worker of an older generation is alive, it
may go on with a run, or let it rest once more, whatever a newer one thinks of it; and runs come to rest at such a step
until it is gone [D-4]. So a worker of the newest generation looks when it starts, when the last older one is gone, and
every now and then: one that came and went between two looks may have left something, too [R-16].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf

from perdure.core.operations import InvalidOp
from perdure.core.reconciler import reconcile
from perdure.core.signature import decode_ledger, projection_of
from perdure.core.topology import Topology
from perdure.ports.store import Store, WorkerRow
from perdure.runtime.host import Host
from perdure.runtime.line import Line

PATROL_S = 60.0
"""How often a worker looks without having been given a reason."""


async def wake_misfits(
    store: Store, pipeline: str, topology: Topology, now_us: int, fitting: set[bytes] | None = None
) -> int:
    """Make runs due that rest at a ledger which is invalid under `topology`; how many.

    Whoever claims one then judges it by its facts. Costs one reconciliation a ledger, however many runs share it; a
    run whose ledger the index does not know is judged when it is due by itself.

    Args:
        fitting: signatures of ledgers that are known not to be; what is found is added.
    """
    woken = 0
    for signature, ledger in (await store.resting_ledgers(pipeline)).items():
        if fitting is not None and signature in fitting:
            continue
        if isinstance(reconcile(projection_of(decode_ledger(ledger)), topology), InvalidOp):
            woken += await store.wake_resting(pipeline, signature, now_us)
        elif fitting is not None:
            fitting.add(signature)
    return woken


class Misfits:
    """What one of many workers does about runs that its generation cannot go on with, or an older one could not.

    Args:
        due: something is due now.
    """

    def __init__(self, host: Host, due: Callable[[], None]) -> None:
        self._host = host
        self._due = due
        self._older: frozenset[str] = frozenset()
        self._owed: set[str] = set()
        self._fitting: dict[str, set[bytes]] = {}
        self._patrol_s = -inf

    def owe(self, line: Line) -> None:
        """The generation of this worker's topology has risen."""
        self._owed.add(line.id)

    def noted(self, others: Sequence[WorkerRow]) -> None:
        """Learn who else is alive."""
        host = self._host
        older = frozenset(
            line.id
            for line in host.lines.values()
            if any(row.serves.get(line.id, line.generation) < line.generation for row in others)
        )
        self._owed |= self._older - older
        self._older = older
        now_s = host.system.steady_s()
        if now_s >= self._patrol_s:
            self._patrol_s = now_s + PATROL_S
            self._owed |= host.lines.keys()

    async def look(self) -> None:
        """Make due what is to be judged here now. What fails is tried again with the next call."""
        host = self._host
        store, now_us = host.store, host.system.now_us()
        for name in sorted(self._older | self._owed):
            line = host.lines[name]
            woken = 0
            if line.generation > 1 and not host.superseded(line):
                woken = await store.wake_invalid({name: line.generation}, None, now_us)
                if name not in self._older:
                    fitting = self._fitting.setdefault(name, set())
                    woken += await wake_misfits(store, name, line.topology, now_us, fitting)
            if name not in self._older:
                self._owed.discard(name)
            if woken:
                self._due()
