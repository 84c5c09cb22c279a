"""Runs and facts as rows, lines and JSON; pure."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, cast

import msgspec

from perdure.cli.looks import status_cell
from perdure.cli.tables import Cell, Table
from perdure.cli.text import count
from perdure.cli.times import ago, iso_local, iso_local_exact, iso_utc, when
from perdure.cli.waits import ChildRun, children_of, children_rows, counts_json, counts_rows, wait_json, wait_rows
from perdure.core.facts import Failure, OutcomeCommitted, Parent, RunFailed, RunSubmitted, RunSucceeded
from perdure.core.projection import Projection
from perdure.core.reducer import fold

if TYPE_CHECKING:
    from perdure.runtime.info import RecordedFact, RunInfo

TERMINAL = frozenset({"succeeded", "failed", "canceled"})
LISTS = ("in_doubt", "half_unwound", "uncompensated", "unavailable")
"""The lists of U-9, in the order in which they are always shown."""


def info_json(info: RunInfo) -> dict[str, object]:
    """A run for programs."""
    return {
        "run_id": info.run_id,
        "pipeline": info.pipeline,
        "tenant": info.tenant,
        "resource": info.resource,
        "status": info.status,
        "step": info.step or None,
        "reason": info.reason or None,
        "waits_for_worker": info.waits_for_worker or None,
        "canceling": info.canceling,
        "generation": info.generation or None,
        "worker": info.worker or None,
        "priority": info.priority,
        "submitted_at": iso_utc(info.submitted_us),
        "due_at": iso_utc(info.due_us),
        "ended_at": iso_utc(info.ended_us),
        "annotations": info.annotations,
    }


def status_words(info: RunInfo, now_us: int) -> str:
    """The status, and what makes it special."""
    words: list[str] = [info.status]
    if info.canceling and info.status not in TERMINAL:
        words.append("canceling")
    waits = info.status == "ready" and info.reason.startswith("waits for ")
    if waits:
        words.append("waiting")
    if info.status == "ready" and info.due_us is not None and info.due_us > now_us:
        words.append(f"{ago(info.due_us, now_us)} at the latest" if waits else ago(info.due_us, now_us))
    if info.priority and info.status not in TERMINAL:
        words.append(f"priority {info.priority}")
    return ", ".join(words)


def reason_words(info: RunInfo) -> str:
    """Why it does not go on: what its index row says, and the worker that is missing."""
    return "; ".join(text for text in (info.reason, info.waits_for_worker) if text)


def runs_table(infos: Sequence[RunInfo], now_us: int) -> Table:
    """Runs, one a row."""
    table = Table(
        ["run", "pipeline", "resource", "status", "step", "reason", "submitted", "age"],
        right=frozenset({"age"}),
        wraps="reason",
        spare=("submitted", "reason", "step", "pipeline", "resource"),
        least=10,
    )
    for info in infos:
        style = status_cell(info.status)
        table.add(
            info.run_id,
            info.pipeline,
            "" if info.resource == info.run_id else info.resource,
            Cell(status_words(info, now_us), style.style),
            info.step,
            reason_words(info),
            iso_local(info.submitted_us),
            Cell(ago(info.submitted_us, now_us), "dim"),
        )
    return table


def counts_line(
    counts: Mapping[tuple[str, str], int], order: Sequence[str], at_least: Collection[tuple[str, str]] = ()
) -> list[str | Cell]:
    """`3 running, 10,000+ held`: all pipelines together, in the order given; `+` where there may be more."""
    more = {status for _, status in at_least}
    totals: dict[str, int] = {}
    for (_, status), number in counts.items():
        totals[status] = totals.get(status, 0) + number
    parts: list[str | Cell] = []
    for status in order:
        if totals.get(status):
            told = f"{totals[status]:,}{'+' if status in more else ''}"
            parts += [", " if parts else "", told, " ", status_cell(status)]
    return parts or ["no runs"]


def json_of(raw: bytes) -> object:
    """Stored JSON as plain values."""
    value: object = json.loads(raw)
    return value


def failure_json(failure: Failure) -> dict[str, object]:
    """A failure for programs."""
    return {
        "step": failure.step,
        "phase": failure.phase,
        "attempt": failure.attempt or None,
        "at": iso_utc(failure.at_us or None),
        "kind": failure.kind,
        "reason": failure.reason,
        "error": failure.error or None,
        "message": failure.message,
    }


def failure_words(failure: Failure) -> str:
    """A failure in a line: where, what kind, and what it said."""
    where = failure.step + (" (unwind)" if failure.phase == "unwind" else "")
    attempt = f", attempt {failure.attempt}" if failure.attempt else ""
    return f"{where}{attempt}: {failure_message(failure)}"


def failure_message(failure: Failure) -> str:
    """What a failure said, and how it is classed."""
    error = f"{failure.error}: " if failure.error else ""
    return f"{error}{failure.message} [{failure.kind}, {failure.reason}]"


class RunStory:
    """What `show` tells of a run beyond its index row, read off its facts.

    Attributes:
        submitted: the first fact; None only for a journal that cannot be read.
        output: the output, encoded; None before the outcome is decided.
        ended: the terminal fact, if there is one.
        last_failure: of the newest attempt that did not succeed.
        attempts: number of attempts reserved, those of items included.
        children: its child runs.
        p: the facts, folded; None only for a journal that cannot be read.
    """

    def __init__(self, facts: Sequence[RecordedFact]) -> None:
        self.facts = len(facts)
        self.p: Projection | None = None
        self.children: list[ChildRun] = []
        self.submitted: RunSubmitted | None = None
        self.output: bytes | None = None
        self.ended: RunSucceeded | RunFailed | None = None
        self.last_failure: Failure | None = None
        self.attempts = 0
        for recorded in facts:
            fact = recorded.fact
            if isinstance(fact, RunSubmitted):
                self.submitted, self.p = fact, Projection(fact.run_id)
                self.children = children_of(fact.run_id, facts)
            elif isinstance(fact, OutcomeCommitted):
                self.output = bytes(fact.output)
            elif isinstance(fact, RunSucceeded | RunFailed):
                self.ended = fact
            else:
                self.attempts += type(fact).__name__ in ("OperationReserved", "ItemReserved")
                self.last_failure = getattr(fact, "failure", None) or self.last_failure
            if self.p is not None:
                fold(self.p, fact, recorded.at_us)

    def json(self) -> dict[str, object]:
        """For programs."""
        submitted, ended = self.submitted, self.ended
        failed = ended if isinstance(ended, RunFailed) else None
        parent = submitted.parent if submitted is not None else None
        return {
            "input": None if submitted is None else json_of(bytes(submitted.input)),
            "annotations": {} if submitted is None else submitted.annotations,
            "start_at": iso_utc((submitted.start_at_us or None) if submitted else None),
            "deadline_at": iso_utc((submitted.deadline_us or None) if submitted else None),
            "actor": (submitted.actor or None) if submitted else None,
            "child_of": None if parent is None else {"step": parent.step, "index": parent.index},
            "waits": None if self.p is None else wait_json(self.p),
            "children": [child.json() for child in self.children],
            "facts": self.facts,
            "attempts": self.attempts,
            "output": None if self.output is None else json_of(self.output),
            "failure": None if failed is None else failure_json(failed.failure),
            "unwind_failures": [] if failed is None else [failure_json(f) for f in failed.unwind_failures],
            "last_failure": None if self.last_failure is None else failure_json(self.last_failure),
            **{name: list(getattr(ended, name, ())) for name in LISTS},
            "item_counts": [] if failed is None else [counts_json(counts) for counts in failed.item_counts],
        }

    def rows(self, now_us: int) -> list[tuple[str, str | Cell]]:
        """For people: names and values, only those that say something."""
        rows: list[tuple[str, str | Cell]] = []
        if self.submitted is not None:
            rows += self._submitted_rows(self.submitted, now_us)
        if self.p is not None and self.ended is None:
            rows += wait_rows(self.p, now_us)
        rows += children_rows(self.children)
        rows.append(("journal", f"{count(self.facts, 'fact')}, {count(self.attempts, 'attempt')}"))
        if self.last_failure is not None and self.ended is None:
            rows.append(("last failure", Cell(failure_words(self.last_failure), "yellow")))
        if self.output is not None and self.output != b"null":
            rows.append(("output", compact(self.output)))
        if isinstance(self.ended, RunFailed):
            rows.append(("failure", Cell(failure_words(self.ended.failure), "red")))
            rows += [("unwind failure", Cell(failure_words(f), "red")) for f in self.ended.unwind_failures]
        for name in LISTS:
            steps: tuple[str, ...] = getattr(self.ended, name, ())
            if steps:
                rows.append((name.replace("_", " "), Cell(", ".join(steps), "yellow")))
        if isinstance(self.ended, RunFailed):
            rows += counts_rows(self.ended.item_counts)
        return rows

    def _submitted_rows(self, fact: RunSubmitted, now_us: int) -> list[tuple[str, str | Cell]]:
        rows: list[tuple[str, str | Cell]] = [("input", compact(bytes(fact.input)))]
        if fact.parent is not None:
            rows.insert(0, ("child of", f"run {fact.parent.run_id}, {fact.parent.step} item {fact.parent.index}"))
        if fact.start_at_us:
            rows.append(("not before", when(fact.start_at_us, now_us)))
        if fact.deadline_us:
            rows.append(("deadline", when(fact.deadline_us, now_us)))
        if fact.actor:
            rows.append(("submitted by", fact.actor))
        rows += [("annotation", f"{key}={value}") for key, value in sorted(fact.annotations.items())]
        return rows


def compact(raw: bytes, limit: int = 2_000) -> str:
    """Stored JSON on one line, cut where it is longer than a screen."""
    text = raw.decode("utf-8", "replace")
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text)} characters; `--json` shows all)"


def fact_json(recorded: RecordedFact) -> dict[str, object]:
    """A fact for programs: sequence number, time, and the fact under its wire name."""
    return {"seq": recorded.seq, "at": iso_utc(recorded.at_us), **_fields(recorded)}


def _fields(recorded: RecordedFact) -> dict[str, object]:
    fields: dict[str, object] = json.loads(msgspec.json.encode(recorded.fact))
    return fields


_QUIET = frozenset({"fact", "step", "attempt", "phase", "input_digest", "run_id", "digest", "index"})
_PAYLOADS = frozenset({"input", "state", "output", "value", "payload"})


def facts_table(facts: Sequence[RecordedFact], now_us: int) -> Table:
    """Facts, one a row, with what is special about each in words."""
    table = Table(
        ["seq", "time", "age", "fact", "step", "details"], right=frozenset({"seq", "age"}), spare=("time", "age")
    )
    for recorded in facts:
        fields = _fields(recorded)
        step = str(fields.get("step", ""))
        table.add(
            str(recorded.seq),
            iso_local_exact(recorded.at_us),
            Cell(ago(recorded.at_us, now_us), "dim"),
            Cell(str(fields["fact"]), fact_style(str(fields["fact"]))),
            step if fields.get("phase", "forward") == "forward" else f"{step} (unwind)",
            fact_details(fields, now_us),
        )
    return table


def fact_style(name: str) -> str:
    """Colour of a fact: what went well, what did not, what an operator did."""
    if name.endswith(("Succeeded", "Resolved")) and name != "OperationResolved":
        return "green"
    if name.endswith(("Failed", "RetryScheduled")):
        return "red"
    return (
        "yellow"
        if name
        in {"RunCancelRequested", "RunHeld", "RunReleased", "RunAbandoned", "RunPrioritized", "OperationResolved"}
        else ""
    )


def fact_details(fields: Mapping[str, object], now_us: int) -> str:
    """The fields of a fact that its other columns do not show, as `name=value`."""
    parts: list[str] = []
    if fields.get("attempt"):
        parts.append(f"attempt {fields['attempt']}")
    if "index" in fields:
        parts.insert(0, f"item {fields['index']}")
    for name, value in fields.items():
        if name in _QUIET or (name in _PAYLOADS and value is None):
            continue
        if name.endswith("_us") and isinstance(value, int):
            parts.append(f"{name.removesuffix('_us')}={when(value, now_us)}")
        elif name == "failure" and isinstance(value, dict):
            failure = msgspec.convert(value, Failure)
            parts.append(failure_message(failure) if "step" in fields else failure_words(failure))
        elif name == "items" and isinstance(value, list):
            parts.append(count(len(cast("list[object]", value)), "item"))
        elif name == "parent" and isinstance(value, dict):
            parent = msgspec.convert(value, Parent)
            parts.append(f"child of run {parent.run_id}, {parent.step} item {parent.index}")
        elif isinstance(value, str) and name not in _PAYLOADS:
            parts.append(f"{name}={value}")
        else:
            parts.append(f"{name}={json.dumps(value, ensure_ascii=False, separators=(',', ':'))}")
    text = "; ".join(parts)
    return text if len(text) <= 400 else f"{text[:400]}..."
