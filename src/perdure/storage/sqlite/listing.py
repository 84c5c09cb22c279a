"""Lists and counts of runs, each inside the caller's snapshot. See `storage.listing`."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

import msgspec

from perdure.ports.listing import ListPlace, RunCounts, RunFilter, RunPage
from perdure.storage.listing import (
    LISTED,
    Dialect,
    Groups,
    Looked,
    Path,
    Search,
    Stream,
    Tally,
    Window,
    bounds,
    condition,
    path_of,
)
from perdure.storage.sqlite.rows import RUN_COLUMNS, read_run

NAMED = "coalesce(resource, slot_key)"
IN_INDEX = f"{NAMED} IS NOT NULL AND NOT (slot_held = 1 AND ended_us IS NULL AND resource IS NULL)"
DIALECT = Dialect(
    resource="coalesce(resource, slot_key, id)",
    named=NAMED,
    in_index=IN_INDEX,
    in_slots="slot_held = 1 AND ended_us IS NULL AND resource IS NULL",
    itself=f"{NAMED} IS NULL",
    end_tells=False,
)


def _sql(text: str) -> str:
    return text.replace("@", "")


def list_runs(
    con: sqlite3.Connection, where: RunFilter, after: ListPlace | None, oldest_first: bool, limit: int
) -> RunPage:
    """See the port."""
    path = path_of(where, DIALECT)
    search = Search(path, after, limit)
    while search.window is not None:
        search.take(_window(con, where, path, search.window, oldest_first))
    numbers = search.numbers
    if not numbers:
        return RunPage((), search.next)
    rows = con.execute(f"SELECT {RUN_COLUMNS} FROM run WHERE n IN ({', '.join('?' * len(numbers))})", numbers)
    found = {row[0]: read_run(row) for row in rows}
    return RunPage(tuple(found[n] for n in numbers), search.next)


def _window(con: sqlite3.Connection, where: RunFilter, path: Path, window: Window, oldest_first: bool) -> Looked:
    bound = bounds(where, path, window.after, oldest_first)
    way = "ASC" if oldest_first else "DESC"
    found: list[tuple[int, int]] = []
    for stream, _ in _streams(con, path):
        found += con.execute(
            _sql(
                f"SELECT {path.at}, {path.number} FROM {path.table} r WHERE {stream.where} AND {bound.sql} "
                f"ORDER BY {path.at} {way}, {path.number} {way} LIMIT {window.size}"
            ),
            (*stream.values, *bound.values),
        )
    found.sort(reverse=not oldest_first)
    del found[window.size :]
    wanted = condition(where, DIALECT)
    fitting = _sql(f"SELECT n FROM run r WHERE n IN (SELECT value FROM json_each(?)) AND {wanted.sql}")
    numbers = msgspec.json.encode([n for _, n in found]).decode()
    fit = {row[0] for row in con.execute(fitting, (numbers, *wanted.values))}
    places = [ListPlace(at_us, n) for at_us, n in found]
    return Looked(len(found), places[-1] if places else None, [place for place in places if place.locator in fit])


def _streams(
    con: sqlite3.Connection, path: Path, pipeline: str | None = None
) -> Iterator[tuple[Stream, tuple[str, str] | None]]:
    """The streams of a path, those of its groups included, with the pipeline and status that a group is of.

    Args:
        pipeline: the one asked for.
    """
    for stream in path.streams:
        yield stream, None
    for groups in path.groups:
        equal = " AND ".join(f"{name} = ?" for name in groups.columns)
        for values in _combinations(con, groups):
            key = (pipeline or values[0], values[-1]) if groups.columns[-1] == "status" else None
            yield Stream(f"{groups.fixed} AND {equal}", (*groups.values, *values)), key


def _combinations(con: sqlite3.Connection, groups: Groups) -> Iterator[tuple[str, ...]]:
    """Each combination of the columns."""
    for walked in _walked(con, groups) if groups.walked else [()]:
        if groups.listed:
            yield from ((*walked, value) for value in groups.only)
        else:
            yield walked


def _walked(con: sqlite3.Connection, groups: Groups) -> Iterator[tuple[str, ...]]:
    """Each combination that is there, found by one step into the index.

    A comparison of whole rows would walk through all that are equal: so the last column moves on, then the one before.
    """
    columns = groups.walked
    names = ", ".join(columns)
    ask = _sql(f"SELECT {names} FROM @run WHERE {groups.fixed}{{}} ORDER BY {names} LIMIT 1")
    steps = [
        "".join(f" AND {name} = ?" for name in columns[:kept]) + f" AND {columns[kept]} > ?"
        for kept in range(len(columns) - 1, -1, -1)
    ]
    found: tuple[str, ...] | None = con.execute(ask.format(""), groups.values).fetchone()
    while found is not None:
        yield found
        last, found = found, None
        for i, step in enumerate(steps):
            found = con.execute(ask.format(step), (*groups.values, *last[: len(last) - i])).fetchone()
            if found is not None:
                break


def listed(con: sqlite3.Connection) -> list[tuple[str, str]]:
    """Each pipeline and status of which there are runs that nobody owns."""
    return [(values[0], values[1]) for values in _combinations(con, Groups(LISTED, (), ("pipeline", "status")))]


def count_runs(con: sqlite3.Connection, where: RunFilter, cap: int | None) -> RunCounts:
    """See the port."""
    wanted = condition(where, DIALECT)
    tally = Tally(cap)
    if cap is None:
        for owned in (LISTED, f"NOT ({LISTED})"):
            counted = f"SELECT pipeline, status, 0, count(*) FROM run r WHERE {owned} AND {wanted.sql} GROUP BY 1, 2"
            tally.add(con.execute(_sql(counted), wanted.values), group=False)
        return tally.counts()
    path = path_of(where, DIALECT)
    bound = bounds(where, path, None, oldest_first=False)
    for stream, group in _streams(con, path, where.pipeline):
        rows = f"FROM {path.table} r WHERE {stream.where} AND {bound.sql} LIMIT {cap + 1}"
        if group is not None and path.decided:
            looked = con.execute(_sql(f"SELECT count(*) FROM (SELECT 1 {rows})"), (*stream.values, *bound.values))
            number: int = looked.fetchone()[0]
            tally.add([(*group, number, number)], group=True)
        else:
            counted = (
                f"SELECT pipeline, status, count(*), sum({wanted.sql}) FROM (SELECT {path.number} AS k {rows}) w "
                "CROSS JOIN @run r ON r.n = w.k GROUP BY 1, 2"
            )
            values = (*wanted.values, *stream.values, *bound.values)
            tally.add(con.execute(_sql(counted), values), group=group is not None)
    return tally.counts()


def ids_from(con: sqlite3.Connection, prefix: str, limit: int) -> list[str]:
    """See the port."""
    found = con.execute(
        "SELECT id FROM run WHERE id >= ?1 AND id < ?2 ORDER BY id DESC LIMIT ?3",
        (prefix, prefix + "\U0010ffff", limit),
    )
    return [row[0] for row in found]
