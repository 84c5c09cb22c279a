"""Groups that go in one round trip, instead of five: most of them [J-12].

Most groups are steps of owned runs, ends of some among them, and runs that nothing but their slots decides about. No
row is locked beforehand, as in other groups: whatever comes in between has either inserted the same journal key or the
same run, and then one of both has inserted nothing [J-2, J-3]; or it has changed an index row that we write, too, and
then one waits for the other. Index rows are written in the order of their numbers, as they are locked elsewhere. Who
waits for whom in a circle nevertheless, runs into the time limit for locks, and goes as other groups do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from psycopg.pq.abc import PGresult

from perdure.ports.store import Append, AppendResult, Committed, NewRun
from perdure.storage.postgres.entries import Entry, wakes_others
from perdure.storage.postgres.group import is_plain
from perdure.storage.postgres.inserts import (
    APPEND_KINDS,
    FITS,
    NEXT_COLUMNS,
    STATE_KINDS,
    SUBMIT,
    SUBMIT_KINDS,
    append_values,
    new_run_values,
    one_row,
    steps_statement,
    submitting,
    with_state,
)
from perdure.storage.postgres.jobs import Job, Work
from perdure.storage.postgres.packed import Packed
from perdure.storage.postgres.place import Place
from perdure.storage.postgres.rows import INSERT_LEDGERS, ledger_values, new_values, state_values
from perdure.storage.postgres.wire import Statement, WireValue
from perdure.storage.postgres.workers import ALIVE

_STEP = f"""
    INSERT INTO @journal ({NEXT_COLUMNS})
    SELECT {NEXT_COLUMNS} FROM {one_row(APPEND_KINDS)} s ({NEXT_COLUMNS}, prev_seq, prev_hash, token)
    WHERE {FITS} AND {ALIVE} ON CONFLICT DO NOTHING RETURNING run
"""
_STEP_WITH_STATE = with_state(one_row(STATE_KINDS))
_NEW_RUN = submitting(one_row(SUBMIT_KINDS, "1"))
_TELL = "SELECT pg_notify(%s, %s)"


def divide(jobs: Sequence[Job], aside: Callable[[Job], bool]) -> tuple[list[Job], list[Job]]:
    """Which of what is queued goes in one round trip, and what does not, or comes after such a thing of the same run.

    Args:
        aside: whether somebody waits already for what a job wants; then it does not go so, either.
    """
    quick = [job for job in jobs if is_single(job[1]) and not aside(job)]
    runs = {_run(job[1]) for job in quick}
    if len(quick) == len(jobs) == len(runs):
        return quick, []
    taken = set(map(id, quick))
    seen = {_run(job[1]) for job in jobs if id(job) not in taken}
    parted: tuple[list[Job], list[Job]] = ([], [])
    for job in jobs:
        run = _run(job[1])
        parted[run in seen].append(job)
        seen.add(run)
    return parted


def is_single(entry: Entry | Work) -> bool:
    """Whether nothing but what is written decides about an entry, and nothing has to be locked for it beforehand."""
    if type(entry) is not Append or entry.permits is not None:
        return False
    state = entry.index
    if state is not None and (state.awaits or state.permits):
        return False
    if entry.new is None:
        return entry.token > 0
    return is_plain(entry, entry.new) and not entry.new.entrances


def _run(entry: Entry | Work) -> str | int | None:
    if isinstance(entry, Work):
        return None
    return entry.run_id if type(entry) is Append and entry.new is not None else entry.locator


class Single(msgspec.Struct, frozen=True, gc=False):
    """A group that goes in one round trip.

    Attributes:
        steps: appends to known runs, each run once.
        new: new runs, each once.
        ledgers: values of `INSERT_LEDGERS`, if there are any.
        tells: others have to hear of it.
    """

    steps: list[Append]
    new: list[Append]
    ledgers: list[Packed] | None
    tells: bool

    @classmethod
    def of(cls, jobs: Sequence[Job]) -> Single:
        """The group of such jobs."""
        entries = [job[1] for job in jobs if type(job[1]) is Append]
        return cls(
            [entry for entry in entries if entry.new is None],
            [entry for entry in entries if entry.new is not None],
            ledger_values([entry.index for entry in entries if entry.index is not None]),
            any(map(wakes_others, entries)),
        )


def statements(group: Single, worker: str, place: Place, teller: str) -> list[Statement]:
    """What a group says to the server: one transaction.

    Args:
        worker: in whose name.
        teller: in whose name others are told, where they have to be.
    """
    said: list[Statement] = [] if group.ledgers is None else [(INSERT_LEDGERS, group.ledgers)]
    if len(group.steps) == 1:
        said.append(_one_step(group.steps[0], worker))
    elif group.steps:
        said.append(steps_statement(group.steps, append_values(group.steps, worker)))
    if len(group.new) == 1 and (new := group.new[0].new) is not None:
        said.append((_NEW_RUN, _one_new(group.new[0], new, worker)))
    elif group.new:
        said.append((SUBMIT, new_run_values(group.new, worker)))
    if group.tells:
        said.append((_TELL, (place.channel, teller)))
    return said


def results(group: Single, answers: Sequence[PGresult]) -> dict[str, AppendResult]:
    """By run, those that were committed. Who is not among them inserted nothing, and has to learn why."""
    committed: dict[str, AppendResult] = {}
    left = list(answers if group.ledgers is None else answers[1:])
    if group.steps:
        found = left.pop(0)
        if found.ntuples == len(group.steps):
            committed = {append.run_id: Committed(append.locator) for append in group.steps}
        else:
            won = {_number(found, at, 0) for at in range(found.ntuples)}
            committed = {a.run_id: Committed(a.locator) for a in group.steps if a.locator in won}
    if group.new:
        found = left.pop(0)
        for at in range(found.ntuples):
            committed[(found.get_value(at, 0) or b"").decode()] = Committed(_number(found, at, 1))
    return committed


def _number(found: PGresult, row: int, column: int) -> int:
    return int.from_bytes(found.get_value(row, column) or b"", "big")


def _one_step(append: Append, worker: str) -> Statement:
    before = (append.prev_seq, append.prev_hash, append.token)
    if append.index is None:
        return _STEP, (append.locator, *_facts(append), *before, worker, worker)
    return _STEP_WITH_STATE, (append.locator, *_facts(append), *before, *state_values(append.index), worker, worker)


def _one_new(append: Append, new: NewRun, worker: str) -> Sequence[WireValue]:
    state = () if append.index is None else state_values(append.index)
    return (*new_values(new, slot_held=new.slot_key is not None), *state, *_facts(append), worker, worker)


def _facts(append: Append) -> tuple[WireValue, ...]:
    return append.first_seq, append.count, append.at_us, append.append_id, append.hash, append.facts
