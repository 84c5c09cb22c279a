"""The small tables: deployments, holds of pipelines, schedules [D-4, R-14, R-17]."""

from __future__ import annotations

import msgspec

from perdure.ports.store import Deployment, PipelineHold, ScheduleState
from perdure.storage.postgres import limits
from perdure.storage.postgres.place import Place
from perdure.storage.postgres.session import Session

# --- the registry


async def deployments(session: Session, pipeline: str | None) -> list[Deployment]:
    """Oldest first."""
    found = await session.rows(
        "SELECT pipeline, generation, digest, steps, at_us, actor FROM @deployment "
        "WHERE %(pipeline)s::text IS NULL OR pipeline = %(pipeline)s ORDER BY number",
        {"pipeline": pipeline},
    )
    return [Deployment(*row) for row in found]


async def deploy(session: Session, new: Deployment) -> bool:
    """Insert unless that generation exists."""
    values = (new.pipeline, new.generation, new.digest, new.steps, new.at_us, new.actor)
    return (
        await session.run(
            "INSERT INTO @deployment (pipeline, generation, digest, steps, at_us, actor) "
            "VALUES (%s, %s, %s, %s, %s, %s) ON CONFLICT DO NOTHING",
            values,
        )
        == 1
    )


# --- holds

_HOLD_COLUMNS = "pipeline, actor, note, at_us, released_us, released_by, release_note"


async def hold(session: Session, place: Place, new: PipelineHold) -> bool:
    """Insert unless the pipeline is held already."""
    statement = (
        "INSERT INTO @pipeline_hold (pipeline, actor, note, at_us) VALUES (%s, %s, %s, %s) ON CONFLICT DO NOTHING"
    )
    held = await session.run(statement, (new.pipeline, new.actor, new.note, new.at_us)) == 1
    if held:
        await limits.give_back(session, place, new.pipeline)
    return held


async def release(session: Session, place: Place, pipeline: str, actor: str, note: str, at_us: int) -> bool:
    """End the hold of a pipeline, if it has one; it stays on record."""
    statement = (
        "UPDATE @pipeline_hold SET released_us = %s, released_by = %s, release_note = %s "
        "WHERE pipeline = %s AND released_us = 0"
    )
    released = await session.run(statement, (at_us, actor, note, pipeline)) == 1
    if released:
        await limits.mend(session, place, at_us)
    return released


async def holds(session: Session, history: bool) -> list[PipelineHold]:
    """Holds in force, or all there ever were, oldest first."""
    where = "" if history else "WHERE released_us = 0"
    found = await session.rows(f"SELECT {_HOLD_COLUMNS} FROM @pipeline_hold {where} ORDER BY number")
    return [PipelineHold(*row) for row in found]


# --- schedules

_FIELDS = tuple(ScheduleState.__struct_fields__)
_COLUMNS = ", ".join(_FIELDS)
_INSERT = f"INSERT INTO @schedule ({_COLUMNS}) VALUES ({', '.join(['%s'] * len(_FIELDS))}) ON CONFLICT DO NOTHING"
_UPDATE = (
    f"UPDATE @schedule SET {', '.join(f'{field} = %s' for field in _FIELDS)} "
    f"WHERE {' AND '.join(f'{field} = %s' for field in _FIELDS)}"
)


async def schedules(session: Session) -> list[ScheduleState]:
    """All there are, by id."""
    return [ScheduleState(*row) for row in await session.rows(f"SELECT {_COLUMNS} FROM @schedule ORDER BY id")]


async def put_schedule(session: Session, new: ScheduleState, known: ScheduleState | None) -> bool:
    """Write `new` in the place of `known`, if that still stands there."""
    values = msgspec.structs.astuple(new)
    if known is None:
        return await session.run(_INSERT, values) == 1
    return new.id == known.id and await session.run(_UPDATE, values + msgspec.structs.astuple(known)) == 1
