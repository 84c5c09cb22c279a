"""The data of a simulation: a memory store's data that has every change judged the moment it becomes durable."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import msgspec

from perdure.core.facts import RunSubmitted, RunSucceeded
from perdure.core.journal import decode_facts
from perdure.core.retry import DEFAULT_RETRY, Retry
from perdure.core.topology import Topology
from perdure.ports.store import TERMINAL, Append, AppendResult, IndexState, PipelineHold, WaitCycle
from perdure.runtime.registry import topologies
from perdure.storage.memory_data import MemoryRun
from perdure.testing.simulation import kin
from perdure.testing.simulation.crew import Crew
from perdure.testing.simulation.designs import RETRIES, condition_holds
from perdure.testing.simulation.dice import Dice
from perdure.testing.simulation.gates import Gated
from perdure.testing.simulation.judge import Judge
from perdure.testing.simulation.world import Attempt, AttemptKey

if TYPE_CHECKING:
    from perdure.testing.simulation.world import World


@dataclass(frozen=True)
class Violation:
    """A rule that was broken."""

    run_id: str
    rule: str
    problem: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.problem}" + (f" (run {self.run_id})" if self.run_id else "")


class ProcessView(Protocol):
    """What the history knows of a process."""

    number: int

    @property
    def alive(self) -> bool: ...
    @property
    def draining(self) -> bool: ...
    @property
    def broken(self) -> bool: ...
    def sleep_us(self, pipeline: str, step: str) -> int: ...
    def patience_us(self, pipeline: str, step: str) -> int: ...


class History(Gated):
    """See the module; it is the `Law` of its judges.

    Attributes:
        judges: one for each run that ever was.
        processes: by worker id.
        violations: what was broken, in order.
        trace: what happened, in order; equal for equal seeds.
        calls: what callers are asking now.
        removed: runs that retention took away.
        by_number: the first run of each order that waited for no slot.
        crew: what is known of the workers of a shared store.
    """

    def __init__(
        self, dice: Dice, now_us: Callable[[], int], *, shared: bool = False, gates: int | None = None
    ) -> None:
        super().__init__(shared=shared, gates=gates)
        self.crew = Crew(self)
        self.judges: dict[str, Judge] = {}
        self.processes: dict[str, ProcessView] = {}
        self.violations: list[Violation] = []
        self.trace: list[str] = []
        self.removed: set[str] = set()
        self.by_number: dict[int, str] = {}
        self._circles: set[str] = set()
        self.world: World | None = None
        self.calls: dict[asyncio.Task[None], None] = {}
        self.on_violation: Callable[[], None] = lambda: None
        self._dice = dice
        self._clock = now_us
        self._start_us = now_us()
        self.pipelines_held: dict[str, int] = {}
        self.pipeline_releases = 0
        self._released_us: dict[str, int] = {}
        self._before = ("", "")
        self._topologies: dict[tuple[str, int], Topology] = {}

    # --- notes

    def note(self, text: str) -> None:
        """Add a line to the trace."""
        self.trace.append(f"{(self._clock() - self._start_us) / 1e6:12.6f} {text}")

    def blame(self, run_id: str, rule: str, problem: str) -> None:
        """A rule is broken."""
        self.violations.append(Violation(run_id, rule, problem))
        self.note(f"!! {self.violations[-1]}")
        self.on_violation()

    # --- writing, judged

    def append(self, append: Append) -> AppendResult:
        """See `MemoryData.append`."""
        before = self._row_count(append.run_id)
        known = self.run(append.run_id)
        self._before = ("", "") if known is None or known.state is None else (known.state.status, known.state.worker)
        result = super().append(append)
        name = type(result).__name__
        if append.new is not None:
            self.doors.submits(append.new, result, written=self._row_count(append.run_id) != before)
        self._see_circle(append.run_id, append.index, result)
        if self._row_count(append.run_id) == before:
            self.note(f"append {append.run_id[-5:]} {append.first_seq} -> {name}, nothing written")
            return result
        facts = decode_facts(append.run_id, append.first_seq, append.facts)
        said = " ".join(_short(fact) for fact in facts)
        self.note(f"append {append.run_id[-5:]} {append.first_seq} t{append.token} -> {name}: {said}")
        judge = self.judges.setdefault(append.run_id, Judge(append.run_id, self))
        self.crew.check_append(append)
        judge.on_append(append, facts)
        self.doors.written(judge)
        self._check_index(append.run_id)
        if judge.ended is not None:
            self._check_waiters(append.run_id)
        if append.index is not None and append.index.worker and append.token:
            self._demand(append.run_id, self.lives(append.index.worker), "R-16", "a dead process owns the run")
        return result

    def _row_count(self, run_id: str) -> int:
        run = self.run(run_id)
        return 0 if run is None else len(run.rows)

    def set_index(self, locator: int, state: IndexState, tail_seq: int) -> bool | WaitCycle:
        """See `MemoryData.set_index`."""
        done = super().set_index(locator, state, tail_seq)
        run = self.at(locator)
        run_id = run.run_id if run is not None else "?"
        self.note(f"index {run_id[-5:]} {state.status} due {state.due_us} {state.reason[:40]} -> {done}")
        self._see_circle(run_id, state, done)
        if done is True:
            self.judges[run_id].was_invalid |= state.status == "invalid"
            self._check_index(run_id)
        return done

    def remove(self, run: MemoryRun) -> None:
        """See `MemoryData.remove`; only what has ended may go [R-9]."""
        run_id = run.run_id
        if self.judges[run_id].ended is None:
            self.blame(run_id, "R-9", "retention removed a run that has not ended")
        for waiter in self._waiters(run_id):
            self.blame(run_id, "R-9", f"retention removed a run whose end {waiter} has yet to see")
        self.removed.add(run_id)
        super().remove(run)

    def _check_index(self, run_id: str) -> None:
        """The index row follows from the facts [J-11], and every run has an owner, a time or a reason [R-16]."""
        run, judge = self.run(run_id), self.judges[run_id]
        if run is None or run.state is None:
            return
        state = run.state
        if state.status == "invalid":
            self.count(state.reason.partition(":")[0].replace("-", " ").replace("safe unwind", "safe"))
        self._demand(run_id, state.status != "corrupt", "J-8", f"the run is quarantined: {state.reason}")
        self._demand(
            run_id, state.token == judge.token, "J-11", f"the index has token {state.token}, not {judge.token}"
        )
        ended = judge.ended
        self._demand(
            run_id, (state.status in TERMINAL) == (ended is not None), "J-11", f"the index says {state.status}"
        )
        if ended is not None:
            if isinstance(ended, RunSucceeded):
                kind = "succeeded"
            else:
                kind = "canceled" if ended.failure.kind == "canceled" else "failed"
            self._demand(run_id, state.status == kind, "J-11", f"the index says {state.status}, the run {kind}")
        elif state.worker:
            owned = self.shared or state.status == "running"  # shared: perhaps picked, and as it was when it was due
            self._demand(run_id, owned, "J-11", f"owned and {state.status}")
        else:
            self._demand(run_id, state.status != "running", "R-16", "running without an owner")
            waits = state.due_us is not None or state.status == "held" or (state.status == "invalid" and state.reason)
            waits = waits or (run.waiting and self._has_before(run_id)) or judge.waits_for_message()
            waits = waits or kin.waits(judge) or self.doors.waits(run_id)
            self._demand(run_id, bool(waits), "R-16", f"{state.status} and waits for nothing")
            self._demand(run_id, state.canceling == (judge.cancel is not None), "J-11", "canceling differs")
            held = judge.held is not None
            self._demand(run_id, state.status != "held" or held, "R-17", "the index says held, the facts do not")

    def _demand(self, run_id: str, held: bool, rule: str, problem: str) -> None:
        if not held:
            self.blame(run_id, rule, problem)

    def _see_circle(self, run_id: str, state: IndexState | None, result: object) -> None:
        """The store refused a wait: it would close a circle of runs that wait for each other [R-13]."""
        if isinstance(result, WaitCycle) and state is not None:
            self.count("circle refused")
            self._circles.add(run_id)
            circle = kin.reaches(self, run_id, list(state.awaits))
            self._demand(run_id, circle, "R-13", f"its wait for {state.awaits} closes no circle, and was refused")

    def _waiters(self, run_id: str) -> list[str]:
        """Runs that nobody owns and that wait for this one."""
        found: list[str] = []
        for judge in self.judges.values():
            run = self.run(judge.run_id) if judge.pin is not None and judge.ended is None else None
            free = run is not None and run.state is not None and not run.state.worker
            if free and run_id in kin.targets(judge):
                found.append(judge.run_id)
        return found

    def _check_waiters(self, run_id: str) -> None:
        """In the append that ends a run, whoever has waited for enough is due [R-16]."""
        for waiter in self._waiters(run_id):
            run = self.run(waiter)
            if run is not None and run.state is not None and run.state.status == "ready" and not run.waiting:
                due = run.state.due_us is not None or kin.waits(self.judges[waiter])
                self._demand(waiter, due, "R-16", f"{run_id} has ended, and its end wakes nobody")

    # --- the law

    def count(self, kind: str) -> None:
        """Something was seen to happen."""
        self._dice.count(kind)

    def now_us(self) -> int:
        """True time."""
        return self._clock()

    def line(self) -> int:
        """Where the trace stands."""
        return len(self.trace)

    def topology(self, pipeline: str, generation: int) -> Topology:
        """A deployed topology, knowing what former generations declared."""
        found = self._topologies.get((pipeline, generation))
        if found is None:
            deployed = [d for d in self.registry if d.pipeline == pipeline and d.generation <= generation]
            deployed.sort(key=lambda d: d.generation)
            former = topologies(deployed)
            found = self._topologies[pipeline, generation] = former[-1].after(former)
        return found

    def newest(self, pipeline: str) -> Topology:
        """The topology that was deployed last."""
        return self.topology(pipeline, max(d.generation for d in self.registry if d.pipeline == pipeline))

    def reason(self, run_id: str) -> tuple[str, str]:
        """Status and owner of a run before the append that is judged."""
        return self._before

    def policy(self, step: str) -> Retry:
        """The retry policy of a step, the same in every deployment."""
        return RETRIES.get(step) or DEFAULT_RETRY

    def sleep_us(self, worker: str, pipeline: str, step: str) -> int:
        """How long a sleep takes in the code of that engine; 0 if it has no such sleep."""
        process = self.process_of(worker)
        return 0 if process is None else process.sleep_us(pipeline, step)

    def patience_us(self, worker: str, pipeline: str, step: str) -> int:
        """How long a wait for a message may take in the code of that engine; 0: for ever."""
        process = self.process_of(worker)
        return 0 if process is None else process.patience_us(pipeline, step)

    def holds(self, step: str, submitted: RunSubmitted | None) -> bool:
        """What the condition of a step says about a run."""
        if submitted is None:
            return False
        number: object = msgspec.json.decode(submitted.input)["number"]
        return condition_holds(step, int(str(number)))

    def attempt(self, name: AttemptKey) -> Attempt | None:
        """What the world saw of an attempt."""
        return self.world.attempts.get(name) if self.world is not None else None

    def judge(self, run_id: str) -> Judge | None:
        """What is known of a run."""
        return self.judges.get(run_id)

    def is_removed(self, run_id: str) -> bool:
        """Whether retention took a run away."""
        return run_id in self.removed

    def named(self, run_id: str, step: str) -> list[str]:
        """The runs that the code last told a step to wait for."""
        return [] if self.world is None else self.world.named.get((run_id, step), [])

    def told_of_circle(self, run_id: str) -> bool:
        """Whether the store refused a wait of the run."""
        return run_id in self._circles

    def delete_worker(self, worker: str) -> None:
        """A careless hand deletes the row of a worker, which finds out at its next renewal."""
        member = self.crew.members.get(worker)
        if self.workers.pop(worker, None) is not None and member is not None:
            self.note(f"the row of {worker} is deleted")
            member.by_hand = True

    def process_of(self, worker: str) -> ProcessView | None:
        """The process that works, or worked, as that worker."""
        return self.processes.get(worker.partition(".")[0])

    def lives(self, worker: str) -> bool:
        """Whether that engine's process lives, and nobody found the worker dead."""
        process = self.process_of(worker)
        return process is not None and process.alive and (not self.shared or self.crew.alive(worker))

    def superseded(self, pipeline: str, generation: int) -> bool:
        """Whether an engine of that generation may let a run go to a newer one [D-4]."""
        return self.shared and any(d.pipeline == pipeline and d.generation > generation for d in self.registry)

    def deaf(self, worker: str, since_us: int) -> bool:
        """Whether that engine could not hear of everything since then."""
        return self.shared and self.crew.deaf(worker, since_us)

    def check_begins(self, run_id: str, worker: str) -> None:
        """Blame a worker that begins something past its lease [R-3]."""
        if self.shared:
            self.crew.check_begins(run_id, worker)

    def draining(self, worker: str) -> bool:
        """Whether that engine starts nothing more."""
        process = self.process_of(worker)
        return process is None or process.draining

    def broken(self, worker: str) -> bool:
        """Whether the code of that engine has a broken output function or condition."""
        process = self.process_of(worker)
        return process is not None and process.broken

    def hold(self, hold: PipelineHold) -> bool:
        """See `MemoryData.hold`."""
        self.note(f"pipeline {hold.pipeline} is held")
        self.pipelines_held.setdefault(hold.pipeline, self._clock())
        return super().hold(hold)

    def release_hold(self, pipeline: str, actor: str, note: str, at_us: int) -> bool:
        """See `MemoryData.release_hold`."""
        self.note(f"pipeline {pipeline} is released")
        if self.pipelines_held.pop(pipeline, None) is not None:
            self.count("held pipeline: released")
            self.pipeline_releases += 1
        self._released_us[pipeline] = self._clock()
        return super().release_hold(pipeline, actor, note, at_us)

    def held_lately(self, run_id: str, ago_us: int) -> bool:
        """Whether the pipeline of a run is held, or was so long ago at most."""
        submitted = self.judges[run_id].submitted
        if submitted is None:
            return False
        released_us = self._released_us.get(submitted.pipeline)
        lately = released_us is not None and self._clock() - released_us < ago_us
        return lately or submitted.pipeline in self.pipelines_held

    def held_for_us(self, run_id: str) -> int:
        """For how long the pipeline of a run has been held."""
        submitted = self.judges[run_id].submitted
        since_us = None if submitted is None else self.pipelines_held.get(submitted.pipeline)
        return 0 if since_us is None else self._clock() - since_us

    def _of_slot(self, run_id: str, submitted: RunSubmitted) -> tuple[list[Judge], list[Judge]]:
        """The other runs of a slot: those submitted before this one, and those after it."""
        before: list[Judge] = []
        after: list[Judge] = []
        found = before
        for other in self.judges.values():
            first = other.submitted
            if other.run_id == run_id:
                found = after
            elif first is not None and _slot(first) == _slot(submitted):
                found.append(other)
        return before, after

    def _has_before(self, run_id: str) -> bool:
        """Somebody who was there before has its slot, or waits for it."""
        submitted = self.judges[run_id].submitted
        before = self._of_slot(run_id, submitted)[0] if submitted is not None else []
        return any(other.ended is None for other in before)

    def check_turn(self, run_id: str, submitted: RunSubmitted) -> None:
        """A run that waited for its slot starts when all before it have ended, and nobody else has it [R-5, M-1]."""
        before, after = self._of_slot(run_id, submitted)
        for other in before:
            if other.ended is None:
                self.blame(run_id, "R-5", f"it waits for its slot, and starts before {other.run_id} has ended")
        for other in after:
            called = any(
                entry.attempts for entry in other.forward.values()
            )  # an operator may have resolved a step of it
            if other.ended is None and called:
                self.blame(run_id, "M-1", f"it starts while {other.run_id} has its slot")
        self.count("slot: waited for")

    def check_replaced(self, run_id: str, submitted: RunSubmitted) -> None:
        """Only a run that was submitted to replace it cancels another [R-5]."""
        _before, after = self._of_slot(run_id, submitted)
        replaces = any(one.submitted is not None and one.submitted.waits == "replace" for one in after)
        self._demand(run_id, replaces, "R-5", "the run was replaced, and by nobody")
        self.count("slot: replaced")

    def check_superseded(self, run_id: str) -> None:
        """At rest, whoever is to be replaced is being canceled; one that was canceled replaces nobody [R-5, R-16]."""
        judge = self.judges[run_id]
        after = self._of_slot(run_id, judge.submitted)[1] if judge.submitted is not None else []
        waiting = [one for one in after if one.ended is None and one.cancel is None]
        replaced = any(one.submitted is not None and one.submitted.waits == "replace" for one in waiting)
        self._demand(run_id, not replaced or judge.cancel is not None, "R-5", "it is to be replaced, and goes on")

    def check_slot(self, run_id: str, submitted: RunSubmitted) -> None:
        """At most one run that has not ended occupies a slot [M-1]; of `once`, one for ever."""
        if not submitted.waits:
            number: object = msgspec.json.decode(submitted.input)["number"]
            self.by_number.setdefault(int(str(number)), run_id)
        key = submitted.annotations.get("key", "")
        for other in self.judges.values() if key else ():
            if other.run_id != run_id and other.key() == key:
                self.blame(run_id, "R-5", f"it was submitted under the key of {other.run_id}")
        if submitted.slot == "none" or submitted.waits:
            return
        for other in self.judges.values():
            first = other.submitted
            if first is None or other.run_id in (run_id, *self.removed):
                continue
            if _slot(first) == _slot(submitted) and (other.ended is None or submitted.slot == "once"):
                self.blame(run_id, "M-1", f"run {other.run_id} occupies the slot of {submitted.resource}")


def _slot(submitted: RunSubmitted) -> tuple[str, str, str]:
    return submitted.tenant, submitted.pipeline, submitted.resource


def _short(fact: object) -> str:
    parts = [type(fact).__name__]
    for name in ("step", "phase", "attempt", "cause", "how", "reason", "due_us", "generation", "passed", "crossed"):
        value = getattr(fact, name, None)
        if value:
            parts.append(str(value).replace(" ", ""))
    return ":".join(parts)
