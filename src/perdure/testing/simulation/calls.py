"""What callers ask of a simulation: each call in a task of its own, some cancelled at an await, all of them checked."""

from __future__ import annotations

import asyncio
import types
from collections.abc import Callable, Coroutine, Generator
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Literal, TypeAlias, TypeVar

import msgspec

from perdure.core.facts import MessageReceived, RunSucceeded
from perdure.define.pipeline import AnyPipeline
from perdure.define.result import Canceled, Failed, Succeeded
from perdure.errors import (
    InvalidArgument,
    InvalidRun,
    KeyTaken,
    MutexConflict,
    NotAllowed,
    NotFound,
    PayloadError,
    PerdureError,
    QueueFull,
    ScheduleConflict,
    StoreUnavailable,
)
from perdure.runtime.client import Client
from perdure.runtime.run import Run
from perdure.testing.simulation.designs import MAIL
from perdure.testing.simulation.dice import Dice
from perdure.testing.simulation.history import History
from perdure.testing.simulation.judge import Judge
from perdure.testing.simulation.orders import Order

T = TypeVar("T")
Work: TypeAlias = Callable[[int], Coroutine[object, object, None]]
"""A call, given its number."""

Tasks: TypeAlias = dict[asyncio.Task[None], None]
"""Calls under way, in the order they were made: a set would not be the same every time."""


def _forget(tasks: Tasks, task: asyncio.Task[None]) -> None:
    tasks.pop(task, None)


@types.coroutine
def cancelled_at(work: Coroutine[object, object, T], awaits: int) -> Generator[object, object, T]:
    """Await `work`, but cancel the task that does so when it waits for the nth time."""
    thrown: BaseException | None = None
    while True:
        try:
            waits_for = work.send(None) if thrown is None else work.throw(thrown)
        except StopIteration as stop:
            value: T = stop.value
            return value
        awaits -= 1
        task = asyncio.current_task()
        if not awaits and task is not None:
            task.get_loop().call_soon(task.cancel)
        thrown = None
        try:
            yield waits_for
        except BaseException as error:  # whatever is thrown in belongs to the work
            thrown = error


@dataclass(frozen=True)
class How:
    """What a submission asks for where its slot is busy, and under which key it may be sent again [R-5]."""

    on_busy: Literal["join", "reject", "queue", "replace"] = "join"
    key: str = ""


@dataclass
class Callers:
    """See the module; keeps what was acknowledged, for the end.

    Attributes:
        submitted: run ids by the number of the submission that was told of them.
    """

    dice: Dice
    history: History
    number: int = 0

    def __post_init__(self) -> None:
        self.submitted: dict[int, str] = {}
        self.keyed: dict[tuple[str, Order], str] = {}
        self.tasks: Tasks = self.history.calls

    def call(
        self,
        name: str,
        work: Callable[[int], Coroutine[object, object, None]],
        owner: Tasks | None = None,
    ) -> None:
        """Start a call. `owner`: the calls that end with a process, if it is made inside one."""
        self.number += 1
        task = asyncio.get_running_loop().create_task(
            self._guarded(self.number, name, work), name=f"{name} {self.number}"
        )
        for tasks in (self.tasks, owner):
            if tasks is not None:
                tasks[task] = None
                task.add_done_callback(partial(_forget, tasks))

    async def _guarded(self, number: int, name: str, work: Work) -> None:
        how = "done"
        try:
            if self.dice.hit("caller canceled at an await"):
                await cancelled_at(work(number), self.dice.choice((1, 1, 1, 2, 2, 3, 4, 6)))
            else:
                await work(number)
        except asyncio.CancelledError:
            how = "canceled"
        except StoreUnavailable as error:
            how = f"no answer: {error}"
        except Exception as error:
            self.history.blame("", "I-1", f"{name} {number} raised {type(error).__name__}: {error}")
            how = repr(error)
        self.history.note(f"call {number} {name}: {how}")

    # --- submit

    async def submit(
        self,
        number: int,
        client: Client,
        pipeline: AnyPipeline,
        order: Order,
        delay_s: float | None,
        deadline_s: float | None,
        how: How,
    ) -> None:
        """A submission is durable when acknowledged; it joins what is equal, and conflicts with the rest [R-5]."""
        started = len(self.history.trace)
        try:
            run: Run[object] = await client.submit(
                pipeline,
                order,
                delay=delay_s,
                deadline=None if deadline_s is None else timedelta(seconds=deadline_s),
                annotations={"call": str(number), **({"key": how.key} if how.key else {})},
                on_busy=how.on_busy,
                idempotency_key=how.key or None,
                key_window=timedelta(days=30) if how.key else None,
            )
        except ScheduleConflict as conflict:
            self.dice.count("slot: conflict")
            equal = None if how.on_busy == "reject" or isinstance(conflict, MutexConflict) else False
            self._check_occupant(conflict.run_id, order, equal=equal, since=started)
            return
        except QueueFull:
            return  # whether that was true, the doors have said
        except KeyTaken as taken:
            self.dice.count("key: other input")
            known = [judge.order() for judge in self.history.judges.values() if judge.key() == how.key]
            other = bool(how.key) and any(one != order for one in known)
            self._demand(other, "", "R-5", f"a key was refused with {taken}, and nobody used it with other input")
            return
        if how.key:
            self.keyed.setdefault((how.key, order), run.id)
            same = self.keyed[how.key, order]
            self._demand(same == run.id, run.id, "R-5", f"key {how.key} stands for {same}, too")
        self.submitted[number] = run.id
        judge = self.history.judges.get(run.id)
        if judge is None or judge.submitted is None:
            self.history.blame(run.id, "R-5", f"submission {number} was acknowledged and is not in the journal")
        elif run.created:
            mine = judge.submitted.annotations.get("call") == str(number)
            self._demand(mine, run.id, "R-5", f"submission {number} was told it created a run of another")
            self._demand(judge.order() == order, run.id, "M-2", "the input differs")
        elif how.key and judge.key() == how.key:
            self.dice.count("key: known")
            self._demand(judge.order() == order, run.id, "R-5", f"key {how.key} gave a run of other input")
        else:
            self._demand(how.on_busy == "join", run.id, "R-5", f"{how.on_busy} joined a run")
            self.dice.count("slot: joined")
            self._check_occupant(run.id, order, equal=True, since=started)

    def _check_occupant(self, run_id: str, order: Order, *, equal: bool | None, since: int) -> None:
        judge = self.history.judges.get(run_id)
        if judge is None or judge.submitted is None:
            self.history.blame(run_id, "R-5", "the run that occupies a slot does not exist")
            return
        same = judge.order() == order
        self._demand(equal in (None, same), run_id, "R-5", f"a submission of {order} met {judge.order()}")
        alive = judge.ended is None or judge.ended_line >= since or judge.submitted.slot == "once"
        self._demand(alive, run_id, "R-5", "a submission joined a run that had ended before")

    # --- operate

    async def cancel(self, number: int, client: Client, run_id: str) -> None:
        """A cancel is durable when it is acknowledged [R-12]."""
        if await self._operate(run_id, client.cancel(run_id, actor=f"call {number}"), KeyTaken):
            judge = self.history.judges[run_id]
            self._demand(
                judge.cancel is not None, run_id, "R-12", "a cancel was acknowledged and is not in the journal"
            )

    async def hold(self, number: int, client: Client, run_id: str) -> None:
        """A hold is durable when it is acknowledged [R-17]."""
        judge = self.history.judges[run_id]
        holds = judge.holds
        was_held = judge.held is not None
        if await self._operate(run_id, client.hold(run_id, actor=f"call {number}"), KeyTaken):
            recorded = judge.holds > holds or was_held or judge.held is not None
            self._demand(recorded, run_id, "R-17", "a hold was acknowledged and is not in the journal")

    async def release(self, number: int, client: Client, run_id: str) -> None:
        """Only a held run can be released [R-17]."""
        judge = self.history.judges[run_id]
        releases = judge.releases
        if await self._operate(run_id, client.release(run_id, actor=f"call {number}"), KeyTaken, NotAllowed):
            self._demand(
                judge.releases > releases, run_id, "R-17", "a release was acknowledged and is not in the journal"
            )

    async def retry(self, number: int, client: Client, run_id: str) -> None:
        """As a release, for any run that has not ended."""
        judge = self.history.judges[run_id]
        releases = judge.releases
        if await self._operate(run_id, client.retry(run_id, actor=f"call {number}"), KeyTaken):
            self._demand(
                judge.releases > releases, run_id, "R-17", "a retry was acknowledged and is not in the journal"
            )

    async def resolve(self, number: int, client: Client, run_id: str) -> None:
        """An operator's word [R-17]."""
        actor = f"call {number}"
        match self.dice.number(0, 2):
            case 0:
                work = client.resolve(run_id, value=f"given.{number}", actor=actor)
            case 1:
                work = client.resolve(run_id, skip=True, actor=actor)
            case _:
                work = client.resolve(run_id, fail="it will not work", actor=actor)
        await self._operate(run_id, work, KeyTaken, NotAllowed, PayloadError)  # a sleep takes no value

    async def abandon(self, number: int, client: Client, run_id: str) -> None:
        """A run that is invalid is given up, or by force one that nobody executes [D-7]."""
        judge, force = self.history.judges[run_id], self.dice.maybe(0.4)
        try:
            await client.abandon(run_id, actor=f"call {number}", force=force)
        except NotAllowed:
            self.dice.count("given up: refused")
        except KeyTaken as taken:
            self._demand(judge.outcome is not None, run_id, "J-5", f"refused with {taken}, and the run has not ended")
        except NotFound:
            self._demand(run_id in self.history.removed, run_id, "J-2", "a run is not found")
        else:
            self.dice.count("given up: by force" if force else "given up: invalid")
            self._demand(
                judge.abandoned is not None, run_id, "D-7", "a run was given up, and its journal knows nothing"
            )

    async def send(self, number: int, client: Client, run_id: str) -> None:
        """A message is durable when it is acknowledged, and under a key it is received once [B-24]."""
        judge = self.history.judges[run_id]
        name = judge.pin if judge.pin in MAIL and self.dice.maybe(0.6) else self.dice.choice(MAIL)
        key = f"k{self.dice.number(0, 2)}" if self.dice.maybe(0.5) else ""
        keyed = [(one.name, one.key) for one in judge.received if one.key]
        if keyed and self.dice.maybe(0.4):
            name, key = self.dice.choice(keyed)
        payload = f"{key}.{self.dice.maybe(0.2)}" if key else f"message.{number}"
        try:
            new = await client.send(run_id, name, payload, key=key, actor=f"call {number}")
        except (InvalidArgument, NotAllowed):  # no step of the newest code waits for it, or the run unwinds
            self.dice.count("message: refused")
            return
        except KeyTaken as taken:
            known = {_payload(one) for one in judge.received if key and (one.name, one.key) == (name, key)}
            other = bool(known - {payload})
            self._demand(other or judge.outcome is not None, run_id, "J-5", f"a message was refused with {taken}")
            self.dice.count("message: other content")
            return
        except NotFound:
            self._demand(run_id in self.history.removed, run_id, "J-2", "a run is not found")
            return
        found = [one for one in judge.received if (one.name, one.key, _payload(one)) == (name, key, payload)]
        self._demand(bool(found), run_id, "B-24", f"message {payload} was acknowledged and is not in the journal")
        if not new:
            self._demand(bool(key), run_id, "B-24", "a message without a key is called known")
            self.dice.count("message: known")

    async def _operate(self, run_id: str, work: Coroutine[object, object, None], *refusals: type[PerdureError]) -> bool:
        """Whether it was acknowledged; a refusal has to be true."""
        judge = self.history.judges[run_id]
        try:
            await work
        except KeyTaken as taken:
            self._demand(judge.outcome is not None, run_id, "J-5", f"refused with {taken}, and the run has not ended")
        except NotFound:
            self._demand(run_id in self.history.removed, run_id, "J-2", "a run is not found")
        except refusals:
            pass
        else:
            return True
        return False

    async def hold_pipeline(self, _number: int, client: Client, pipeline: str) -> None:
        """The hold of a pipeline is durable when it is acknowledged [R-17]."""
        releases = self.history.pipeline_releases
        await client.hold_pipeline(pipeline, actor="somebody")
        held = pipeline in self.history.pipelines_held or self.history.pipeline_releases > releases
        self._demand(held, "", "R-17", f"a hold of {pipeline} was acknowledged and is not known")

    async def release_pipeline(self, _number: int, client: Client, pipeline: str) -> None:
        """Only a held pipeline can be released [R-17]."""
        releases = self.history.pipeline_releases
        try:
            await client.release_pipeline(pipeline, actor="somebody")
        except NotAllowed:
            return
        released = self.history.pipeline_releases > releases
        self._demand(released, "", "R-17", f"a release of {pipeline} was acknowledged and is not known")

    # --- results

    async def result(self, _number: int, client: Client, run_id: str) -> None:
        """A result is the terminal fact; an invalid run raises its reason [D-3]."""
        try:
            found = await client.result(run_id, timeout=self.dice.delay_s(60.0))
        except TimeoutError:
            return
        except NotFound:
            self._demand(run_id in self.history.removed, run_id, "J-2", "a run is not found")
            return
        except InvalidRun as invalid:
            self._demand(bool(invalid.reason), run_id, "D-3", "an invalid run without a reason")
            self._demand(self.history.judges[run_id].ended is None, run_id, "D-2", "a run that ended is called invalid")
            return
        self.dice.count("result seen by a caller")
        self.check_result(run_id, found)

    def check_result(self, run_id: str, found: Succeeded[object] | Failed | Canceled) -> None:
        """What a caller was told is what the terminal fact says [M-11, U-9]."""
        judge = self.history.judges[run_id]
        self._demand(_agrees(judge, found), run_id, "M-11", f"a caller was told {found}, the end is {judge.ended}")

    def _demand(self, held: bool, run_id: str, rule: str, problem: str) -> None:
        if not held:
            self.history.blame(run_id, rule, problem)

    def check_acknowledged(self) -> None:
        """At the end: no acknowledged submission is lost, and none made two runs [R-5]."""
        for number, run_id in self.submitted.items():
            self._demand(run_id in self.history.judges, run_id, "R-5", f"submission {number} is lost")
        makers: dict[str, str] = {}
        for run_id, judge in self.history.judges.items():
            submitted = judge.submitted
            if submitted is not None and submitted.parent is not None:
                continue
            maker = submitted.annotations.get("call", "") if submitted is not None else ""
            self._demand(maker not in makers, run_id, "R-5", f"submission {maker} made {makers.get(maker)} as well")
            makers[maker] = run_id


def _payload(message: MessageReceived) -> object:
    return msgspec.json.decode(message.payload)


def _agrees(judge: Judge, found: Succeeded[object] | Failed | Canceled) -> bool:
    ended = judge.ended
    if ended is None:
        return False
    if isinstance(ended, RunSucceeded):
        return isinstance(found, Succeeded) and found.output == judge.output() and found.in_doubt == ended.in_doubt
    if isinstance(found, Succeeded) or isinstance(found, Canceled) is not (ended.failure.kind == "canceled"):
        return False
    said = (found.failure, found.unwind_failures, found.in_doubt, found.half_unwound, found.uncompensated)
    true = (ended.failure, ended.unwind_failures, ended.in_doubt, ended.half_unwound, ended.uncompensated)
    return said == true and found.unavailable == ended.unavailable and found.output == judge.output()
