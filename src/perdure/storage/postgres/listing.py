"""Lists and counts of runs, a few statements each. See `storage.listing`."""

from __future__ import annotations

import re

from msgspec.structs import replace

from perdure.ports.listing import ListPlace, RunCounts, RunFilter, RunPage
from perdure.ports.records import RunRow
from perdure.storage.listing import (
    LISTED,
    Condition,
    Dialect,
    Groups,
    Looked,
    Path,
    Search,
    SqlValues,
    Tally,
    Window,
    bounds,
    condition,
    path_of,
    waits_for,
)
from perdure.storage.postgres.rows import RUN_COLUMNS, read_run
from perdure.storage.postgres.session import Session

WAITING = "waits <> '' AND NOT slot_held AND ended_us IS NULL"
"""Which rows of `run` wait for their slot."""
WAITS_FOR = waits_for(WAITING)
"""What a run waits for, as an expression that an index has."""
_HOLDS = "(slot_held AND ended_us IS NULL AND slot_key IS NOT NULL AND slot_key = resource)"
IN_INDEX = f"resource <> id AND {_HOLDS} IS NOT TRUE"
DIALECT = Dialect(
    resource="resource",
    named="resource",
    in_index=IN_INDEX,
    in_slots=f"slot_held AND slot_key IS NOT NULL AND {_HOLDS}",
    itself=f"resource = id AND {_HOLDS} IS NOT TRUE",
    end_tells=True,
)
_ROW = "(SELECT * FROM @run WHERE n = {}.n_{} OFFSET 0)"
"""The row of a window, looked up: a join would let the planner read all rows where it expects many."""


def _sql(text: str) -> str:
    """What a run waits for is no column, but an expression that an index has."""
    return re.sub(r"\bwaits_for\b", f"({WAITS_FOR})", text).replace("?", "%s")


async def list_runs(
    session: Session, where: RunFilter, after: ListPlace | None, oldest_first: bool, limit: int
) -> RunPage:
    """See the port."""
    path = path_of(where, DIALECT)
    search = Search(path, after, limit)
    rows: dict[int, RunRow] = {}
    while search.window is not None:
        text, values = window_query(where, path, search.window, oldest_first, limit + 1)
        found = await session.rows(text, values)
        fitting = sorted([(row[3], row[4]) for row in found if row[4] is not None], reverse=not oldest_first)
        rows.update((row[4], read_run(row[4:])) for row in found if row[4] is not None)
        looked, last = (found[0][0], ListPlace(found[0][1], found[0][2])) if found else (0, None)
        search.take(Looked(looked, last, [ListPlace(at_us, n) for at_us, n in fitting]))
    return RunPage(tuple(rows[n] for n in search.numbers), search.next)


def window_query(where: RunFilter, path: Path, window: Window, oldest_first: bool, most: int) -> tuple[str, SqlValues]:
    """The statement of a window: how many rows it has, the last of them, and with each line one that fits.

    Sizes stand in its text: a plan for any size would be one for a tenth of the table.

    Args:
        most: of those that fit.
    """
    bound = bounds(where, path, window.after, oldest_first)
    way, back = ("ASC", "DESC") if oldest_first else ("DESC", "ASC")
    told = condition(path.told, DIALECT)
    row = f"SELECT {path.at} AS at_us_, {path.number} AS n_, {told.sql} AS told_"
    end = f"AND {bound.sql} ORDER BY {path.at} {way}, {path.number} {way} LIMIT {window.size}"
    parts: list[str] = []
    values: list[str | int] = []
    for stream in path.streams:
        parts.append(f"({row} FROM {path.table} r WHERE {stream.where} {end})")
        values += (*told.values, *stream.values, *bound.values)
    for groups in path.groups:
        combinations, given = _combinations(groups)
        parts.append(f"""
            (SELECT s.* FROM ({combinations}) g CROSS JOIN LATERAL (
                {row} FROM {path.table} r WHERE {groups.fixed} AND {_same(groups)} {end}) s)
        """)
        values += (*given, *told.values, *groups.values, *bound.values)
    wanted = condition(where, DIALECT)
    text = f"""
        WITH w AS (
            SELECT * FROM ({" UNION ALL ".join(parts)}) u ORDER BY at_us_ {way}, n_ {way} LIMIT {window.size}
        )
        SELECT s.rows_, s.at_us_, s.n_, f.* FROM (
            SELECT (SELECT count(*) FROM w) AS rows_, at_us_, n_ FROM w ORDER BY at_us_ {back}, n_ {back} LIMIT 1
        ) s LEFT JOIN (
            SELECT w.at_us_, {RUN_COLUMNS} FROM w CROSS JOIN LATERAL {_ROW.format("w", " AND w.told_")} r
            WHERE {wanted.sql} ORDER BY w.at_us_ {way}, w.n_ {way} LIMIT {most}
        ) f ON true
    """
    return _sql(text), (*values, *wanted.values)


def _same(groups: Groups) -> str:
    return " AND ".join(f"{name} = g.{name}_" for name in groups.columns)


def _combinations(groups: Groups) -> tuple[str, SqlValues]:
    """Each combination of the columns; those that are walked are found by one step into their index each."""
    values: SqlValues = ()
    sources: list[str] = []
    if groups.walked:
        names = ", ".join(groups.walked)
        named = ", ".join(f"{name} AS {name}_" for name in groups.walked)
        last = ", ".join(f"g.{name}_" for name in groups.walked)
        values = (*groups.values, *groups.values)
        sources.append(f"""
            (WITH RECURSIVE g AS (
                (SELECT {named} FROM @run WHERE {groups.fixed} ORDER BY {names} LIMIT 1)
                UNION ALL SELECT l.* FROM g CROSS JOIN LATERAL (
                    SELECT {named} FROM @run WHERE {groups.fixed} AND ({names}) > ({last}) ORDER BY {names} LIMIT 1) l
            ) SELECT * FROM g) walked
        """)
    if groups.listed:
        each = ", ".join(["(?::text)"] * len(groups.only))
        sources.append(f"(VALUES {each}) listed ({groups.listed}_)")
    return f"SELECT * FROM {' CROSS JOIN '.join(sources)}", (*values, *groups.only)


async def count_runs(session: Session, where: RunFilter, cap: int | None) -> RunCounts:
    """See the port."""
    wanted = condition(where, DIALECT)
    tally = Tally(cap)
    if cap is None:
        for owned in (LISTED, f"NOT ({LISTED})"):
            text = f"SELECT pipeline, status, 0, count(*) FROM @run r WHERE {owned} AND {wanted.sql} GROUP BY 1, 2"
            tally.add(_counted(await session.rows(_sql(text), wanted.values)), group=False)
        return tally.counts()
    for text, values, group in count_queries(where, path_of(where, DIALECT), cap):
        rows = _counted(await session.rows(text, values))
        for each in [[row] for row in rows] if group else [rows]:
            tally.add(each, group=group)
    return tally.counts()


def _counted(rows: list[tuple[str, str, int, int]]) -> list[tuple[str, str, int, int]]:
    return rows


def count_queries(where: RunFilter, path: Path, cap: int) -> list[tuple[str, SqlValues, bool]]:
    """The statements of a count up to `cap`; whether each row of an answer is a stream of its own."""
    bound = bounds(where, path, None, oldest_first=False)
    wanted = condition(where, DIALECT)
    ends = {"ended_after_us": where.ended_after_us, "ended_before_us": where.ended_before_us}
    if where.by_end and where == replace(path.told, **ends):
        return [_told_by_ends(path, bound, cap)]
    found: list[tuple[str, SqlValues, bool]] = []
    for stream in path.streams:
        text = f"""
            SELECT pipeline, status, count(*), count(*) FILTER (WHERE {wanted.sql}) FROM (
                SELECT {path.number} AS n_ FROM {path.table} r WHERE {stream.where} AND {bound.sql}
                ORDER BY {path.at} LIMIT {cap + 1}
            ) w CROSS JOIN LATERAL {_ROW.format("w", "")} r GROUP BY 1, 2
        """
        found.append((_sql(text), (*wanted.values, *stream.values, *bound.values), False))
    for groups in path.groups:
        combinations, given = _combinations(groups)
        rows = (
            f"FROM @run r WHERE {groups.fixed} AND {_same(groups)} AND {bound.sql} ORDER BY {path.at} LIMIT {cap + 1}"
        )
        if path.decided:
            pipeline: SqlValues = () if where.pipeline is None else (where.pipeline,)
            text = f"""
                SELECT {"?" if pipeline else "g.pipeline_"}, g.status_, c.number, c.number FROM ({combinations}) g
                CROSS JOIN LATERAL (SELECT count(*) AS number FROM (SELECT 1 {rows}) l) c
            """
            found.append((_sql(text), (*pipeline, *given, *groups.values, *bound.values), True))
        else:
            text = f"""
                SELECT r.pipeline, r.status, count(*), count(*) FILTER (WHERE {wanted.sql}) FROM ({combinations}) g
                CROSS JOIN LATERAL (SELECT n AS n_ {rows}) l CROSS JOIN LATERAL {_ROW.format("l", "")} r GROUP BY 1, 2
            """
            group = groups.columns[-1] == "status"
            found.append((_sql(text), (*wanted.values, *given, *groups.values, *bound.values), group))
    return found


def _told_by_ends(path: Path, bound: Condition, cap: int) -> tuple[str, SqlValues, bool]:
    """A count along the index by end, where that tells all that is asked for: no row is looked up."""
    told = condition(path.told, DIALECT)
    text = f"""
        SELECT pipeline, status, count(*), count(*) FILTER (WHERE told_) FROM (
            SELECT pipeline, status, {told.sql} AS told_ FROM @run r WHERE {path.streams[0].where} AND {bound.sql}
            ORDER BY ended_us LIMIT {cap + 1}
        ) w GROUP BY 1, 2
    """
    return _sql(text), (*told.values, *bound.values), False


async def ids_from(session: Session, prefix: str, limit: int) -> list[str]:
    """See the port."""
    values = (prefix, prefix + "\U0010ffff", limit)
    found = await session.rows("SELECT id FROM @run WHERE id >= %s AND id < %s ORDER BY id DESC LIMIT %s", values)
    return [row[0] for row in found]
