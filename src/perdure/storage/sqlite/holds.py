"""Pipelines that an operator holds: a small table, which whoever looks for due runs asks first [R-17]."""

from __future__ import annotations

import sqlite3

from perdure.ports.store import PipelineHold
from perdure.storage.sqlite import limits

_COLUMNS = "pipeline, actor, note, at_us, released_us, released_by, release_note"


def hold(con: sqlite3.Connection, new: PipelineHold) -> bool:
    """Insert unless the pipeline is held already."""
    values = (new.pipeline, new.actor, new.note, new.at_us)
    statement = "INSERT INTO pipeline_hold (pipeline, actor, note, at_us) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING"
    held = con.execute(statement, values).rowcount == 1
    if held:
        limits.give_back(con, new.pipeline)
    return held


def release(con: sqlite3.Connection, pipeline: str, actor: str, note: str, at_us: int) -> bool:
    """End the hold of a pipeline, if it has one; it stays on record."""
    released = con.execute(
        "UPDATE pipeline_hold SET released_us = ?, released_by = ?, release_note = ? "
        "WHERE pipeline = ? AND released_us = 0",
        (at_us, actor, note, pipeline),
    ).rowcount
    if released:
        limits.mend(con, at_us)
    return released == 1


def holds(con: sqlite3.Connection, history: bool) -> list[PipelineHold]:
    """Holds in force, or all there ever were, oldest first."""
    where = "" if history else "WHERE released_us = 0"
    return [PipelineHold(*row) for row in con.execute(f"SELECT {_COLUMNS} FROM pipeline_hold {where} ORDER BY rowid")]


def held(con: sqlite3.Connection) -> list[str]:
    """Pipelines that are held now."""
    return [row[0] for row in con.execute("SELECT pipeline FROM pipeline_hold WHERE released_us = 0")]


def unless_held(con: sqlite3.Connection) -> tuple[str, list[str]]:
    """A condition on `run`, and its values, that leaves out runs of held pipelines; empty where nothing is held.

    Looking for due runs walks their index, and past those that are held: while many are, that is their price.
    """
    names = held(con)
    return (f" AND pipeline NOT IN ({', '.join('?' * len(names))})", names) if names else ("", names)
