"""Lists and counts of runs, a few statements each. See `storage.listing`."""

from __future__ import annotations

from perdure.ports.listing import ListPlace, RunCounts, RunFilter, RunPage
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
)
from perdure.storage.postgres.packed import Int8s
from perdure.storage.postgres.rows import RUN_COLUMNS, read_run
from perdure.storage.postgres.session import Session

_HOLDS = "(slot_held AND ended_us IS NULL AND slot_key IS NOT NULL AND slot_key = resource)"
IN_INDEX = f"resource <> id AND {_HOLDS} IS NOT TRUE"
DIALECT = Dialect(
    resource="resource",
    named="resource",
    in_index=IN_INDEX,
    in_slots=f"slot_held AND slot_key IS NOT NULL AND {_HOLDS}",
    itself=f"resource = id AND {_HOLDS} IS NOT TRUE",
)
_ROW = "(SELECT * FROM @run WHERE n = {}.n_ OFFSET 0)"
"""The row of a window, looked up: a join would let the planner read all rows where it expects many."""


def _sql(text: str) -> str:
    return text.replace("?", "%s")


async def list_runs(
    session: Session, where: RunFilter, after: ListPlace | None, oldest_first: bool, limit: int
) -> RunPage:
    """See the port."""
    path = path_of(where, DIALECT)
    search = Search(after, limit)
    while search.window is not None:
        text, values = window_query(where, path, search.window, oldest_first)
        looked: Looked = [(at_us, n, fits) for at_us, n, fits in await session.rows(text, values)]
        search.take(looked)
    numbers = search.numbers
    if not numbers:
        return RunPage((), search.next)
    wanted = condition(where, DIALECT)  # again: this is another moment
    text = _sql(f"SELECT {RUN_COLUMNS} FROM @run r WHERE n = ANY (?) AND {wanted.sql}")
    found = {row[0]: read_run(row) for row in await session.rows(text, [Int8s(numbers), *wanted.values])}
    return RunPage(tuple(found[n] for n in numbers if n in found), search.next)


def window_query(where: RunFilter, path: Path, window: Window, oldest_first: bool) -> tuple[str, SqlValues]:
    """The statement of a window. Sizes stand in its text: a plan for any size would be one for a tenth of the table."""
    bound = bounds(where, path, window.after, oldest_first)
    way = "ASC" if oldest_first else "DESC"
    row = f"SELECT {path.at} AS at_us_, {path.number} AS n_"
    end = f"AND {bound.sql} ORDER BY {path.at} {way}, {path.number} {way} LIMIT {window.size}"
    parts: list[str] = []
    values: list[str | int] = []
    for stream in path.streams:
        parts.append(f"({row} FROM {path.table} r WHERE {stream.where} {end})")
        values += (*stream.values, *bound.values)
    for groups in path.groups:
        combinations, given = _combinations(groups)
        parts.append(f"""
            (SELECT s.* FROM ({combinations}) g CROSS JOIN LATERAL (
                {row} FROM {path.table} r WHERE {groups.fixed} AND {_same(groups)} {end}) s)
        """)
        values += (*given, *groups.values, *bound.values)
    wanted = condition(where, DIALECT)
    text = f"""
        SELECT w.at_us_, w.n_, {wanted.sql} FROM (
            SELECT * FROM ({" UNION ALL ".join(parts)}) u ORDER BY at_us_ {way}, n_ {way} LIMIT {window.size}
        ) w CROSS JOIN LATERAL {_ROW.format("w")} r ORDER BY w.at_us_ {way}, w.n_ {way}
    """
    return _sql(text), (*wanted.values, *values)


def _same(groups: Groups) -> str:
    return " AND ".join(f"{name} = g.{name}_" for name in groups.columns)


def _combinations(groups: Groups) -> tuple[str, SqlValues]:
    """Each combination of the columns, found by one step into their index."""
    names = ", ".join(groups.columns)
    named = ", ".join(f"{name} AS {name}_" for name in groups.columns)
    last = ", ".join(f"g.{name}_" for name in groups.columns)
    wanted = Condition()
    if groups.only:
        wanted.add(f"{groups.columns[-1]}_ IN ({', '.join('?' * len(groups.only))})", *groups.only)
    text = f"""
        WITH RECURSIVE g AS (
            (SELECT {named} FROM @run WHERE {groups.fixed} ORDER BY {names} LIMIT 1)
            UNION ALL SELECT l.* FROM g CROSS JOIN LATERAL (
                SELECT {named} FROM @run WHERE {groups.fixed} AND ({names}) > ({last}) ORDER BY {names} LIMIT 1) l
        ) SELECT * FROM g WHERE {wanted.sql}
    """
    return text, (*groups.values, *groups.values, *wanted.values)


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
    found: list[tuple[str, SqlValues, bool]] = []
    for stream in path.streams:
        text = f"""
            SELECT pipeline, status, count(*), count(*) FILTER (WHERE {wanted.sql}) FROM (
                SELECT {path.number} AS n_ FROM {path.table} r WHERE {stream.where} AND {bound.sql}
                ORDER BY {path.at} LIMIT {cap + 1}
            ) w CROSS JOIN LATERAL {_ROW.format("w")} r GROUP BY 1, 2
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
                CROSS JOIN LATERAL (SELECT n AS n_ {rows}) l CROSS JOIN LATERAL {_ROW.format("l")} r GROUP BY 1, 2
            """
            group = groups.columns[-1] == "status"
            found.append((_sql(text), (*wanted.values, *given, *groups.values, *bound.values), group))
    return found


async def ids_from(session: Session, prefix: str, limit: int) -> list[str]:
    """See the port."""
    values = (prefix, prefix + "\U0010ffff", limit)
    found = await session.rows("SELECT id FROM @run WHERE id >= %s AND id < %s ORDER BY id DESC LIMIT %s", values)
    return [row[0] for row in found]
