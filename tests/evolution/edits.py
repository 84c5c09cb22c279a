"""Reads the table of docs/reference/edits.md, carries out each row, and says in the page's words what happened.

`python -m tests.evolution.edits` writes the last column of the page anew; read the difference before committing it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias, cast

import msgspec

from perdure import (
    Canceled,
    Fail,
    Failed,
    Invocation,
    Later,
    Pipeline,
    Retry,
    Succeeded,
    UnwindInvocation,
    poll,
    retired,
    step,
)
from perdure.define.step import AnyStep
from perdure.testing.evolve import Call, Each, Evolution, evolve

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "edits.md"
FAILS = "pay"
"""The step that fails for good where a run is to unwind."""

Line: TypeAlias = Pipeline[None, object, str | None]
_ENTRY = re.compile(r"^(\[)?([a-z-]+)(\*)?(\?)?(~)?(\])?$")


class Edit(msgspec.Struct, frozen=True):
    """One section of the page: the steps before and after, and which step the states are about."""

    name: str
    before: str
    after: str
    at: str
    undone: str


class Row(msgspec.Struct, frozen=True):
    """One row of a section's table, and where it stands."""

    edit: Edit
    state: str
    outcome: str
    line: int

    @property
    def name(self) -> str:
        """For test ids."""
        return f"{self.edit.name}: {self.state}"


def read(text: str) -> list[Row]:
    """Every row of the page."""
    return list(_rows(text.splitlines()))


def _rows(lines: list[str]) -> Iterator[Row]:
    name, given = "", dict[str, str]()
    for number, line in enumerate(lines, 1):
        if line.startswith("## "):
            name, given = line[3:].strip(), {}
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not line.startswith("|") or len(cells) != 2 or set(cells[0]) <= {"-"}:
            continue
        key, value = cells
        if key in ("before", "after", "states of", "unwinds of"):
            given[key] = value.replace("`", "")
        elif len(given) == 4 and key not in ("", "the run"):
            edit = Edit(name, given["before"], given["after"], given["states of"], given["unwinds of"])
            yield Row(edit, key, value, number)


# --- the pipelines


def pipeline(text: str, *, without: str = "", polls: str = "") -> Line:
    """A pipeline as the page writes it: `a* [b*?~] c -> output`; without a step, or with one that polls."""
    words, _, output = text.partition("->")
    steps = tuple(_step(word, polls) for word in words.split() if _name(word) != without)
    value = output.strip() or None

    def make(inv: Invocation[None, object]) -> str | None:
        return value

    return Pipeline(id="order", input=None, deps=object, steps=steps, output=make, retry=Retry(jitter=0))


def _name(word: str) -> str:
    found = _ENTRY.match(word)
    if found is None:
        raise ValueError(f"{word!r} is no step of the page")
    return found.group(2)


def _step(word: str, polls: str) -> AnyStep[None, object]:
    found = _ENTRY.match(word)
    if found is None:
        raise ValueError(f"{word!r} is no step of the page")
    conditional, name, unwinds, doubt, gone, _ = found.groups()
    options: dict[str, Any] = {}
    if conditional:
        options["when"] = _no
    if unwinds:
        options["unwind"] = _undo
    if doubt:
        options["unwind_in_doubt"] = _undo_in_doubt
    kind = cast("Callable[..., Callable[[object], AnyStep[None, object]]]", poll if name == polls else step)
    define = kind(name, **options)
    made = define(_do)
    return retired(made) if gone else made


def _no(inv: Invocation[None, object]) -> bool:
    return False


async def _do(inv: Invocation[None, object]) -> None:
    """Works."""


async def _undo(inv: UnwindInvocation[None, object], state: None) -> None:
    """Works."""


async def _undo_in_doubt(inv: UnwindInvocation[None, object]) -> None:
    """Works."""


# --- the states


def carry_out(row: Row) -> Evolution[str | None]:
    """Bring a run into the row's state under the old pipeline, deploy the new one, and run on."""
    edit = row.edit
    old, new, at, undone = pipeline(edit.before), pipeline(edit.after), edit.at, edit.undone
    fails = {FAILS: Fail("no money")}
    match row.state.replace("`", ""):
        case "not started":
            return evolve(old, new, moment="delayed", input=None)
        case s if s == f"between steps, {at} next":
            return evolve(old, new, at=at, input=None)
        case s if s == f"running {at}, the process is lost":
            return evolve(old, new, at=at, moment="running", input=None)
        case s if s == f"backing off, {at} failed once":
            return evolve(old, new, at=at, moment="retrying", input=None)
        case s if s == f"waiting, {at} is a poll and said Later":
            old, new = pipeline(edit.before, polls=at), pipeline(edit.after, polls=at)
            said = {at: Each(Later(60), None)}
            return evolve(old, new, at=at, moment="retrying", results=said, input=None)
        case s if s == f"between steps, {at} done":
            return evolve(old, new, at=at, moment="after", input=None)
        case s if s == f"held, {at} next; released later":
            return evolve(old, new, at=at, held=True, input=None)
        case s if s == f"invalid: {at} was removed while it backed off":
            via = (pipeline(edit.before, without=at),)
            return evolve(old, new, at=at, moment="retrying", via=via, input=None)
        case s if s == f"cancel requested, {at} next":
            return evolve(old, new, at=at, canceled=True, input=None)
        case s if s == f"cancel requested, {at} was running":
            return evolve(old, new, at=at, moment="running", canceled=True, input=None)
        case s if s == f"unwinding, {undone} next":
            return evolve(old, new, at=undone, moment="before-unwind", results=fails, input=None)
        case s if s == f"unwinding {undone}, the process is lost":
            return evolve(old, new, at=undone, moment="unwinding", results=fails, input=None)
        case s if s == f"unwinding, {undone} undone":
            return evolve(old, new, at=undone, moment="after-unwind", results=fails, input=None)
        case "ended":
            return evolve(old, new, moment="ended", input=None)
        case other:
            raise ValueError(f"line {row.line}: no such state: {other!r}")


# --- the words


def words(story: Evolution[str] | Evolution[str | None]) -> str:
    """What happened after the deployment, as the page says it."""
    known = {s.step: s.fate for s in (*story.switch.steps, *story.switch.gone)}
    ends = {s.step: s.fate for s in story.end.steps}
    new = [call for call in story.calls if call.version == "new"]
    parts = [
        _said("runs", [_call(call) for call in new if call.phase == "forward"]),
        _said("skips", [_code(s) for s, fate in ends.items() if fate == "skipped" and known.get(s) != "skipped"]),
        _said("leaves aside", [_code(s) for s in story.bypassed]),
        _said("never runs", [_code(s) for s, fate in ends.items() if fate == "passed"]),
        _said("unwinds", [_call(call) for call in new if call.phase == "unwind"]),
    ]
    said = [part for part in parts if part]
    if not new:
        said.insert(0, "calls nothing")
    return "; ".join([*said, _end(story)])


def _end(story: Evolution[str] | Evolution[str | None]) -> str:
    result = story.result
    match result:
        case Succeeded():
            output = f" with output {_code(result.output)}" if result.output is not None else ""
            return f"**succeeded**{output}{_lists(result)}"
        case Canceled():
            return f"**canceled** at {_code(result.failure.step)}{_lists(result)}"
        case Failed():
            return f"**failed** at {_code(result.failure.step)}{_lists(result)}"
        case None:
            return f"**{story.status}**: {_code(story.invalid or story.reason)}"


def _lists(result: Succeeded[str | None] | Failed | Canceled) -> str:
    text = ""
    for name in ("in_doubt", "half_unwound", "uncompensated", "unavailable"):
        steps: tuple[str, ...] = getattr(result, name, ())
        if steps:
            text += f", {name.replace('_', ' ')} {' '.join(map(_code, steps))}"
    return text


def _said(verb: str, things: list[str]) -> str:
    return f"{verb} {', '.join(things)}" if things else ""


def _call(call: Call) -> str:
    name = call.step if call.item is None else f"{call.step}[{call.item}]"
    return _code(name) + (f" (attempt {call.attempt})" if call.attempt > 1 else "")


def _code(text: str) -> str:
    return f"`{text}`"


def main() -> None:
    """Write the outcomes of the page anew."""
    lines = PAGE.read_text("utf-8").splitlines()
    for row in read("\n".join(lines)):
        lines[row.line - 1] = f"| {row.state} | {words(carry_out(row))} |"
    PAGE.write_text("\n".join(lines) + "\n", "utf-8")


if __name__ == "__main__":
    main()
