"""`perdure check`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli.connect import Place, locate
from perdure.cli.evolution import LOCK_FILE, Edit, edited, has_app, lock_beside, one_app, read_lock, write
from perdure.cli.exits import Exit
from perdure.cli.options import AppArgument, AppOption, JsonOption, LedgersOption, StoreOption
from perdure.cli.output import Output
from perdure.cli.problems import refuse

if TYPE_CHECKING:
    from perdure.core.check import CheckReport
    from perdure.core.lock import Lock, LockChange


def check(
    app_argument: AppArgument = None,
    app: AppOption = None,
    store: StoreOption = None,
    ledgers: LedgersOption = None,
    lock: Annotated[
        Path | None,
        typer.Option("--lock", metavar="FILE", help="Say what changed since this lock file, and what to look at."),
    ] = None,
    write_lock: Annotated[
        bool, typer.Option("--write-lock", help=f"Write the lock file, {LOCK_FILE} or that of --lock, and stop.")
    ] = False,
    strict: Annotated[
        bool,
        typer.Option("--strict", help="Exit 1 also for effects that could not be undone, changed types, and warnings."),
    ] = False,
    every: Annotated[bool, typer.Option("--all", help="Show every kind of run, not the 20 most frequent.")] = False,
    as_json: JsonOption = False,
) -> int:
    """Say what deploying the application would mean for every live run.

    Nothing is changed, and it may run beside an engine. Runs come from the store, or from an export by
    `perdure ledgers export`. With --lock and neither of the two, only the application and the lock file are compared.
    Types of states are compared with those in perdure.lock, where that is there.
    Exit code 1: a run would become invalid.

    JSON: one object: ok, leaks, retyped, types_compared, unreadable, pipelines (each pipeline, runs, ledgers, changes,
    numbers of runs by what happens to them, kinds, sentences, drains) and, with --lock, lock (each pipeline, changes,
    warnings, notes).
    """
    if store is not None and ledgers is not None:
        refuse("--store and --ledgers exclude each other", "an export stands for a store")
    out = Output(json=as_json)
    if write_lock:
        return _write_lock(edited(app_argument, app, None), lock or Path(LOCK_FILE), out)
    former = None if lock is None else read_lock(lock)
    named = one_app(app_argument, app)
    looks = lock is None or store is not None or ledgers is not None
    if former is not None and looks and not has_app(named):
        place = locate(None, store) if store is not None else Place(None, None)
        return _answer(Edit(place, ledgers, former).report(), (), out, strict=strict, every=every)
    place = edited(app_argument, app, store)
    changes = () if former is None else _changes(former, place)
    if not looks:
        return _answer(None, changes, out, strict=strict, every=every, locked=True)
    types = former or lock_beside()
    report = Edit(place, ledgers, types=types).report()
    answer = _answer(report, changes, out, strict=strict, every=every, locked=former is not None, typed=bool(types))
    if types is None and any(found.runs for found in report.pipelines):
        out.note(f"types of states were not compared: there is no {LOCK_FILE} here, which --write-lock writes")
    return answer


def _write_lock(place: Place, path: Path, out: Output) -> int:
    from perdure.core.lock import encode_lock
    from perdure.define.locking import lock_of

    data = encode_lock(lock_of(place.pipelines.values()))
    same = path.exists() and path.read_bytes() == data
    if not same:
        write(path, data)
    if out.json:
        out.value({"lock_file": str(path), "changed": not same, "pipelines": sorted(place.pipelines)})
    else:
        out.line(f"{path} is up to date" if same else f"{path} written; commit it")
    return Exit.OK


def _changes(former: Lock, place: Place) -> tuple[LockChange, ...]:
    from perdure.core.lock import compare_locks
    from perdure.define.locking import lock_of

    return compare_locks(former, lock_of(place.pipelines.values()))


def _answer(
    report: CheckReport | None,
    changes: tuple[LockChange, ...],
    out: Output,
    *,
    strict: bool,
    every: bool,
    locked: bool = False,
    typed: bool = False,
) -> int:
    from perdure.cli.edits import check_json, print_check, print_lock_changes
    from perdure.cli.times import now_us

    if out.json:
        import msgspec

        value = {"ok": True} if report is None else {**check_json(report), "types_compared": typed}
        out.value({**value, "lock": msgspec.to_builtins(changes)} if locked else value)
    else:
        if locked:
            print_lock_changes(changes, out)
        if report is not None:
            print_check(report, out, now_us(), every=every)
    bad = report is not None and (not report.ok or (strict and (report.leaks or report.retyped)))
    warned = any(change.warnings for change in changes)
    return Exit.FINDING if bad or (strict and warned) else Exit.OK
