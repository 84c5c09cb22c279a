"""What a judge says of handlers as they start and end: nothing known for long stood against it [R-12, R-17]."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure.testing.simulation.law import NOTICE_US
from perdure.testing.simulation.parts import base

if TYPE_CHECKING:
    from perdure.testing.simulation.judge import Judge
    from perdure.testing.simulation.world import Attempt, AttemptKey


HELD_US = NOTICE_US + 5_000_000
"""How long after the hold of its pipeline a handler may start: its reservation, sent before, may be on its way."""


def check_end(judge: Judge, name: AttemptKey, attempt: Attempt) -> None:
    """A handler has ended: a cancel that was durable for long has been told to it [R-12]."""
    _run_id, phase, step, _number = name
    since = judge.canceled_at_us
    if phase == "unwind" or since is None or attempt.stopped or attempt.how == "died" or judge.failure is not None:
        return
    if judge.law.deaf(attempt.worker, since):
        return
    spec = judge.spec(step)
    ran_on_us = judge.law.now_us() - max(since, attempt.started_us)
    late = ran_on_us > NOTICE_US and not (spec is not None and spec.settle)
    judge.demand(not late, "R-12", f"a handler of {step} ran on for {ran_on_us} us after the cancel, and was not told")


def check_start(judge: Judge, name: AttemptKey, worker: str) -> None:
    """A handler starts now, under a lease [R-3], for what is reserved [M-8], and no cancel was known [R-12]."""
    _run_id, phase, step, number = name
    law = judge.law
    law.check_begins(judge.run_id, worker)
    held_us = law.held_for_us(judge.run_id)
    deaf = law.deaf(worker, law.now_us() - held_us)
    judge.demand(
        held_us <= HELD_US or deaf, "R-17", f"a handler of {step} started {held_us} us after its pipeline was held"
    )
    if not judge.is_open(phase, step, number):
        ended = judge.resolved_at_us.get((phase, base(step)))
        just_now = ended is not None and (law.now_us() - ended < NOTICE_US or law.deaf(worker, ended))
        known = number <= judge.attempts(phase, step)
        judge.demand(known and just_now, "M-8", f"{phase} {step}#{number} started, and is not what is reserved")
    if phase == "forward" and judge.canceled_at_us is not None and judge.failure is None:
        spec = judge.spec(step)
        late = law.now_us() - judge.canceled_at_us > NOTICE_US and not law.deaf(worker, judge.canceled_at_us)
        settles = spec is not None and spec.settle
        judge.demand(not late or settles, "R-12", f"a handler of {step} started long after the cancel")
