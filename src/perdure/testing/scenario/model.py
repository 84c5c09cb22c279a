"""Scenario files: the evolution rules as scripts, parsed into values. The grammar is in docs/reference/scenarios.md."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal, NoReturn, TypeAlias

import msgspec

from perdure.core.topology import StepSpec

Result: TypeAlias = Literal["ok", "error", "fail", "crash"]
ListName: TypeAlias = Literal["in-doubt", "half-unwound", "uncompensated", "unavailable"]
Lists: TypeAlias = tuple[tuple[str, tuple[str, ...]], ...]
LIST_NAMES: tuple[ListName, ...] = ("in-doubt", "half-unwound", "uncompensated", "unavailable")


class ScenarioError(Exception):
    """A malformed line: the file, the line, and what was expected there."""

    def __init__(self, file: str, line: int, expected: str, found: str) -> None:
        super().__init__(f"{file}:{line}: expected {expected}, found {found!r}")
        self.file, self.line, self.expected, self.found = file, line, expected, found


class Line(msgspec.Struct, frozen=True):
    """Base of all lines; `number` counts from one."""

    number: int
    text: str


class Deploy(Line, frozen=True):
    """From here on this is the current topology; every step has a condition."""

    steps: tuple[StepSpec, ...]


class Attempt(Line, frozen=True):
    """The next operation is this step (as attempt `attempt`, if given) in this phase; then `result` happens."""

    phase: Literal["forward", "unwind"]
    step: str
    attempt: int | None
    result: Result


class Output(Line, frozen=True):
    """Forward work is complete and the output function is called; `raises`: it raises until the next deploy."""

    raises: bool


class Cancel(Line, frozen=True):
    """A cancellation is requested while no handler runs."""


class Restart(Line, frozen=True):
    """Everything in memory is dropped."""


class Invalid(Line, frozen=True):
    """The run is invalid for the current deployment."""


class Skip(Line, frozen=True):
    """The next operation is this step, never started, and its condition is false."""

    step: str


class Resolve(Line, frozen=True):
    """An operator resolves the next operation, which is of this step."""

    step: str
    how: Literal["value", "skip", "fail"]


class End(Line, frozen=True):
    """The run ends: with success, with a failure at a step, or canceled at a step, and names exactly these lists."""

    outcome: Literal["success", "failure", "canceled"]
    at: str | None
    lists: Lists


Entry: TypeAlias = Deploy | Attempt | Output | Cancel | Restart | Invalid | Skip | Resolve | End


class Scenario(msgspec.Struct, frozen=True):
    """One run's life as a script."""

    file: str
    line: int
    name: str
    entries: tuple[Entry, ...]


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
_FLAGS = re.compile(r"^(\*\??)?(~)?$")


class _Parser:
    def __init__(self, text: str, file: str) -> None:
        self.file = file
        self.lines = text.splitlines()
        self.number = 0
        self.text = ""

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
            entries.append(self._entry(words))
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
            case "resolve":
                return self._resolve(rest)
            case "end":
                return self._end(rest)
            case "cancel" | "restart" | "invalid":
                return self._bare(words)
            case other:
                self.fail(
                    "scenario, deploy, run, unwind, output, cancel, restart, invalid, skip, resolve or end", other
                )

    def _bare(self, words: list[str]) -> Entry:
        if len(words) > 1:
            self.fail(f"nothing after {words[0]!r}", words[1])
        kinds: dict[str, type[Cancel] | type[Restart] | type[Invalid]] = {
            "cancel": Cancel,
            "restart": Restart,
            "invalid": Invalid,
        }
        return kinds[words[0]](self.number, self.text)

    def _steps(self, words: list[str]) -> tuple[StepSpec, ...]:
        if not words:
            self.fail("at least one step after 'deploy'", "nothing")
        steps: list[StepSpec] = []
        for word in words:
            name = self._step_name(word)
            flags = _FLAGS.match(word[len(name) :])
            if flags is None:
                self.fail("a step with flags in the order *, ?, ~ (? needs *)", word)
            unwind = flags.group(1) or ""
            steps.append(StepSpec(name, bool(unwind), unwind == "*?", flags.group(2) is not None, conditional=True))
            if name in {s.id for s in steps[:-1]}:
                self.fail("each step once", word)
        return tuple(steps)

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
        results: dict[str, Result] = {"ok": "ok", "error": "error", "fail": "fail", "crash": "crash"}
        if len(rest) != 2 or rest[0] != "->" or rest[1] not in results:
            self.fail("'-> ok', '-> error', '-> fail' or '-> crash'", " ".join(rest) or "nothing")
        return Attempt(self.number, self.text, phase, step, attempt, results[rest[1]])

    def _resolve(self, words: list[str]) -> Resolve:
        ways: dict[str, Literal["value", "skip", "fail"]] = {"value": "value", "skip": "skip", "fail": "fail"}
        if len(words) != 2 or words[1] not in ways:
            self.fail("'resolve STEP value|skip|fail'", self.text)
        return Resolve(self.number, self.text, self._only_step(words[:1]), ways[words[1]])

    def _end(self, words: list[str]) -> End:
        outcomes: dict[str, Literal["success", "failure", "canceled"]] = {
            "success": "success",
            "failure": "failure",
            "canceled": "canceled",
        }
        if not words or words[0] not in outcomes:
            self.fail("'end success', 'end failure at STEP' or 'end canceled at STEP'", self.text)
        outcome, rest, at = outcomes[words[0]], words[1:], None
        if outcome != "success":
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
