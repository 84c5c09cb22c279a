"""One group of appends inside one transaction: who wins, who loses and why.

First the index rows that the group is about to touch are locked, in the order of their numbers, so that two groups
never wait for each other and every statement after that sees what the locks protect. Then one statement inserts the
appends to known runs, another the new runs: the insert itself checks that the predecessor is there with the expected
hash and that the token is not stale, and the key (run, first sequence) checks that nobody was first [J-2, J-3]. Only
what inserted nothing is looked up. What needs more than that goes one by one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TypeAlias

from perdure.ports.records import claims, ends_from_outside
from perdure.ports.store import (
    TERMINAL,
    Append,
    AppendResult,
    Committed,
    Conflict,
    Fenced,
    Gone,
    IndexState,
    KeyUsed,
    NewRun,
    SlotTaken,
    WaitCycle,
)
from perdure.storage.postgres import awaits, entrances, keys, limits, mutexes, slots
from perdure.storage.postgres.entries import Entry, EntryResult, PutSnapshot, SetIndex, state_of
from perdure.storage.postgres.inserts import (
    APPEND,
    NEXT_COLUMNS,
    OWNED,
    SUBMIT,
    append_values,
    new_run_values,
    steps_statement,
)
from perdure.storage.postgres.packed import Int8s, Texts
from perdure.storage.postgres.place import Place
from perdure.storage.postgres.rows import (
    INSERT_LEDGERS,
    NEW_COLUMNS,
    NEW_VALUES,
    STATE_ASSIGNMENTS,
    STATE_COLUMNS,
    STATE_VALUES,
    ledger_values,
    new_values,
    state_values,
)
from perdure.storage.postgres.session import Session, Statements
from perdure.storage.postgres.workers import ALIVE


class SlotMoved(Exception):
    """A slot or a mutex was given back between the insert that met its holder and the look at it: the group is sent
    again."""


INSERT_RUN = f"""
    INSERT INTO @run ({NEW_COLUMNS}, ended_us, {STATE_COLUMNS}) SELECT {NEW_VALUES}, %s, {STATE_VALUES}
    WHERE %s OR {ALIVE} ON CONFLICT DO NOTHING RETURNING n
"""
INSERT_FIRST = f"INSERT INTO @journal ({NEXT_COLUMNS}) VALUES (%s, %s, %s, %s, %s, %s, %s)"
OWNED_RUN = f"SELECT 1 FROM @run r WHERE n = %s AND {OWNED}"
UPDATE_STATE = f"UPDATE @run SET {STATE_ASSIGNMENTS} WHERE n = %s"
UPDATE_END = f"UPDATE @run SET {STATE_ASSIGNMENTS}, ended_us = %s, slot_held = slot_held AND slot_once WHERE n = %s"
_AT_TAIL = """
    n = %s AND %s = coalesce((SELECT max(first_seq) FROM @journal WHERE run = n), 0)
    AND %s IN ('', (SELECT hash FROM @journal WHERE run = n ORDER BY first_seq DESC LIMIT 1))
"""
UPDATE_IF_AT_TAIL = f"UPDATE @run SET {STATE_ASSIGNMENTS} WHERE {_AT_TAIL} AND {ALIVE}"
ID_AT_TAIL = f"SELECT id FROM @run WHERE {_AT_TAIL}"
TAKE_BACK = "DELETE FROM @journal WHERE run = %s AND first_seq = %s"
FLAG_OWNED = f"UPDATE @run r SET attention = true WHERE n = %s AND {OWNED}"
PUT_SNAPSHOT = """
    INSERT INTO @snapshot
    SELECT * FROM (VALUES (%s, %s, %s, %s, %s, %s)) s (run, row_seq, row_hash, version, reducer, data)
    WHERE EXISTS (SELECT 1 FROM @journal j WHERE j.run = s.run AND j.first_seq = s.row_seq)
    ON CONFLICT (run) DO UPDATE SET row_seq = excluded.row_seq, row_hash = excluded.row_hash,
        version = excluded.version, reducer = excluded.reducer, data = excluded.data
"""
LOCK = """
    SELECT n FROM @run WHERE n = ANY (ARRAY(
        SELECT unnest(%(touched)s) UNION SELECT n FROM @run WHERE id = ANY (%(targets)s)
        UNION SELECT w.waiter FROM @run t JOIN @waiter w ON w.target = t.id WHERE t.n = ANY (%(ending)s)))
    ORDER BY n FOR NO KEY UPDATE
"""


async def apply_group(session: Session, place: Place, entries: Sequence[Entry]) -> list[EntryResult]:
    """Apply entries inside the caller's transaction; results in their order.

    Entries about one run are applied in the order in which they stand; appends to known runs come first.
    Any exception leaves the transaction of no use: the caller rolls back, and nothing was written.
    """
    await _lock(session, place, entries)
    ledgers = ledger_values(state_of(entry) for entry in entries)
    if ledgers is not None:  # before the rows that name them; one that comes with a refused entry stays until `reclaim`
        await session.run(INSERT_LEDGERS, ledgers)
    many, new, rest = _sorted(entries)
    results: list[EntryResult] = [False] * len(entries)
    if any(append.permits is not None for _, append in many):
        many = await limits.with_places(session, many, results)
    if many:
        await _append_many(session, many, results)
    if new:
        await _submit_many(session, new, results)
    for at, entry in rest:
        results[at] = await _apply(session, entry)
    return results


async def _lock(session: Session, place: Place, entries: Sequence[Entry]) -> None:
    """Index rows that will be written; runs that somebody is about to wait for, so that none ends unseen meanwhile;
    and runs that wait for one that is about to end."""
    touched: list[int] = []
    ending: list[int] = []
    targets: list[str] = []
    for entry in entries:
        state = state_of(entry)
        if state is not None and state.awaits:
            targets += state.awaits
        if type(entry) is PutSnapshot or (type(entry) is Append and entry.new is not None):
            continue
        takes = type(entry) is Append and entry.permits is not None
        if state is not None or takes or (type(entry) is Append and entry.token == 0):
            touched.append(entry.locator)
            if state is not None and state.status in TERMINAL:
                ending.append(entry.locator)
    if targets:  # two that are to wait for each other would not see each other
        await session.run("SELECT @queue_for(NULL, ARRAY[%s])", (place.key("awaits"),))
    if touched or targets:
        values = {"touched": Int8s(touched), "targets": Texts(sorted(set(targets))), "ending": Int8s(ending)}
        await session.run(LOCK, values)
    await limits.lock(session, place, entries)
    await mutexes.lock(session, (entry.new for entry in entries if type(entry) is Append))


Numbered: TypeAlias = list[tuple[int, Append]]


def _sorted(entries: Sequence[Entry]) -> tuple[Numbered, Numbered, list[tuple[int, Entry]]]:
    """Appends to known runs, plain new runs, and the rest."""
    per_run = Counter(entry.locator for entry in entries if type(entry) is not Append or entry.new is None)
    ids = Counter(entry.run_id for entry in entries if type(entry) is Append and entry.new is not None)
    many: Numbered = []
    new: Numbered = []
    rest: list[tuple[int, Entry]] = []
    for at, entry in enumerate(entries):
        if type(entry) is not Append:
            rest.append((at, entry))
        elif entry.new is not None:
            (new if ids[entry.run_id] == 1 and is_plain(entry, entry.new) else rest).append((at, entry))
        elif per_run[entry.locator] == 1 and not (
            entry.index is not None and (entry.index.awaits or entry.index.permits or ends_from_outside(entry))
        ):
            many.append((at, entry))
        else:
            rest.append((at, entry))
    return many, new, rest


def is_plain(append: Append, new: NewRun) -> bool:
    """Whether nothing but its slot decides about a new run, so that it may be inserted together with others."""
    state = append.index
    if append.key is not None or new.waits or new.mutexes or state is None:
        return False
    return state.status not in TERMINAL and not state.awaits and append.permits is None and not state.permits


async def _append_many(session: Session, sent: Numbered, results: list[EntryResult]) -> None:
    appends = [append for _, append in sent]
    sql, values = steps_statement(appends, session.worker)
    inserted = {row[0] for row in await session.rows(sql, values)}
    for at, append in sent:
        won = append.locator in inserted
        results[at] = Committed(append.locator) if won else await why_lost(session, append)


async def _submit_many(session: Session, sent: Numbered, results: list[EntryResult]) -> None:
    rows = await session.rows(SUBMIT, new_run_values([append for _, append in sent], session.worker))
    inserted: dict[str, int] = {row[0]: row[1] for row in rows}
    done = await entrances.let_in(session, inserted, [append.new for _, append in sent if append.new is not None])
    for at, append in sent:
        results[at] = done.get(append.run_id) or await _apply(session, append)


async def _apply(session: Session, entry: Entry) -> EntryResult:
    if type(entry) is Append:
        return await (_append(session, entry) if entry.new is None else submit(session, entry, entry.new))
    if type(entry) is SetIndex:
        return await _set_index(session, entry)
    if type(entry) is PutSnapshot:
        s = entry.snapshot
        values = (entry.locator, s.row_seq, s.row_hash, s.version, s.reducer, s.data)
        await session.run(PUT_SNAPSHOT, values)
        return True
    raise TypeError(f"not an entry of a group: {type(entry).__name__}")


async def _set_index(session: Session, entry: SetIndex) -> bool | WaitCycle:
    tail = (entry.locator, entry.tail_seq, entry.state.tail_hash)
    if entry.state.awaits:
        known = await session.one(ID_AT_TAIL, tail)
        if known is not None and await _closes_a_circle(session, known[0], entry.state):
            return WaitCycle()
    values = (*state_values(entry.state), *tail, session.worker, session.worker)
    await limits.keep(session, entry.locator, entry.state)
    if await session.run(UPDATE_IF_AT_TAIL, values) != 1:
        await limits.keep_no_more(session, entry.locator, entry.state)
        return False
    await awaits.register(session, entry.locator, entry.state, checked=True)
    await limits.stand_in_line(session, entry.locator, entry.state)
    return True


async def _closes_a_circle(session: Session, run_id: str, state: IndexState | None) -> bool:
    if state is None or not state.awaits or state.status != "ready":
        return False
    return await awaits.closes_a_circle(session, run_id, state.awaits)


async def _append(session: Session, append: Append) -> AppendResult:
    if not await session.rows(APPEND, append_values([append], session.worker)):
        return await why_lost(session, append)
    if ends_from_outside(append) and await session.one(OWNED_RUN, (append.locator,)) is not None:
        await session.run(TAKE_BACK, (append.locator, append.first_seq))
        return Conflict()
    if append.token and await _closes_a_circle(session, append.run_id, append.index):
        await session.run(TAKE_BACK, (append.locator, append.first_seq))
        return WaitCycle()
    if append.permits is not None:
        full = await limits.take_now(session, append.locator, append.permits)
        if full is not None:
            await session.run(TAKE_BACK, (append.locator, append.first_seq))
            return full
    if append.token == 0 and await session.run(FLAG_OWNED, (append.locator,)):
        return Committed(append.locator)
    state = append.index
    if state is not None and state.status in TERMINAL:
        await session.run(UPDATE_END, (*state_values(state), append.at_us, append.locator))
    elif state is not None:
        await limits.keep(session, append.locator, state)
        await session.run(UPDATE_STATE, (*state_values(state), append.locator))
        await awaits.register(session, append.locator, state, checked=append.token > 0)
        await limits.stand_in_line(session, append.locator, state)
    return Committed(append.locator)


async def submit(session: Statements, append: Append, new: NewRun) -> AppendResult:
    """One new run with all that may come with it. The key is given back if the run is refused."""
    if append.index is None:
        raise ValueError(f"run {append.run_id}: a new run needs an index state")
    known = await _known(session, append)
    if known is not None:
        return known
    if append.key is None and not append.permits and not new.mutexes and not new.entrances:
        return await _submit_here(session, append, new, append.index)
    await session.plain("SAVEPOINT submission")
    taken = None if append.key is None else await keys.take(session, append.key, append.at_us)
    try:
        if taken is not None:
            result: AppendResult = KeyUsed(taken.run_id, taken.input_digest)
        else:
            result = await _submit_here(session, append, new, append.index)
    except (SlotMoved, mutexes.MutexMoved):
        await session.plain("ROLLBACK TO SAVEPOINT submission")
        raise SlotMoved from None
    await session.plain(f"{'RELEASE' if isinstance(result, Committed) else 'ROLLBACK TO'} SAVEPOINT submission")
    return result


async def _known(session: Statements, append: Append) -> AppendResult | None:
    """The answer where a run of that id is there."""
    known = await session.one(
        "SELECT r.n, j.append_id FROM @run r LEFT JOIN @journal j ON j.run = r.n AND j.first_seq = 1 WHERE r.id = %s",
        (append.run_id,),
    )
    if known is None:
        return None
    return Committed(known[0]) if known[1] == append.append_id else Conflict()


async def _submit_here(session: Statements, append: Append, new: NewRun, state: IndexState) -> AppendResult:
    ended_us = append.at_us if state.status in TERMINAL else None
    held = new.slot_key is not None and not new.waits
    asked = (not claims(append), session.worker, session.worker)
    values = (*new_values(new, slot_held=held), ended_us, *state_values(state), *asked)
    found = await session.one(INSERT_RUN, values)
    if found is None:
        return await _why_not_new(session, append, new)
    locator: int = found[0]
    if new.mutexes or new.entrances:
        excluded = await mutexes.take(session, locator, new, ended=ended_us is not None)
        if excluded is not None:
            return excluded
    first = (append.first_seq, append.count, append.at_us, append.append_id, append.hash, append.facts.decode())
    await session.run(INSERT_FIRST, (locator, *first))
    if new.waits and new.slot_key is not None:
        await slots.grant_slot(session, new.slot_key, new.pipeline, new.tenant, append.at_us)
    await awaits.register(session, locator, state)
    if append.permits or state.permits:
        full = await limits.enter(session, locator, append.permits or (), state)
        if full is not None:
            return full
    if ended_us is not None:  # it had to win its slot nevertheless
        await session.run("UPDATE @run SET slot_held = slot_once WHERE n = %s AND slot_held", (locator,))
    return Committed(locator)


async def why_lost(session: Statements, append: Append) -> AppendResult:
    """In the order of J-3, after one's own: an append sent twice has been committed, whatever came later [J-14]."""
    place = (append.locator, append.first_seq)
    taken = await session.one("SELECT append_id FROM @journal WHERE run = %s AND first_seq = %s", place)
    if taken is not None and taken[0] == append.append_id:
        return Committed(append.locator)
    if taken is None and not await session.one("SELECT 1 FROM @journal WHERE run = %s LIMIT 1", (append.locator,)):
        return Gone()
    token = await session.number("SELECT token FROM @run WHERE n = %s", (append.locator,))
    if append.token and await _is_dead(session):
        return Fenced(max(token, append.token))
    return Fenced(token) if 0 < append.token < token else Conflict()


async def _is_dead(session: Statements) -> bool:
    """Whether somebody has found the engine dead in whose name this is written."""
    return await session.one(f"SELECT 1 WHERE {ALIVE}", (session.worker, session.worker)) is None


async def _why_not_new(session: Statements, append: Append, new: NewRun) -> AppendResult:
    known = await _known(session, append)  # its own insert may have waited for itself, sent before [J-14]
    if known is not None:
        return known
    if claims(append) and await _is_dead(session):
        return Fenced(1)
    holder = await session.one(
        "SELECT id, input_digest FROM @run WHERE slot_key = %s AND pipeline = %s AND tenant = %s AND slot_held",
        (new.slot_key, new.pipeline, new.tenant),
    )
    if holder is None:
        raise SlotMoved
    return SlotTaken(holder[0], holder[1])
