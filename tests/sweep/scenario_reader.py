"""A second, small reader of scenario files, used only to check the oracle against them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from tests.sweep.vocabulary import Lists, Step, Topology

OUTCOMES = {"ok", "error", "fail", "crash"}
LIST_NAMES = ("in-doubt", "half-unwound", "uncompensated", "unavailable")


@dataclass(frozen=True, slots=True)
class Line:
    """One line. `verb` is its first word (`end` with its second: `end failure`); what a verb lacks is empty."""

    number: int
    verb: str
    step: str = ""
    attempt: int | None = None
    outcome: str = ""
    topology: Topology = ()
    lists: Lists = field(default_factory=Lists)


@dataclass(frozen=True, slots=True)
class Scenario:
    name: str
    file: str
    lines: tuple[Line, ...]


class Malformed(Exception):
    pass


def read_file(path: Path) -> list[Scenario]:
    """The scenarios of one file, in order. Raises `Malformed` naming file and line."""
    scenarios: list[Scenario] = []
    name, lines = "", list[Line]()
    for number, raw in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        text = raw.split(" # ")[0].strip()
        if not text or text.startswith("#"):
            continue
        if text.startswith("scenario "):
            if name:
                scenarios.append(Scenario(name, path.name, tuple(lines)))
            name, lines = text.removeprefix("scenario "), []
            continue
        try:
            lines.append(_line(number, text.split()))
        except (ValueError, IndexError) as error:
            raise Malformed(f"{path.name}:{number}: {text!r}: {error}") from error
    if name:
        scenarios.append(Scenario(name, path.name, tuple(lines)))
    return scenarios


def _line(number: int, words: list[str]) -> Line:
    match words:
        case ["deploy", *steps] if steps:
            return Line(number, "deploy", topology=tuple(_step(word) for word in steps))
        case ["run" | "unwind" as verb, step, "->", outcome] if outcome in OUTCOMES:
            return Line(number, verb, step, None, outcome)
        case ["run" | "unwind" as verb, step, attempt, "->", outcome] if outcome in OUTCOMES and attempt[0] == "#":
            return Line(number, verb, step, int(attempt[1:]), outcome)
        case ["output", "->", "ok" | "raises" as outcome]:
            return Line(number, "output", outcome=outcome)
        case ["cancel" | "restart" | "invalid" as verb]:
            return Line(number, verb)
        case ["skip", step]:
            return Line(number, "skip", step)
        case ["resolve", step, "value" | "skip" | "fail" as outcome]:
            return Line(number, "resolve", step, outcome=outcome)
        case ["end", "success", *rest]:
            return Line(number, "end success", lists=_lists(rest))
        case ["end", "failure" | "canceled" as how, "at", step, *rest]:
            return Line(number, f"end {how}", step, lists=_lists(rest))
        case _:
            raise ValueError("no such line")


def _step(word: str) -> Step:
    name = word.rstrip("*?~")
    flags = word[len(name) :]
    if not name or flags not in ("", "*", "*?", "~", "*~", "*?~"):
        raise ValueError(f"no such step: {word}")
    return Step(name, "*" in flags, "?" in flags, "~" in flags)


def _lists(words: list[str]) -> Lists:
    found: dict[str, list[str]] = {}
    names = iter(LIST_NAMES)
    current: list[str] | None = None
    for word in words:
        if word in LIST_NAMES:
            if word not in names:  # consumes the names before it: each list once, in order
                raise ValueError(f"{word} out of order")
            current = found[word] = []
        elif current is None:
            raise ValueError(f"{word} belongs to no list")
        else:
            current.append(word)
    for name, ids in found.items():
        if not ids or ids != sorted(set(ids)):
            raise ValueError(f"{name}: ids must be there, sorted and distinct")
    return Lists(*(tuple(found.get(name, ())) for name in LIST_NAMES))
