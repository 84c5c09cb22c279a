"""`perdure submit --many`: a file of inputs, one JSON value a line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from perdure.cli.exits import Exit
from perdure.cli.inputs import read_json, read_text
from perdure.cli.output import Output
from perdure.cli.problems import refuse
from perdure.cli.tables import Cell
from perdure.errors import PayloadError, QueueFull, ScheduleConflict

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from perdure.define.pipeline import AnyPipeline
    from perdure.runtime.client import Client
    from perdure.runtime.run import Run

Refusal: TypeAlias = ScheduleConflict | QueueFull
"""Why there is no run for an input."""

Send: TypeAlias = "Callable[[Client, Sequence[object]], Awaitable[Sequence[Run[object] | Refusal]]]"
"""`Client.submit_many`, with everything but the inputs."""

AT_ONCE = 2_000
REFUSALS_SHOWN = 20


@dataclass(frozen=True)
class Inputs:
    """Inputs with the numbers of their lines."""

    lines: list[int]
    values: list[object]


def read_inputs(file: str, pipeline: AnyPipeline) -> Inputs:
    """Read and check all lines; blank ones do not count.

    Raises:
        Problem: one is not an input of the pipeline; names the line.
    """
    found = Inputs([], [])
    for number, line in enumerate(read_text(file if file == "-" else f"@{file}", "--many").split("\n"), 1):
        if not line.strip():
            continue
        where = f"--many: line {number}"
        if line.lstrip()[:1] in {"-", "@"} and not line.strip()[1:2].isdigit():
            refuse(f"{where}: not JSON")
        data = read_json(line, where)
        try:
            value: object = pipeline.input_codec.decode(data)
        except PayloadError as error:
            refuse(f"{where}: {error}", "nothing was submitted; the value has to fit the pipeline's input type")
        found.lines.append(number)
        found.values.append(value)
    return found


async def submit_all(client: Client, send: Send, inputs: Inputs, out: Output) -> int:
    """Submit them, some thousands at a time, and say what became of each."""
    new = joined = 0
    refused: list[tuple[int, Refusal]] = []
    with out.progress("submitting") as advance:
        for first in range(0, len(inputs.values), AT_ONCE):
            lines = inputs.lines[first : first + AT_ONCE]
            found = await send(client, inputs.values[first : first + AT_ONCE])
            for line, run in zip(lines, found, strict=True):
                if isinstance(run, Refusal):
                    refused.append((line, run))
                elif run.created:
                    new += 1
                else:
                    joined += 1
            if out.json:
                _as_json(lines, found, out)
            advance(first + len(lines), len(inputs.values))
    if not out.json:
        _say(new, joined, refused, out)
    return Exit.CONFLICT if refused else Exit.OK


def _as_json(lines: Sequence[int], found: Sequence[Run[object] | Refusal], out: Output) -> None:
    for line, run in zip(lines, found, strict=True):
        if isinstance(run, Refusal):
            in_the_way = run.run_id if isinstance(run, ScheduleConflict) else None
            out.value({"line": line, "run_id": in_the_way, "created": False, "refused": str(run)})
        else:
            out.value({"line": line, "run_id": run.id, "created": run.created})


def _say(new: int, joined: int, refused: Sequence[tuple[int, Refusal]], out: Output) -> None:
    parts = [f"{new:,} submitted"]
    if joined:
        parts.append(f"{joined:,} joined runs that were there")
    if refused:
        parts.append(f"{len(refused):,} refused")
    out.line(Cell(", ".join(parts), "bold"))
    for line, conflict in refused[:REFUSALS_SHOWN]:
        out.line(f"line {line}: {conflict}")
    if len(refused) > REFUSALS_SHOWN:
        out.line(f"and {len(refused) - REFUSALS_SHOWN:,} more; --json names all")
