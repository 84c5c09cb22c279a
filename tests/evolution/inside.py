"""Reads the tables of docs/reference/edits-inside.md, carries out each row, and says what happened.

`python -m tests.evolution.inside` writes the last column of the page anew; read the difference before committing it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import msgspec

from perdure import (
    AwaitedRun,
    AwaitMessage,
    AwaitRuns,
    Canceled,
    Child,
    Done,
    Fail,
    Failed,
    ForEach,
    ForEachRun,
    Invocation,
    ItemInvocation,
    Loop,
    More,
    Pipeline,
    Retry,
    Sleep,
    UnwindInvocation,
    retired,
    step,
)
from perdure.testing.evolve import Each, Evolution, Moment, evolve
from tests.evolution import edits

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "edits-inside.md"

Inv = Invocation[None, object]
Line = Pipeline[None, object, str]
_ENTRY = re.compile(r"^([a-z0-9-]+)(\*)?(\?)?(~)?(!)?$")


class State(msgspec.Struct, frozen=True):
    """A row: what kind of step `it` is, and where a run stands with it.

    Attributes:
        fails: `pay` fails for good, when the run comes to it.
        second: what the handler of the second item says.
    """

    kind: str
    moment: Moment
    done: int = 0
    message: bool = True
    held: bool = False
    canceled: bool = False
    fails: bool = False
    second: bool = False


WAITING: dict[str, State] = {
    "waiting for a message, which comes": State("message", "waiting"),
    "waiting for a message, and its time ends": State("message", "waiting", message=False),
    "waiting for a message, which has come": State("message", "after"),
    "waiting for a message, held; released later": State("message", "waiting", held=True),
    "waiting for a message, cancel requested": State("message", "waiting", canceled=True),
    "waiting for two other runs": State("runs", "waiting"),
    "sleeping": State("sleep", "waiting"),
}
UNITS: dict[str, State] = {
    "items next": State("each", "before"),
    "items, one done, two lost with the process": State("each", "running", 1),
    "items, one done, two backing off": State("each", "retrying", 1),
    "items, all done": State("each", "after"),
    "items, one done, two lost, held; released later": State("each", "running", 1, held=True),
    "items, one done, two lost, cancel requested": State("each", "running", 1, canceled=True),
    "turns, two done, the third is lost": State("loop", "running", 2),
    "turns, two done, the third backs off": State("loop", "retrying", 2),
    "waiting for a child run": State("child", "waiting"),
    "waiting for a child run, cancel requested": State("child", "waiting", canceled=True),
    "waiting for child runs, two of three submitted": State("children", "waiting"),
}
UNDONE: dict[str, State] = {
    "items, one done, two lost; `pay` fails": State("each", "running", 1, fails=True),
    "items, one done; the second fails for good": State("each", "running", 1, second=True),
    "turns, two done, the third is lost; `pay` fails": State("loop", "running", 2, fails=True),
    "waiting for a child run; `pay` fails": State("child", "waiting", fails=True),
    "waiting for child runs; `pay` fails": State("children", "waiting", fails=True),
    "unwinding, items next": State("each", "before-unwind", fails=True),
    "unwinding the items, the process is lost": State("each", "unwinding", fails=True),
}
STATES = {**WAITING, **UNITS, **UNDONE}


class Row(msgspec.Struct, frozen=True):
    """One row of the page."""

    edit: str
    before: str
    after: str
    state: str
    outcome: str
    line: int

    @property
    def name(self) -> str:
        """For test ids."""
        return f"{self.edit}: {self.state}"


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
        if key in ("before", "after"):
            given[key] = value.replace("`", "")
        elif key in STATES:
            yield Row(name, given["before"], given["after"], key, value, number)
        elif key not in ("", "the run"):
            raise ValueError(f"line {number}: no such state: {key!r}")


# --- the pipelines


def numbers(inv: Inv) -> list[int]:
    return [1, 2, 3]


def other_numbers(inv: Inv) -> list[int]:
    return [7]


def three(inv: Inv) -> int:
    return 3


def nine(inv: Inv) -> int:
    return 9


def two_runs(inv: Inv) -> list[str]:
    return ["a", "b"]


def one_run(inv: Inv) -> list[str]:
    return ["c"]


async def label(inv: ItemInvocation[None, object, int]) -> str:
    return f"#{inv.item}"


async def turn(inv: ItemInvocation[None, object, int]) -> More[int] | Done[str]:
    return More(inv.item - 1) if inv.item > 0 else Done("done")


async def work(inv: Inv) -> str:
    return "worked"


def _child(id: str) -> Pipeline[int, object, str]:
    @step("pack")
    async def pack(inv: Invocation[int, object]) -> str:
        return f"{id} {inv.input}"

    def packed(inv: Invocation[int, object]) -> str:
        return inv[pack]

    return Pipeline(id=id, input=int, deps=object, steps=(pack,), output=packed)


PARCEL, LETTER = _child("parcel"), _child("letter")


async def undo(inv: UnwindInvocation[None, object], state: object) -> None:
    """Works."""


async def undo_text(inv: UnwindInvocation[None, object], state: str) -> None:
    """Works."""


async def undo_texts(inv: UnwindInvocation[None, object], state: list[str]) -> None:
    """Works."""


async def undo_in_doubt(inv: UnwindInvocation[None, object]) -> None:
    """Works."""


def pipeline(text: str, kind: str) -> Line:
    """A pipeline as the page writes it: `reserve* it pay`, where `it` is of the row's kind."""
    steps = tuple(_step(word, kind) for word in text.split())
    its = [each for each in steps if each.id.startswith("it")]

    def output(inv: Inv) -> str:
        states = [inv.get(each) for each in its]
        return " and ".join(_text(state) for state in states if state is not None) or "nothing"

    return Pipeline(id="order", input=None, deps=object, steps=steps, output=output, retry=Retry(jitter=0))


def _text(state: object) -> str:
    if isinstance(state, tuple):
        return ", ".join(f"{run.run_id} {run.status}" for run in cast("tuple[AwaitedRun, ...]", state))
    return ", ".join(cast("list[str]", state)) if isinstance(state, list) else str(state)


def _step(word: str, kind: str) -> Any:
    found = _ENTRY.match(word)
    if found is None:
        raise ValueError(f"{word!r} is no step of the page")
    name, unwinds, doubt, gone, changed = found.groups()
    options: dict[str, Any] = {}
    if doubt:
        options["unwind_in_doubt"] = undo_in_doubt
    made = _plain(name, unwinds, options) if not name.startswith("it") else _it(name, kind, changed, unwinds, options)
    return retired(made) if gone else made


def _plain(name: str, unwinds: str | None, options: dict[str, Any]) -> Any:
    define: Any = step

    async def handler(inv: Inv) -> None:
        """Works."""

    async def undo_nothing(inv: UnwindInvocation[None, object], state: None) -> None:
        """Works."""

    return define(name, unwind=undo_nothing if unwinds else None, **options)(handler)


def _it(name: str, kind: str, changed: str | None, unwinds: str | None, options: dict[str, Any]) -> Any:
    """`it` as it is, or (`!`) with everything changed that can be under its id."""
    if name == "it-handler":
        define: Any = step
        return define("it", unwind=undo_text if unwinds else None, **options)(work)
    if unwinds:
        options["unwind"] = undo_text if kind in ("loop", "child") else undo_texts
    each: Any = ForEach
    loop: Any = Loop
    child: Any = Child
    children: Any = ForEachRun
    other = changed is not None
    match kind:
        case "message":
            return AwaitMessage[Any, Any, str](
                name, name="stop" if other else "go", type=str, timeout=60 if other else 3600
            )
        case "runs":
            return AwaitRuns(name, runs=one_run if other else two_runs)
        case "sleep":
            return Sleep(name, 60 if other else 3600)
        case "each":
            items, bound = (other_numbers, 1) if other else (numbers, 3)
            return each(name, items=items, handler=label, concurrency=bound, **options)
        case "loop":
            return loop(name, first=nine if other else three, turn=turn, **options)
        case "child":
            return child(name, pipeline=LETTER if other else PARCEL, input=nine if other else three, **options)
        case "children":
            pipeline, inputs = (LETTER, other_numbers) if other else (PARCEL, numbers)
            return children(name, pipeline=pipeline, inputs=inputs, concurrency=2, **options)
        case _:
            raise ValueError(kind)


# --- the states and the words


def carry_out(row: Row) -> Evolution[str]:
    """Bring a run into the row's state under the old pipeline, deploy the new one, and run on."""
    state = STATES[row.state]
    results: dict[str, object] = {"pay": Fail("no money")} if state.fails else {}
    if state.second:
        results["it"] = Each("#1", "#2", "#3", Fail("no label", reason="no-label"), "#3")
    return evolve(
        pipeline(row.before, state.kind),
        pipeline(row.after, state.kind),
        at="it",
        moment=state.moment,
        input=None,
        done=state.done,
        results=results,
        messages={"go": Each("yes", "yes"), "stop": "no"} if state.message else {},
        runs={"a": 1, "b": Fail("no"), "c": 3} if state.kind == "runs" else {},
        held=state.held,
        canceled=state.canceled,
    )


def words(story: Evolution[str]) -> str:
    """What happened after the deployment, as the page says it."""
    said = edits.words(story)
    result = story.result
    if isinstance(result, (Failed, Canceled)) and result.failure.reason not in ("failed", "canceled", ""):
        end = f"at `{result.failure.step}`"
        said = said.replace(end, f"{end} (`{result.failure.reason}`)", 1)
    return said


def main() -> None:
    """Write the outcomes of the page anew."""
    lines = PAGE.read_text("utf-8").splitlines()
    for row in read("\n".join(lines)):
        lines[row.line - 1] = f"| {row.state} | {words(carry_out(row))} |"
    PAGE.write_text("\n".join(lines) + "\n", "utf-8")


if __name__ == "__main__":
    main()
