"""Recomputing everything from the facts: `verify` [J-11]."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable

from msgspec.structs import replace

from perdure.core.journal import NewerJournal
from perdure.core.plan import Parked
from perdure.core.projection import REDUCER_VERSION, Projection, dump
from perdure.core.signature import sign, signature_of
from perdure.core.units import resting
from perdure.errors import CorruptJournal, NotFound
from perdure.ports.listing import FOR_A_LIMIT
from perdure.ports.store import TERMINAL, LoadedRun, RunFilter, RunPage, RunRow, Snapshot, Store
from perdure.runtime.arguments import STATUSES
from perdure.runtime.indexing import facts_state, new_run
from perdure.runtime.info import Finding, VerifyReport
from perdure.runtime.loading import fold_rows, projected
from perdure.runtime.noted import astray, check_notes
from perdure.runtime.rebuilding import rebuild

logger = logging.getLogger("perdure")

_PAGE = 200

_TROUBLE_US = 3_600_000_000
"""A run in trouble is left alone for a while, whatever its facts say; never for so long."""


async def verify(
    store: Store, run_id: str | None, *, repair: bool, progress: Callable[[int, int], None] | None, now_us: int
) -> VerifyReport:
    """Check one run, or all; see `Client.verify`."""
    runs = facts = repaired = 0
    findings: list[Finding] = []
    total = 1 if run_id is not None else sum((await store.count_runs(RunFilter())).numbers.values())
    async for found in _runs(store, run_id):
        loaded = await store.load_all_rows(found)
        if loaded is None:
            if run_id is not None:
                raise NotFound(f"there is no run {run_id!r}")
            continue
        snapshot = (await store.load(found) or loaded).snapshot
        facts += sum(row.count for row in loaded.rows)
        findings += (
            check_run(loaded, snapshot, now_us)
            or await _in_vain(store, loaded)
            or await check_notes(store, loaded, repair=repair)
        )
        runs += 1
        if progress is not None:
            progress(runs, max(total, runs))
    if run_id is None:
        for missing in await store.missing_index(10_000):
            findings.append(Finding(missing, 0, "the journal has this run, the index does not"))
        for entry in await store.ledgers():
            if entry.signature and signature_of(entry.ledger) != entry.signature:
                findings.append(Finding(entry.example_run, 0, "the ledger that it shares with others was changed"))
        findings += await astray(store)
        if repair:
            repaired = await rebuild(store, now_us)
    if repair and findings:
        await store.notes.forget_astray()
    return VerifyReport(runs, facts, tuple(findings), repaired)


async def _runs(store: Store, run_id: str | None) -> AsyncIterator[str]:
    if run_id is not None:
        yield run_id
        return
    page = RunPage((), None)
    while True:
        page = await store.list_runs(RunFilter(), after=page.next, limit=_PAGE)
        for row in page.rows:
            yield row.run.run_id
        if page.next is None:
            return


def check_run(loaded: LoadedRun, snapshot: Snapshot | None, now_us: int) -> list[Finding]:
    """Differences between a run's facts, its chain, its index row and its snapshot."""
    run_id = loaded.row.run.run_id
    p = Projection(run_id, loaded.row.locator)
    at_snapshot: bytes | None = None
    try:
        for row in loaded.rows:
            fold_rows(p, (row,))
            if snapshot is not None and row.first_seq == snapshot.row_seq:
                at_snapshot = dump(p)
    except (CorruptJournal, NewerJournal) as error:
        return [Finding(run_id, getattr(error, "seq", 0), str(error))]
    problems: list[str] = []
    if p.submitted is None:
        problems.append("the run has no facts: its journal is gone")
    else:
        problems += _row_problems(p, loaded.row, now_us)
    usable = snapshot is not None and snapshot.reducer == REDUCER_VERSION
    if snapshot is not None and usable and at_snapshot is not None and at_snapshot != snapshot.data:
        problems.append("its snapshot differs from the facts it was folded from")
    return [Finding(run_id, 0, problem) for problem in problems]


def _row_problems(p: Projection, row: RunRow, now_us: int) -> list[str]:
    problems: list[str] = []
    run, state = row.run, row.state
    if p.submitted is not None and run != replace(new_run(p.submitted, p.submitted_us), mutexes=()):
        problems.append("its index row names another pipeline, resource, slot, input or time than its first fact")
    if state.version > p.version or (state.version == p.version and state.tail_hash not in (b"", p.row_hash)):
        problems.append(f"its tail is lost: the index knew version {state.version}, the journal ends at {p.version}")
    if state.token != p.token:
        problems.append(f"its index row has fencing token {state.token}, the facts have {p.token}")
    expected = facts_state(p, p.submitted_us)
    if (state.status in TERMINAL) != (p.ended is not None) or (p.ended is not None and state.status != expected.status):
        problems.append(f"its index row says {state.status}, the facts say {expected.status}")
    if state.status not in STATUSES:
        problems.append(f"its index row says {state.status!r}, which is no status")
    latest_us = max(expected.due_us or 0, now_us) + _TROUBLE_US
    if state.status == "ready" and (state.due_us or 0) > latest_us:
        problems.append("its index row would have it wait longer than its facts do")
    if state.priority != p.priority and not state.worker and state.status != "corrupt":
        problems.append(f"its index row has priority {state.priority}, the facts have {p.priority}")
    noticed = not row.attention  # otherwise its owner has yet to take note
    if state.signature not in (b"", sign(p)[0]) and noticed:
        problems.append("its index row says that other steps are behind it than its facts do")
    if state.canceling != (p.cancel is not None) and noticed:
        problems.append("its index row and its facts differ on whether it is being canceled")
    if state.status == "held" and p.held is None and noticed:
        problems.append("its index row says held, the facts do not")
    # Who picked it has yet to claim it, and leaves it to others in dying; whether it stands in line is seen later.
    nobodys = not state.worker and not row.waiting and not state.reason.startswith(FOR_A_LIMIT)
    if state.status == "ready" and state.due_us is None and expected.due_us is not None and nobodys:
        problems.append("it waits for a worker and has no due time")
    return problems


async def _in_vain(store: Store, loaded: LoadedRun) -> list[Finding]:
    """Whether a run waits for others, and the store would not wake it [R-16]."""
    row = loaded.row
    if row.state.status != "ready" or row.state.due_us is not None or row.state.worker:
        return []
    rest = resting(await projected(store, loaded))
    if not isinstance(rest, Parked) or not rest.awaits:
        return []
    ended = 0
    for run_id in rest.awaits:
        target = await store.load(run_id)
        gone = target is None and await store.journal_of(run_id) is None
        ended += gone or (target is not None and target.row.ended_us is not None)
    again = await store.load(row.run.run_id)  # what ended in between is counted there
    if again is None or again.row.state != row.state:
        return []
    left = again.row.left
    if left is not None and (left <= 0 or ended < rest.need):
        return []
    return [Finding(row.run.run_id, 0, "it waits for other runs, and would not be woken; hold and release it")]
