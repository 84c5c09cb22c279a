"""The real clock and real chance: ids that never meet, and order where order is promised [R-3, J-14]."""

from __future__ import annotations

import re

from perdure.core.ids import encode_run_id
from perdure.define.names import name_problem
from perdure.runtime.system import RealSystem


def test_run_ids_rise_and_are_fit_to_be_names() -> None:
    """M-3: no slash in them, so idempotency keys of two runs cannot meet; newest-first lists are stable."""
    system = RealSystem()
    ids = [system.run_id() for _ in range(5000)]
    assert ids == sorted(set(ids))
    assert all(re.fullmatch("[0-9a-z]{21}", run_id) and name_problem(run_id) is None for run_id in ids)


def test_run_ids_keep_the_order_of_their_times_whatever_the_chance() -> None:
    """R-9, I-1"""
    most = (1 << 50) - 1
    times = [0, 1, 10**15, 10**15 + 1, (1 << 55) - 1]
    ids = [encode_run_id(now_us, chance) for now_us in times for chance in (0, most)]
    assert ids == sorted(set(ids))
    assert {len(run_id) for run_id in ids} == {21}


def test_ids_of_two_systems_do_not_meet() -> None:
    """J-14, R-3"""
    one, two = RealSystem(), RealSystem()
    made = [make() for system in (one, two) for make in [system.append_id, system.worker_id] * 2000]
    assert len(set(made)) == len(made)
    assert all(0.0 <= one.chance() < 1.0 for _ in range(1000))
