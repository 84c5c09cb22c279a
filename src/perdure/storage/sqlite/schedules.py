"""How far schedules have got: a small table, read when one ticks [R-14]."""

from __future__ import annotations

import sqlite3

import msgspec

from perdure.ports.store import ScheduleState

_FIELDS = tuple(ScheduleState.__struct_fields__)
_COLUMNS = ", ".join(_FIELDS)
_INSERT = f"INSERT INTO schedule ({_COLUMNS}) VALUES ({', '.join('?' * len(_FIELDS))}) ON CONFLICT DO NOTHING"
_UPDATE = (
    f"UPDATE schedule SET {', '.join(f'{field} = ?' for field in _FIELDS)} "
    f"WHERE {' AND '.join(f'{field} = ?' for field in _FIELDS)}"
)


def states(con: sqlite3.Connection) -> list[ScheduleState]:
    """All there are, by id."""
    return [ScheduleState(*row) for row in con.execute(f"SELECT {_COLUMNS} FROM schedule ORDER BY id")]


def put(con: sqlite3.Connection, new: ScheduleState, known: ScheduleState | None) -> bool:
    """Write `new` in the place of `known`, if that still stands there."""
    values = msgspec.structs.astuple(new)
    if known is None:
        return con.execute(_INSERT, values).rowcount == 1
    return new.id == known.id and con.execute(_UPDATE, values + msgspec.structs.astuple(known)).rowcount == 1
