"""The pure parts of the hot path, one at a time: fold, reconcile, plan, append (sealing), without any store."""

from __future__ import annotations

import time
from collections.abc import Iterator

from benchmarks.limits import prebuilt, setting, state_of, submission
from benchmarks.measurement import Measurement
from benchmarks.pipelines import trivial
from perdure.core.commit import plan_outcome, plan_submission
from perdure.core.facts import Fact
from perdure.core.journal import decode_facts
from perdure.core.operations import RunOp
from perdure.core.outcomes import Returned
from perdure.core.projection import Projection
from perdure.core.reconciler import reconcile
from perdure.core.reducer import fold
from perdure.core.topology import Topology
from perdure.runtime.appending import seal
from perdure.runtime.system import RealSystem


def micro(*, steps: int) -> Iterator[Measurement]:
    """Each part over one clean run of `steps` steps; `us_per_op` is one call of it."""
    topology = trivial(steps).topology
    system = RealSystem()
    facts = [fact for a in prebuilt(system, topology) for fact in decode_facts(a.run_id, a.first_seq, a.facts)]
    fold_us, reconcile_us = _fold_and_reconcile(facts, topology)
    plan_us, append_us = _plan_and_seal(topology, steps, system)
    for op, us in (("fold", fold_us), ("reconcile", reconcile_us), ("plan", plan_us), ("append", append_us)):
        yield Measurement(workload="micro", store="none", runs=1, extra={"steps": steps, "op": op, "us_per_op": us})


def _fold_and_reconcile(facts: list[Fact], topology: Topology) -> tuple[float, float]:
    p = Projection(str(getattr(facts[0], "run_id", "")))
    folding_s = reconciling_s = 0.0
    clock = time.perf_counter
    for fact in facts:
        started = clock()
        fold(p, fact, 1)
        between = clock()
        reconcile(p, topology)
        ended = clock()
        folding_s += between - started
        reconciling_s += ended - between
    return folding_s / len(facts) * 1e6, reconciling_s / len(facts) * 1e6


def _plan_and_seal(topology: Topology, steps: int, system: RealSystem) -> tuple[float, float]:
    """Planning the outcome of each step (which folds and reconciles), and encoding and hashing what was planned."""
    p, submitted, claim = submission(system, topology)
    now_us = system.now_us()
    told = setting(now_us)
    plan = plan_submission(p, topology, submitted, claim, told)
    seal(p, plan.facts, now_us, system.append_id(), 0)
    planning_s = sealing_s = 0.0
    clock = time.perf_counter
    for position in range(steps):
        state = state_of(position)
        if not isinstance(plan.next, RunOp):
            raise RuntimeError(f"nothing to do at step {position}")
        started = clock()
        plan = plan_outcome(p, topology, plan.next, Returned(state), told)
        between = clock()
        seal(p, plan.facts, now_us, system.append_id(), p.token)
        ended = clock()
        planning_s += between - started
        sealing_s += ended - between
    return planning_s / steps * 1e6, sealing_s / steps * 1e6
