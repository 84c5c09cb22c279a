"""What a judge says of messages, and of a run that waits for one [B-8, B-20, B-24]."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from perdure.core.facts import MessageReceived, OperationFailed, OperationParked, OperationSucceeded, OperationWoken
from perdure.testing.simulation import pauses
from perdure.testing.simulation.designs import LATE, MAIL

if TYPE_CHECKING:
    from perdure.testing.simulation.judge import Judge


def judge(judge: Judge, fact: MessageReceived | OperationWoken | OperationParked) -> None:
    """A message came, a wait began, or what it waits for has come."""
    match fact:
        case MessageReceived():
            _received(judge, fact)
        case OperationWoken():
            _woken(judge, fact)
        case OperationParked():
            _waits(judge, fact)


def _received(judge: Judge, fact: MessageReceived) -> None:
    """A message comes to a run that may still wait for it; under a key once [B-24, J-4]."""
    judge.demand(judge.failure is None, "B-24", f"a message {fact.name} came to a run that unwinds")
    known = [one for one in judge.received if fact.key and (one.name, one.key) == (fact.name, fact.key)]
    judge.demand(not known, "B-24", f"message {fact.name} under key {fact.key} was received twice")
    if judge.waiting() is None:
        judge.law.count("message came early")


def _waits(judge: Judge, fact: OperationParked) -> None:
    """A wait begins: of the next step, for its message, for as long as the code says [B-20, B-24]."""
    step = fact.step
    pauses.judge_begins(judge, step, fact.passed, "wait")
    judge.demand(step in MAIL and fact.awaits == (step,), "B-20", f"{step} waits for {fact.awaits}")
    patience_us = judge.patience_us(step)
    until_us = judge.now_us + patience_us if patience_us else 0
    judge.demand(fact.due_us == until_us, "B-20", f"{step} waits until {fact.due_us}, not {until_us}")
    judge.law.count("wait began")


def _woken(judge: Judge, fact: OperationWoken) -> None:
    """A wait ends: by the first message that nobody took, or by its time where no message came [B-8, B-24]."""
    entry = judge.waiting()
    if entry is None or judge.pin != fact.step:
        judge.blame("B-24", f"{fact.step} was woken and does not wait")
        return
    judge.demand(judge.held is None, "R-17", f"{fact.step} was woken in a held run")
    judge.demand(judge.cancel is None, "R-12", f"{fact.step} was woken as if there were no cancel")
    unread = judge.unread.get(entry.message, [])
    if fact.by == "message":
        first = unread[0].key if unread else None
        judge.demand(first == fact.key, "B-24", f"{fact.step} took message {fact.key!r}, the first is {first!r}")
        judge.law.count("message taken")
        return
    judge.demand(fact.by == "time" and not unread, "B-24", f"{fact.step} was woken by {fact.by}, with {unread}")
    _too_late(judge, fact.step)
    judge.law.count("wait ended late")


def judge_ended(judge: Judge, fact: OperationSucceeded) -> None:
    """The state is the message that was taken, or what the code has for one that did not come [B-8, B-24]."""
    if judge.woken is None or judge.woken[0].step != fact.step:
        judge.blame("B-24", f"{fact.step} ended its wait, and nothing woke it")
        return
    message = judge.woken[1]
    expected = LATE.get(fact.step) if message is None else msgspec.json.decode(message.payload)
    found = msgspec.json.decode(fact.state)
    judge.demand(found == expected, "B-24", f"{fact.step} has state {found!r}, not {expected!r}")


def judge_timed_out(judge: Judge, fact: OperationFailed) -> None:
    """A wait fails when its time has come, no message has, and its code has nothing instead; without doubt [B-8]."""
    judge.demand(judge.waiting() is not None and judge.pin == fact.step, "B-8", f"{fact.step} does not wait")
    judge.demand(not judge.unread.get(fact.step), "B-24", f"{fact.step} waited too long, and its message is there")
    judge.demand(not fact.in_doubt, "U-9", f"{fact.step} waited too long, and is in doubt")
    judge.demand(judge.cancel is None and judge.held is None, "R-12", f"{fact.step} waited too long in spite of it")
    _too_late(judge, fact.step)
    judge.law.count("wait timed out")


def _too_late(judge: Judge, step: str) -> None:
    entry = judge.waiting()
    until_us = entry.until_us if entry is not None else 0
    over = 0 < until_us <= judge.now_us
    judge.demand(over, "B-8", f"{step} waited too long at {judge.now_us}, it may until {until_us}")
