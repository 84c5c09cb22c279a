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

from perdure.ports.store import Append, AppendResult, Change, Committed
from perdure.storage.postgres import lone, telling
from perdure.storage.postgres.entries import Entry, told
from perdure.storage.postgres.group import is_plain
from perdure.storage.postgres.inserts import APPEND, RESTS, SUBMIT, append_values, new_run_values, rest_values
from perdure.storage.postgres.jobs import Job, Work
from perdure.storage.postgres.packed import Packed
from perdure.storage.postgres.place import Place
from perdure.storage.postgres.rows import INSERT_LEDGERS, ledger_values
from perdure.storage.postgres.wire import Statement


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
        steps: appends to known runs, each run once, that change no index row.
        rests: those that do, because their runs rest, end, or are claimed.
        new: new runs, each once.
        ledgers: values of `INSERT_LEDGERS`, if there are any.
        change: what others have to hear of it.
    """

    steps: list[Append]
    rests: list[Append]
    new: list[Append]
    ledgers: list[Packed] | None
    change: Change | None

    @classmethod
    def of(cls, jobs: Sequence[Job]) -> Single:
        """The group of such jobs."""
        entries = [job[1] for job in jobs if type(job[1]) is Append]
        return cls(
            [entry for entry in entries if entry.new is None and entry.index is None],
            [entry for entry in entries if entry.new is None and entry.index is not None],
            [entry for entry in entries if entry.new is not None],
            ledger_values([entry.index for entry in entries if entry.index is not None]),
            told(entries),
        )


def statements(group: Single, worker: str, place: Place, teller: str) -> list[Statement]:
    """What a group says to the server: one transaction.

    Args:
        worker: in whose name.
        teller: in whose name others are told, where they have to be.
    """
    said: list[Statement] = [] if group.ledgers is None else [(INSERT_LEDGERS, group.ledgers)]
    alone = len(group.steps) + len(group.rests) + len(group.new) == 1
    news, told = telling.news(group.change, place.channel, teller)
    also = (news, told) if alone else (telling.NOBODY, ())
    if len(group.steps) == 1:
        said.append(lone.step(group.steps[0], worker))
    elif group.steps:
        said.append((APPEND, append_values(group.steps, worker)))
    if len(group.rests) == 1 and (state := group.rests[0].index) is not None:
        said.append(lone.rest(group.rests[0], state, worker, *also))
    elif group.rests:
        said.append((RESTS, rest_values(group.rests, worker)))
    if len(group.new) == 1 and (new := group.new[0].new) is not None and (state := group.new[0].index) is not None:
        said.append(lone.new_run(group.new[0], new, state, worker, *also))
    elif group.new:
        said.append((SUBMIT, new_run_values(group.new, worker)))
    if news and not alone:
        said.append((f"SELECT {news}", told))
    return said


def results(group: Single, answers: Sequence[PGresult]) -> dict[str, AppendResult]:
    """By run, those that were committed. Who is not among them inserted nothing, and has to learn why."""
    committed: dict[str, AppendResult] = {}
    left = iter(answers if group.ledgers is None else answers[1:])
    for sent in filter(None, (group.steps, group.rests)):
        found = next(left)
        if found.ntuples == len(sent):
            committed.update([(append.run_id, Committed(append.locator)) for append in sent])
        else:
            won = {_number(found, at, 0) for at in range(found.ntuples)}
            committed.update([(a.run_id, Committed(a.locator)) for a in sent if a.locator in won])
    if group.new:
        found = next(left)
        for at in range(found.ntuples):
            committed[(found.get_value(at, 0) or b"").decode()] = Committed(_number(found, at, 1))
    return committed


def _number(found: PGresult, row: int, column: int) -> int:
    return int.from_bytes(found.get_value(row, column) or b"", "big")
