"""Checks, drains and differences of topologies, for people and for programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from perdure.cli.output import Output
from perdure.cli.tables import Cell, Table
from perdure.cli.text import count
from perdure.cli.times import ago, iso_utc

if TYPE_CHECKING:
    from perdure.core.check import CheckReport, Kind, PipelineCheck
    from perdure.core.diff import TopologyDiff
    from perdure.core.drain import Drain
    from perdure.core.effects import Effects
    from perdure.core.lock import LockChange

SHOWN_KINDS = 20


def print_check(report: CheckReport, out: Output, now_us: int, *, every: bool) -> None:
    """A paragraph and a table for each pipeline, then the verdict."""
    for found in report.pipelines:
        _print_pipeline(found, out, now_us, every=every)
        out.line("")
    if report.unreadable:
        out.line(Cell(f"{count(len(report.unreadable), 'run')} cannot be read, so nothing is said of them", "yellow"))
    invalid = sum(found.invalid for found in report.pipelines)
    leaking = sum(found.leaking for found in report.pipelines)
    if invalid:
        out.line(Cell(f"{count(invalid, 'run')} would become invalid", "bold red"))
    else:
        but = [", but some effects could not be undone"] * bool(leaking)
        but += [", but types of what they have stored changed"] * report.retyped
        out.line(Cell("no run would become invalid", "green"), *but)


def _print_pipeline(found: PipelineCheck, out: Output, now_us: int, *, every: bool) -> None:
    what = "left out" if found.gone else "new" if not found.known else changes_text(found.changes) or "no change"
    ledgers = f", {count(found.ledgers, 'distinct ledger')}" if found.ledgers else ""
    out.line(Cell(found.pipeline, "bold"), f": {what}; {count(found.runs, 'live run')}{ledgers}")
    for sentence in found.sentences:
        if found.runs:
            out.line("  ", Cell(sentence, _style(sentence)))
    kinds = found.kinds if every else found.kinds[:SHOWN_KINDS]
    if kinds:
        table = Table(
            ["where it stands", "runs", "oldest", "example", "what changes"],
            right=frozenset({"runs"}),
            spare=("oldest", "example"),
        )
        for kind in kinds:
            table.add(*_kind_row(kind, now_us))
        out.table(table)
    if len(kinds) < len(found.kinds):
        out.note(f"{len(found.kinds) - len(kinds)} more kinds; --all shows them")


def _style(sentence: str) -> str:
    if "would become invalid if" in sentence:
        return "yellow"
    if "would become invalid" in sentence:
        return "red"
    return "yellow" if any(words in sentence for words in ("no longer undo", "instead of", "type changed")) else ""


def _kind_row(kind: Kind, now_us: int) -> tuple[str | Cell, ...]:
    oldest = ago(kind.oldest_us, now_us) if kind.oldest_us else ""
    effect = Cell(effects_text(kind.effects), "red" if kind.effects.breaks else "")
    return kind.stand, f"{kind.count:,}", oldest, kind.example_run, effect


def effects_text(effects: Effects) -> str:
    """In a few words: `+fraud/v1, past tax/v1`."""
    if effects.none:
        return "nothing"
    validity = {"becomes invalid": "INVALID", "stays invalid": "still invalid", "mended": "goes on again", "": ""}
    parts = [validity[effects.validity] + (f" ({effects.reason})" if effects.reason else "")]
    parts += [f"INVALID at {miss.step}: no state of {miss.need}" for miss in effects.misses]
    parts += [f"type of {found.step or 'the input'} changed" for found in effects.retyped]
    parts += [f"cannot undo {step}" for step in effects.leaks]
    parts += ["invalid if it fails soon"] if effects.brittle else []
    parts += [f"{effects.ends[0]} becomes {effects.ends[1]}"] if effects.ends else []
    parts += [f"+{step}" for step in effects.gains]
    parts += [f"-{step}" for step in effects.loses]
    parts += [f"past {step}" for step in effects.passes]
    parts += [f"undoes {step}" for step in effects.undoes]
    parts += ["another order"] if effects.reordered else []
    return ", ".join(part for part in parts if part)


def changes_text(changes: TopologyDiff) -> str:
    """What an edit did: `inserted fraud/v1, retired charge/v1`; empty for nothing."""
    parts = [
        f"{word} {', '.join(ids)}"
        for word, ids in (
            ("inserted", changes.inserted),
            ("removed", changes.removed),
            ("moved", changes.moved),
            ("retired", changes.retired),
            ("no longer retired", changes.restored),
            ("flags", changes.flags),
        )
        if ids
    ]
    return "; ".join(parts)


def print_lock_changes(changes: Sequence[LockChange], out: Output) -> None:
    """What differs from a lock file, warnings first."""
    differing = [change for change in changes if not change.empty]
    for change in differing:
        what = "new" if change.added else "removed" if change.removed else changes_text(change.changes) or "same order"
        out.line(Cell(change.pipeline, "bold"), f" against the lock: {what}")
        for warning in change.warnings:
            out.line("  ", Cell(f"warning: {warning}", "yellow"))
        for note in change.notes:
            out.line("  ", note)
    if not differing:
        out.line("nothing differs from the lock")


def drain_row(pipeline: str, drain: Drain, now_us: int) -> tuple[str | Cell, ...]:
    """A row of `perdure drain`."""
    verdict = Cell("may be removed", "green") if drain.drained else Cell(drain_reason(drain), "yellow")
    since = ago(drain.oldest_us, now_us) if drain.oldest_us else ""
    return pipeline, drain.step, f"{drain.runs:,}", since, verdict


def drain_reason(drain: Drain) -> str:
    """Why a retired step must stay."""
    parts: list[str] = []
    if drain.fresh:
        parts.append("deploy it as retired first")
    if drain.unresolved:
        parts.append(f"{count(drain.unresolved, 'run')} {'is' if drain.unresolved == 1 else 'are'} at it")
    if drain.runs > drain.unresolved:
        more = drain.runs - drain.unresolved
        parts.append(f"{count(more, 'run')} may have to undo it, or {'has' if more == 1 else 'have'} only it behind")
    if drain.read_by:
        parts.append(f"read by {', '.join(drain.read_by)}")
    return "; ".join(parts)


def drain_json(pipeline: str, drain: Drain) -> dict[str, object]:
    """A drain for programs."""
    return {
        "pipeline": pipeline,
        "step": drain.step,
        "drained": drain.drained,
        "runs": drain.runs,
        "unresolved": drain.unresolved,
        "since": iso_utc(drain.oldest_us) if drain.oldest_us else None,
        "read_by": list(drain.read_by),
        "why": "" if drain.drained else drain_reason(drain),
    }


def check_json(report: CheckReport) -> dict[str, object]:
    """A report for programs."""
    return {
        "ok": report.ok,
        "leaks": report.leaks,
        "retyped": report.retyped,
        "unreadable": list(report.unreadable),
        "pipelines": [_pipeline_json(found) for found in report.pipelines],
    }


def _pipeline_json(found: PipelineCheck) -> dict[str, object]:
    import msgspec

    value: dict[str, object] = msgspec.to_builtins(found)
    value["kinds"] = [
        {
            "stand": kind.stand,
            "runs": kind.count,
            "example_run": kind.example_run,
            "oldest": iso_utc(kind.oldest_us) if kind.oldest_us else None,
            **{name: msgspec.to_builtins(getattr(kind.effects, name)) for name in kind.effects.__struct_fields__},
        }
        for kind in found.kinds
    ]
    value["drains"] = [drain_json(found.pipeline, drain) for drain in found.drains]
    return value
