"""Reading scenario files; the grammar is in docs/reference/scenarios.md."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal, NoReturn, TypeVar

from perdure.testing.scenario.model import (
    ITEM_RESULTS,
    LIST_NAMES,
    RESULTS,
    Abandon,
    Attempt,
    Cancel,
    Deploy,
    End,
    EndKind,
    Entry,
    Finish,
    HoldPipeline,
    Invalid,
    Kind,
    Lists,
    Lose,
    Output,
    ReleasePipeline,
    Resolve,
    Restart,
    Scenario,
    ScenarioError,
    ScriptStep,
    Send,
    Skip,
    Sleep,
    Take,
    TimeOut,
    Wait,
    Wake,
    Work,
)

Word = TypeVar("Word", bound=str)


def read_files(paths: Iterable[str]) -> list[Scenario]:
    """All scenarios of the files, in order.

    Raises:
        ScenarioError: a line is malformed.
        OSError: a file cannot be read.
    """
    found: list[Scenario] = []
    for path in paths:
        found.extend(parse(Path(path).read_text(encoding="utf-8"), path))
    return found


def parse(text: str, file: str = "<text>") -> list[Scenario]:
    """The scenarios of one file's text."""
    return list(_Parser(text, file).scenarios())


_STEP = re.compile(r"^[A-Za-z0-9][A-Za-z0-9_/.-]*")
_ARM = re.compile(r"^[A-Za-z][A-Za-z0-9_]*$")
_MORE = re.compile(
    r"^(?:@(?P<choice>[A-Za-z0-9][A-Za-z0-9_/.-]*)=(?P<arm>[A-Za-z][A-Za-z0-9_]*))?"
    r"(?::(?P<kind>[a-z]+)(?:=(?P<number>[1-9][0-9]{0,2})(?:/(?P<bound>[1-9]))?)?)?"
    r"(?P<unwind>\*\??)?(?P<retired>~)?$"
)
_KINDS: dict[str, Kind] = {
    "poll": "poll",
    "sleep": "sleep",
    "choice": "choice",
    "message": "message",
    "runs": "runs",
    "items": "items",
    "collect": "collect",
    "loop": "loop",
    "child": "child",
    "children": "children",
}
_HOURS = ("sleep", "message")
_MANY = ("runs", "items", "collect", "children")
_BOUND = ("items", "collect", "children")
_NO_UNWIND = ("sleep", "choice", "message", "runs")
_WITH_ITEMS = ("items", "collect", "loop")
_ITEM = re.compile(r"^(?P<index>[0-9]{1,3})(?:#(?P<attempt>[1-9][0-9]{0,2}))?:(?P<result>[a-z]+)$")
_BARE: dict[str, type[Cancel | Restart | Lose | Invalid | Abandon]] = {
    "cancel": Cancel,
    "restart": Restart,
    "crash": Lose,
    "invalid": Invalid,
    "abandon": Abandon,
}


class _Parser:
    def __init__(self, text: str, file: str) -> None:
        self.file = file
        self.lines = text.splitlines()
        self.number = 0
        self.text = ""
        self.kinds: dict[str, Kind] = {}
        """Of the steps of the deployment that is current."""

    def fail(self, expected: str, found: str) -> NoReturn:
        raise ScenarioError(self.file, self.number, expected, found)

    def scenarios(self) -> Iterator[Scenario]:
        name, start = "", 0
        entries: list[Entry] = []
        for words in self._statements():
            if words[0] == "scenario":
                if start:
                    yield self._finish(name, start, entries)
                name, start, entries = " ".join(words[1:]), self.number, []
                if not name:
                    self.fail("a name after 'scenario'", self.text)
                continue
            if not start:
                self.fail("'scenario NAME' first", self.text)
            if not entries and words[0] != "deploy":
                self.fail("'deploy STEP...' as the first line of a scenario", self.text)
            if entries and isinstance(entries[-1], End):
                self.fail("'scenario NAME' after an end", self.text)
            entry = self._entry(words)
            self._check_follows(entries[-1] if entries else None, entry)
            entries.append(entry)
        if start:
            yield self._finish(name, start, entries)

    def _finish(self, name: str, start: int, entries: list[Entry]) -> Scenario:
        if not entries:
            self.number = start
            self.fail("'deploy STEP...' as the first line of a scenario", "the end of the scenario")
        return Scenario(self.file, start, name, tuple(entries))

    def _statements(self) -> Iterator[list[str]]:
        for number, raw in enumerate(self.lines, 1):
            self.number = number
            text = raw.split(" # ", 1)[0].strip()
            if text and not text.startswith("#"):
                self.text = text
                yield text.split()

    def _entry(self, words: list[str]) -> Entry:
        n, text, rest = self.number, self.text, words[1:]
        match words[0]:
            case "deploy":
                return Deploy(n, text, self._steps(rest))
            case "run":
                return self._attempt("forward", rest)
            case "unwind":
                return self._attempt("unwind", rest)
            case "output":
                if len(rest) != 2 or rest[0] != "->" or rest[1] not in ("ok", "raises"):
                    self.fail("'output -> ok' or 'output -> raises'", text)
                return Output(n, text, rest[1] == "raises")
            case "skip":
                return Skip(n, text, self._only_step(rest))
            case "sleep":
                return Sleep(n, text, self._only_step(rest))
            case "wake":
                return Wake(n, text, self._only_step(rest))
            case "wait":
                return Wait(n, text, self._only_step(rest))
            case "time-out":
                return TimeOut(n, text, self._only_step(rest))
            case "send" | "take" as verb:
                if len(rest) != 2:
                    self.fail(f"'{verb} STEP VALUE'", text)
                return (Send if verb == "send" else Take)(n, text, self._only_step(rest[:1]), rest[1])
            case "work":
                return self._work(rest)
            case "finish":
                return self._finished(rest)
            case "hold" | "release" as verb:
                if rest != ["pipeline"]:
                    self.fail(f"'{verb} pipeline'", text)
                return HoldPipeline(n, text) if verb == "hold" else ReleasePipeline(n, text)
            case "resolve":
                return self._resolve(rest)
            case "end":
                return self._end(rest)
            case "cancel" | "restart" | "crash" | "invalid" | "abandon" as verb:
                if rest:
                    self.fail(f"nothing after {verb!r}", rest[0])
                return _BARE[verb](n, text)
            case other:
                self.fail(
                    "scenario, deploy, run, unwind, output, cancel, restart, crash, invalid, skip, sleep, wake, wait, "
                    "send, take, time-out, work, finish, hold, release, resolve, abandon or end",
                    other,
                )

    def _steps(self, words: list[str]) -> tuple[ScriptStep, ...]:
        if not words:
            self.fail("at least one step after 'deploy'", "nothing")
        steps: list[ScriptStep] = []
        for word in words:
            step = self._step(word)
            if step.id in {s.id for s in steps}:
                self.fail("each step once", word)
            self._check_arm(step, steps, word)
            steps.append(step)
        self.kinds = {step.id: step.kind for step in steps}
        return tuple(steps)

    def _step(self, word: str) -> ScriptStep:
        name = self._step_name(word)
        more = _MORE.match(word[len(name) :])
        if more is None:
            self.fail("a step with @CHOICE=ARM, :KIND, and flags in the order *, ?, ~ (? needs *)", word)
        written, number, unwind = more["kind"], more["number"], more["unwind"] or ""
        kind = "call" if written is None else _KINDS.get(written)
        if kind is None:
            self.fail(f"one of the kinds {', '.join(_KINDS)}", word)
        if number is not None and kind not in (*_HOURS, *_MANY):
            self.fail("hours only for a sleep or a message, a number only for " + ", ".join(_MANY), word)
        if more["bound"] is not None and kind not in _BOUND:
            self.fail("how many at once only for " + ", ".join(_BOUND), word)
        if unwind and kind in _NO_UNWIND:
            self.fail(f"no unwind handler for a {kind}", word)
        return ScriptStep(
            name,
            kind,
            bool(unwind),
            unwind == "*?",
            more["retired"] is not None,
            (int(number) if number else 1 if kind == "sleep" else 0) if kind in _HOURS else 0,
            (more["choice"], more["arm"]) if more["choice"] else None,
            int(number) if number and kind in _MANY else 1,
            int(more["bound"] or 0),
        )

    def _check_arm(self, step: ScriptStep, before: list[ScriptStep], word: str) -> None:
        """Arms stand behind their choice, one after another."""
        if step.arm is None:
            return
        if step.kind == "choice":
            self.fail("no choice within an arm", word)
        choice, arm = step.arm
        last = before[-1] if before else None
        arms = [s.arm[1] for s in before if s.arm is not None and s.arm[0] == choice]
        joined = last is not None and (
            (last.id == choice and last.kind == "choice") or (last.arm is not None and last.arm[0] == choice)
        )
        if not joined or (arm in arms and arms[-1] != arm):
            self.fail(f"the arms of {choice!r} behind that choice, one after another", word)

    def _step_name(self, word: str) -> str:
        found = _STEP.match(word)
        if found is None:
            self.fail("a step", word)
        return found.group(0)

    def _only_step(self, words: list[str]) -> str:
        if len(words) != 1 or self._step_name(words[0]) != words[0]:
            self.fail("exactly one step", self.text)
        return words[0]

    def _attempt(self, phase: Literal["forward", "unwind"], words: list[str]) -> Attempt:
        if not words:
            self.fail("a step", "nothing")
        step, rest = self._only_step(words[:1]), words[1:]
        attempt: int | None = None
        if rest and rest[0].startswith("#"):
            if not rest[0][1:].isdigit() or int(rest[0][1:]) < 1:
                self.fail("an attempt number such as #2", rest[0])
            attempt, rest = int(rest[0][1:]), rest[1:]
        if len(rest) < 2 or rest[0] != "->" or rest[1] not in RESULTS:
            self.fail(f"one of {', '.join(f'-> {word}' for word in RESULTS)}", " ".join(rest) or "nothing")
        result, kind = RESULTS[rest[1]], self.kinds.get(step, "call") if phase == "forward" else "call"
        if result == "later" and kind != "poll":
            self.fail("'later' only of a step that is deployed with :poll, going forward", self.text)
        arm = self._decision(step, rest[2:], kind == "choice" and result == "ok")
        return Attempt(self.number, self.text, phase, step, attempt, result, arm)

    def _decision(self, step: str, words: list[str], decides: bool) -> str | None:
        """The arm that a choice takes, where it takes one."""
        if not decides and words:
            self.fail("nothing more", " ".join(words))
        if not decides:
            return None
        if len(words) != 1 or not _ARM.match(words[0]):
            self.fail(f"the arm that choice {step!r} takes", " ".join(words) or "nothing")
        return words[0]

    def _work(self, words: list[str]) -> Work:
        step, kind = self._only_step(words[:1]), self.kinds.get(words[0]) if words else None
        if kind not in _WITH_ITEMS:
            self.fail(f"a step that is deployed as one of {', '.join(_WITH_ITEMS)}", self.text)
        items = self._items(words[1:], ITEM_RESULTS)
        if any(result == "more" for _, _, result in items) and kind != "loop":
            self.fail("'more' only of a step that is deployed with :loop", self.text)
        return Work(self.number, self.text, step, items)

    def _finished(self, words: list[str]) -> Finish:
        results: dict[str, Literal["ok", "fail"]] = {"ok": "ok", "fail": "fail"}
        step = self._only_step(words[:1])
        runs = self._items(words[1:], results)
        if any(attempt is not None for _, attempt, _ in runs):
            self.fail("runs without attempts", self.text)
        return Finish(self.number, self.text, step, tuple((index, result) for index, _, result in runs))

    def _items(self, words: list[str], results: dict[str, Word]) -> tuple[tuple[int, int | None, Word], ...]:
        found: list[tuple[int, int | None, Word]] = []
        for word in words:
            item = _ITEM.match(word)
            result = None if item is None else results.get(item["result"])
            if item is None or result is None:
                self.fail(f"an index and one of {', '.join(results)}, such as 0:ok", word)
            found.append((int(item["index"]), int(item["attempt"]) if item["attempt"] else None, result))
        indices = [index for index, _, _ in found]
        if not found or indices != sorted(set(indices)):
            self.fail("at least one index, each once, in order", " ".join(words) or "nothing")
        return tuple(found)

    def _check_follows(self, before: Entry | None, entry: Entry) -> None:
        """Items that run, and a run that goes on at once, leave few things to happen next."""
        going_on = isinstance(before, Work) and any(result == "runs" for _, _, result in before.items)
        if going_on and not isinstance(entry, (Work, Lose, Restart, Deploy, Cancel)):
            self.fail("work, crash, restart, deploy or cancel while items run", self.text)
        if isinstance(before, TimeOut) and not isinstance(entry, (Attempt, End)):
            self.fail("unwind or end after a time-out", self.text)

    def _resolve(self, words: list[str]) -> Resolve:
        ways: dict[str, Literal["value", "skip", "fail"]] = {"value": "value", "skip": "skip", "fail": "fail"}
        if len(words) < 2 or words[1] not in ways:
            self.fail("'resolve STEP value|skip|fail'", self.text)
        step, how = self._only_step(words[:1]), ways[words[1]]
        arm = self._decision(step, words[2:], how == "value" and self.kinds.get(step) == "choice")
        return Resolve(self.number, self.text, step, how, arm)

    def _end(self, words: list[str]) -> End:
        outcomes: dict[str, EndKind] = {
            "success": "success",
            "failure": "failure",
            "canceled": "canceled",
            "abandoned": "abandoned",
        }
        if not words or words[0] not in outcomes:
            self.fail("'end success', or 'end failure', 'end canceled' or 'end abandoned' with 'at STEP'", self.text)
        outcome, rest, at = outcomes[words[0]], words[1:], None
        if outcome != "success" and not (outcome == "abandoned" and rest[:1] != ["at"]):
            if len(rest) < 2 or rest[0] != "at":
                self.fail("'at STEP'", " ".join(rest) or "nothing")
            at, rest = self._only_step(rest[1:2]), rest[2:]
        return End(self.number, self.text, outcome, at, self._lists(rest))

    def _lists(self, words: list[str]) -> Lists:
        lists: list[tuple[str, tuple[str, ...]]] = []
        order = list(LIST_NAMES)
        while words:
            if words[0] not in order:
                self.fail(f"one of {', '.join(order)} in this order" if order else "nothing more", words[0])
            name = words[0]
            del order[: order.index(name) + 1]
            steps: list[str] = []
            words = words[1:]
            while words and words[0] not in LIST_NAMES:
                steps.append(self._only_step(words[:1]))
                words = words[1:]
            if not steps or steps != sorted(set(steps)):
                self.fail(f"sorted steps after {name!r}", " ".join(steps) or "nothing")
            lists.append((name, tuple(steps)))
        return tuple(lists)
