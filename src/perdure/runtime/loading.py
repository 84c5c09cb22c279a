"""From stored rows to a projection [J-8, J-11]. Pure, though it reads what the store port returns."""

from __future__ import annotations

import msgspec

from perdure.core.journal import fold_row
from perdure.core.projection import REDUCER_VERSION, Projection, dump, restore
from perdure.ports.store import JournalRow, LoadedRun, Snapshot

SNAPSHOT_AT_RELEASE = 50
"""Facts since the last snapshot that make a new one worth its write at release; shorter histories fold faster."""

SNAPSHOT_WHILE_RUNNING = 500
"""The same for a run that is not released, or half the history if that is more, so that snapshots stay linear."""


def project(loaded: LoadedRun) -> Projection:
    """Fold a run as loaded, from its snapshot if that is usable.

    Raises:
        CorruptJournal: the rows do not follow each other or do not match their hashes.
        NewerJournal: facts of a newer release [J-13].
    """
    run_id, locator = loaded.row.run.run_id, loaded.row.locator
    p = _from_snapshot(loaded.snapshot, locator) if loaded.snapshot is not None else None
    if p is None:
        p = Projection(run_id, locator)
    return fold_rows(p, loaded.rows)


def fold_rows(p: Projection, rows: tuple[JournalRow, ...]) -> Projection:
    """Check and fold rows in order into `p`."""
    for row in rows:
        fold_row(p, row.first_seq, row.count, row.at_us, row.append_id, row.hash, row.facts)
    return p


def _from_snapshot(snapshot: Snapshot, locator: int) -> Projection | None:
    try:
        return restore(snapshot.data, locator, snapshot.row_seq, snapshot.row_hash)
    except msgspec.MsgspecError:
        return None


def snapshot_of(p: Projection) -> Snapshot:
    """The projection as a snapshot of the last row folded into it."""
    return Snapshot(p.row_seq, p.row_hash, p.version, REDUCER_VERSION, dump(p))


def worth_a_snapshot(p: Projection, snapshot_version: int, *, released: bool) -> bool:
    """Whether enough facts came since the snapshot at `snapshot_version`."""
    since = p.version - snapshot_version
    if released:
        return since >= max(SNAPSHOT_AT_RELEASE, p.version // 2)
    return since >= max(SNAPSHOT_WHILE_RUNNING, p.version // 2)
