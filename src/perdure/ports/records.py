"""What goes into a store and comes out of it: the records of the store port."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from perdure.core.permits import Entrance, Permit
from perdure.ports.limits import NoRoom

RunStatus: TypeAlias = Literal["ready", "running", "held", "invalid", "corrupt", "succeeded", "failed", "canceled"]
"""Index status. `ready` with a due time ahead is a delayed start or a backoff. The last three are terminal."""

TERMINAL: frozenset[str] = frozenset({"succeeded", "failed", "canceled"})


class NewRun(msgspec.Struct, frozen=True, gc=False):
    """The columns of an index row that never change.

    Attributes:
        slot_key: what the slot is about; None where the run excludes nobody (slot `none`, or no resource given).
        slot_once: the slot stays taken after the run's end [R-5].
        input_digest: 32 bytes, see `RunSubmitted.input_digest`.
        deadline_us: 0 for none.
        waits: not empty for a run that may wait for its slot: it gets the slot as soon as it is free and nobody who
            waits for it came before [R-5]. See `Store.grant_slots`.
        annotations: labels to find it by, in the order of their keys; a run without any costs nothing more.
        mutexes: which it has for its resource until its end, sorted; only for writing, a row does not tell them [R-10].
        entrances: limits that have to have room for it until its end; likewise only for writing [R-11].
    """

    run_id: str
    tenant: str
    pipeline: str
    resource: str
    slot_key: str | None
    slot_once: bool
    input_digest: bytes
    submitted_us: int
    deadline_us: int = 0
    waits: Literal["", "queue", "replace"] = ""
    annotations: tuple[tuple[str, str], ...] = ()
    mutexes: tuple[str, ...] = ()
    entrances: tuple[Entrance, ...] = ()


class IndexState(msgspec.Struct, frozen=True, gc=False):
    """The columns of an index row that change, always written together.

    Attributes:
        status: see `RunStatus`.
        due_us: when the run wants a worker; None while owned, held, corrupt or ended.
        worker: the owner's id, empty while nobody owns the run.
        token: fencing token of the newest claim, 0 before the first.
        generation: greatest generation that advanced the run, 0 before the first claim [D-4].
        build: build id that judged the run invalid, else empty [D-2].
        reason: why it is held, invalid, failed or backing off; empty otherwise.
        canceling: a cancel was requested.
        step: the step it stands at, for people; empty when unknown.
        version, tail_hash: greatest sequence and hash of the last row, kept at release and at the end so that a lost
            tail shows [J-11]; 0 and b"" otherwise.
        signature: of the run's ledger while it rests, 16 bytes [D-6]; b"" while it is owned, after its end, and where
            its ledger is too long to share.
        ledger: the encoded ledger of that signature. Only for writing: a driver keeps it once for each signature, in
            the same transaction, gives it back with `ledgers`, and reads it as b"" here.
        priority: higher comes first where more runs are due than there are places, see `Store.due` [R-1].
        awaits: ids of runs that this one waits for: while it is `ready` it is due as soon as `need` of them have ended
            or are not there, in the transaction that ends one of them [R-16]; one whose index row is lost is there.
            Only for writing: read as (). Every write replaces what was awaited before, one of a terminal status by
            nothing; what else the store does to a row leaves it. A run that is awaited, also by a run that is held or
            invalid, is not removed [R-9].
        need: see `awaits`.
        at_us: when this is written, which is when the run is due if enough has ended by then, or its places are free; 0
            without `awaits` and `permits`.
        permits: places under limits that a run which is `ready` needs to go on, in the order in which they are taken:
            it has those that are free, up to the first that is not, and is due when that one is given to it, at the
            latest at `due_us`; at `at_us` if all are free; for a rate, when its turn comes. Whoever waits longest gets
            what becomes free, in the transaction that frees it [R-11, R-16]. Only for writing: read as (). With every
            write of a row that nobody owns, a run gives back the places of its operation that are not named here.
    """

    status: RunStatus
    due_us: int | None = None
    worker: str = ""
    token: int = 0
    generation: int = 0
    build: str = ""
    reason: str = ""
    canceling: bool = False
    step: str = ""
    version: int = 0
    tail_hash: bytes = b""
    signature: bytes = b""
    ledger: bytes = b""
    priority: int = 0
    awaits: tuple[str, ...] = ()
    need: int = 0
    at_us: int = 0
    permits: tuple[Permit, ...] = ()


class SubmissionKey(msgspec.Struct, frozen=True, gc=False):
    """A caller's idempotency key of a submission, and which run it stands for until it expires [R-5]."""

    tenant: str
    pipeline: str
    key: str
    run_id: str
    input_digest: bytes
    expires_us: int


class Append(msgspec.Struct, gc=False):
    """One append, complete: the driver stores it and decides nothing.

    Attributes:
        run_id: the run.
        locator: the store's own number of the run, as `Committed` or `load` gave it; 0 for a new run.
        first_seq: sequence number of the first fact; 1 for a new run.
        count: number of facts.
        at_us: time of all facts of the append.
        append_id: 16 bytes, random per append [J-14].
        facts: JSON array of the facts, UTF-8.
        hash: 32 bytes over the previous row's hash, first_seq, count, at_us, append_id and `facts`.
        prev_seq, prev_hash: first sequence and hash of the row that must precede it; 0 and b"" for a new run.
        token: fencing token of the owner; 0 for facts from outside [J-6, J-7], and for a new run, also where it comes
            with its claim: then its worker is asked for as an owner is, see `Store.bury`.
        new: for a new run its immutable columns.
        index: the new index state, or None where no column changes. From an owner (token > 0, or a new run) it is
            written as it stands and clears `attention`. From outside (token 0) it is written only if nobody owns
            the run at that moment; if somebody does, `attention` is set instead, also where `index` is None, and an
            append that would end the run is refused with `Conflict`: its owner may know better. A terminal status
            records `at_us` as the end and frees the slot unless `slot_once`; whoever waits for it gets it in the same
            transaction [R-16].
        key: for a new run the key it is submitted under: taken together with the run, or the answer is `KeyUsed`.
        permits: places under limits that the run has from this append on, all of them, or the answer is `LimitReached`;
            of those for an operation it has no others then. None: nothing changes. Places hang on the run: what it was
            given while it waited is its own; places of `in_flight` stay with it to its end [R-11].
    """

    run_id: str
    locator: int
    first_seq: int
    count: int
    at_us: int
    append_id: bytes
    facts: bytes
    hash: bytes
    prev_seq: int
    prev_hash: bytes
    token: int = 0
    new: NewRun | None = None
    index: IndexState | None = None
    key: SubmissionKey | None = None
    permits: tuple[Permit, ...] | None = None


def ends_from_outside(append: Append) -> bool:
    """Whether an append ends a run without being its owner's."""
    return append.token == 0 and append.new is None and append.index is not None and append.index.status in TERMINAL


def claims(append: Append) -> bool:
    """Whether an append submits a run and claims it: then it is its worker's, as what an owner appends [J-12, R-3]."""
    return append.new is not None and append.index is not None and append.index.token > 0


class Committed(msgspec.Struct, frozen=True, gc=False):
    """The append is durable."""

    locator: int


class SlotTaken(msgspec.Struct, frozen=True, gc=False):
    """A new run's slot is taken by `run_id`; nothing was written [R-5, M-1]."""

    run_id: str
    input_digest: bytes


class MutexTaken(msgspec.Struct, frozen=True, gc=False):
    """A mutex that a new run needs for its resource is taken by `run_id`, of `pipeline`; nothing was written [R-10]."""

    name: str
    run_id: str
    pipeline: str


class KeyUsed(msgspec.Struct, frozen=True, gc=False):
    """The submission's key stands for `run_id`, which may have ended; nothing was written [R-5]."""

    run_id: str
    input_digest: bytes


class Conflict(msgspec.Struct, frozen=True, gc=False):
    """Somebody appended first, or the predecessor is not there; nothing was written: re-read, re-plan [J-5]."""


class Fenced(msgspec.Struct, frozen=True, gc=False):
    """A newer claim exists (`token`); nothing was written: drop the run [J-3]."""

    token: int


class Gone(msgspec.Struct, frozen=True, gc=False):
    """The run does not exist (any more); nothing was written [J-2]."""


class WaitCycle(msgspec.Struct, frozen=True, gc=False):
    """An owner would make its run wait for one that waits for it, through however many; nothing was written [R-13].

    A circle goes through runs that are `ready` or `held` and to which not enough has ended yet. Whoever writes from
    outside, or puts an index row back, is not refused: the run is then due at `IndexState.at_us`, for an owner to see.
    """


class LimitReached(msgspec.Struct, frozen=True, gc=False):
    """A place that the append needs is not free; nothing was written: plan without it [R-11]."""

    limit: str
    key: str


AppendResult: TypeAlias = (
    LimitReached | Committed | SlotTaken | MutexTaken | NoRoom | KeyUsed | Conflict | Fenced | Gone | WaitCycle
)


class JournalRow(msgspec.Struct, frozen=True, gc=False):
    """One stored append, as it was written."""

    first_seq: int
    count: int
    at_us: int
    append_id: bytes
    hash: bytes
    facts: bytes


class Snapshot(msgspec.Struct, frozen=True, gc=False):
    """A stored projection. Used only if the row at `row_seq` has `row_hash`, which the driver sees to, and `reducer` is
    this release's, which the caller does.

    Attributes:
        row_seq: first sequence of the last row folded into it.
        row_hash: that row's hash.
        version: greatest sequence folded into it.
        reducer: version of the reducer that wrote it.
        data: the encoded projection.
    """

    row_seq: int
    row_hash: bytes
    version: int
    reducer: int
    data: bytes


class RunRow(msgspec.Struct, frozen=True, gc=False):
    """An index row as stored.

    Attributes:
        waiting: it has not ended, and waits for its slot.
        left: how many of the runs that it waits for have yet to end before it is due; None: it waits for none.
    """

    locator: int
    run: NewRun
    state: IndexState
    ended_us: int | None
    attention: bool
    waiting: bool = False
    left: int | None = None


class LoadedRun(msgspec.Struct, frozen=True, gc=False):
    """One consistent read of a run: index row, usable snapshot if any, and the rows after it in order."""

    row: RunRow
    snapshot: Snapshot | None
    rows: tuple[JournalRow, ...]


class EndedRun(msgspec.Struct, frozen=True, gc=False):
    """A run that retention may take [R-9]."""

    ended_us: int
    locator: int
    run_id: str


class RunTail(msgspec.Struct, frozen=True, gc=False):
    """A run as it was read: it is the same as long as its last journal row is this one.

    Attributes:
        seq, hash: first sequence and hash of the last row.
    """

    locator: int
    seq: int
    hash: bytes


class Deployment(msgspec.Struct, frozen=True, gc=False):
    """A topology made current at a time [D-4]. `steps` is `core.topology.encode_steps` output."""

    pipeline: str
    generation: int
    digest: str
    steps: bytes
    at_us: int
    actor: str


class PipelineHold(msgspec.Struct, frozen=True, gc=False):
    """An operator holds a whole pipeline, or did [R-17].

    Attributes:
        at_us: since when.
        released_us: 0 while it is in force.
    """

    pipeline: str
    actor: str
    note: str
    at_us: int
    released_us: int = 0
    released_by: str = ""
    release_note: str = ""


class WorkerRow(msgspec.Struct, frozen=True, gc=False):
    """An engine that works on a store, or did [R-3].

    Attributes:
        id: random per start; a worker that was found dead and goes on has another.
        host, process: where it runs, for people.
        since_us: when it started; seen_us: when it renewed last, by its own clock, for people.
        serves: pipelines, and the generation of each that it deploys [D-4].
        build: build id of its code.
        schedules: ids of the schedules that it looks after [R-14].
        beat: grows with every renewal.
        dead: another worker found it silent for a whole lease: it owns nothing any more.
        draining: it starts no more attempts [R-6].
        runs: how many runs are its own. Only for reading.
        lease_us: the length of its lease; 0 where one engine owns the store.
    """

    id: str
    host: str
    process: int
    since_us: int
    serves: dict[str, int] = {}
    build: str = ""
    schedules: tuple[str, ...] = ()
    beat: int = 0
    seen_us: int = 0
    dead: bool = False
    draining: bool = False
    runs: int = 0
    lease_us: int = 0


class ScheduleState(msgspec.Struct, frozen=True, gc=False):
    """How far a schedule has got [R-14]. Kept when no app has the schedule any more.

    Attributes:
        timetable: when it ticks, in words; see `define.timetable.timetable_of`.
        considered_us: ticks up to this time have been submitted, or passed over for good.
        tick_us, run_id: the last tick that was submitted, and its run; 0 and empty before the first.
        paused_us: since when an operator has it paused; 0 while it is not.
        actor, note: who paused or resumed it last, and why [M-16].
        removed_us: since when no app that started has it; 0 while one has.
    """

    id: str
    pipeline: str
    timetable: str
    considered_us: int
    tick_us: int = 0
    run_id: str = ""
    paused_us: int = 0
    actor: str = ""
    note: str = ""
    removed_us: int = 0


class LedgerCount(msgspec.Struct, frozen=True, gc=False):
    """Live runs of a pipeline with one ledger [D-6].

    Attributes:
        signature, ledger: both b"" for a run whose ledger the index does not know: it is owned, or its ledger is too
            long or lost. Such a run has an entry of its own, and is folded from its facts by who wants to know.
        example_run: the one among them that was submitted first; of those of one time, that of the least number.
        oldest_us: the earliest submission among them.
    """

    pipeline: str
    signature: bytes
    ledger: bytes
    count: int
    example_run: str
    oldest_us: int


class WaitingRuns(msgspec.Struct, frozen=True, gc=False):
    """Who waits for a slot.

    Attributes:
        count: runs that wait.
        superseded: ids of runs that hold or wait for a slot, were not asked to cancel, and came before a run that waits
            to replace them [R-5].
    """

    count: int
    superseded: tuple[str, ...]


class Trouble(msgspec.Struct, frozen=True, gc=False):
    """The store failed to commit and tries again in `retry_in_s` seconds; `fatal`: it gave up, so must the engine."""

    problem: str
    retry_in_s: float
    fatal: bool
