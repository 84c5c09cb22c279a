"""From stored rows to a projection [J-8, J-11]. Pure, though it reads what the store port returns."""

from __future__ import annotations

import msgspec

from perdure.core.journal import fold_row
from perdure.core.projection import REDUCER_VERSION, Projection, dump, restore
from perdure.errors import CorruptJournal
from perdure.ports.joining import Journal
from perdure.ports.store import JournalRow, LoadedRun, Snapshot

SNAPSHOT_AT_RELEASE = 50
"""Facts since the last snapshot that make a new one worth its write at release; shorter histories fold faster."""

SNAPSHOT_WHILE_RUNNING = 500
"""The same for a run that is not released, or half the history if that is more, so that snapshots stay linear."""


async def projected(store: Journal, loaded: LoadedRun) -> Projection:
    """Fold a run as loaded, from its snapshot; from its first fact if this release cannot use that.

    Raises:
        CorruptJournal: the rows do not follow each other or do not match their hashes.
        NewerJournal: facts of a newer release [J-13].
        StoreUnavailable: the run had to be read from its first fact, and could not be.
    """
    try:
        return project(loaded)
    except UnusableSnapshot:
        whole = await store.load_all_rows(loaded.row.run.run_id)
        return project(loaded if whole is None else whole)


class UnusableSnapshot(Exception):  # a signal: read the whole run
    """The snapshot is of another release's reducer, or damaged; what is before it was not loaded."""


def project(loaded: LoadedRun) -> Projection:
    """As `projected`, of what was loaded alone.

    Raises:
        UnusableSnapshot: see there.
        CorruptJournal, NewerJournal: as `projected`.
    """
    if loaded.snapshot is None:
        p = Projection(loaded.row.run.run_id, loaded.row.locator)
    else:
        p = _from_snapshot(loaded.snapshot, loaded.row.locator)
    fold_rows(p, loaded.rows)
    if p.submitted is None:
        raise CorruptJournal(p.run_id, 0, "it has no facts")
    return p


def fold_rows(p: Projection, rows: tuple[JournalRow, ...]) -> Projection:
    """Check and fold rows in order into `p`."""
    for row in rows:
        fold_row(p, row.first_seq, row.count, row.at_us, row.append_id, row.hash, row.facts)
    return p


def _from_snapshot(snapshot: Snapshot, locator: int) -> Projection:
    if snapshot.reducer != REDUCER_VERSION:
        raise UnusableSnapshot
    try:
        return restore(snapshot.data, locator, snapshot.row_seq, snapshot.row_hash)
    except (msgspec.MsgspecError, ValueError):
        raise UnusableSnapshot from None


def snapshot_of(p: Projection) -> Snapshot:
    """The projection as a snapshot of the last row folded into it."""
    return Snapshot(p.row_seq, p.row_hash, p.version, REDUCER_VERSION, dump(p))


def worth_a_snapshot(p: Projection, snapshot_version: int, *, released: bool) -> bool:
    """Whether enough facts came since the snapshot at `snapshot_version`."""
    since = p.version - snapshot_version
    if released:
        return since >= max(SNAPSHOT_AT_RELEASE, p.version // 2)
    return since >= max(SNAPSHOT_WHILE_RUNNING, p.version // 2)
