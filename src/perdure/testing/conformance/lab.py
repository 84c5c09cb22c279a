"""What a check of the suite works with: stores on the same data, and well-formed appends."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias, TypeVar

import msgspec

from perdure.core.chain import chain_hash
from perdure.core.facts import Fact, OperationReserved, OperationSucceeded, RunSubmitted, SegmentAttemptStarted
from perdure.errors import StoreUnavailable
from perdure.ports.store import (
    Append,
    AppendResult,
    Committed,
    IndexState,
    JournalRow,
    LoadedRun,
    NewRun,
    Store,
)

T = TypeVar("T")

T0 = 1_700_000_000_000_000
"""Time of the first append of every run of the suite, in microseconds."""

DEADLINE_S = 20.0
"""How long anything may take before a check fails instead of hanging."""

READY = IndexState("ready", due_us=T0)
ENDED = IndexState("succeeded")


def owned(token: int = 1, worker: str = "w1") -> IndexState:
    """The state of a run that `worker` has claimed."""
    return IndexState("running", worker=worker, token=token, generation=1)


def expect(actual: object, wanted: object, what: str) -> None:
    """Fail unless both are equal.

    Raises:
        AssertionError: naming what was looked at, what was wanted and what was found.
    """
    if actual != wanted:
        raise AssertionError(f"{what}: wanted {wanted!r}, found {actual!r}")


def expect_type(actual: object, wanted: type[T], what: str) -> T:
    """Fail unless `actual` is of that type; give it back.

    Raises:
        AssertionError: as `expect`.
    """
    if not isinstance(actual, wanted):
        raise AssertionError(f"{what}: wanted {wanted.__name__}, found {actual!r}")
    return actual


async def expect_unavailable(call: Callable[[], Awaitable[object]], what: str) -> None:
    """Fail unless the call raises `StoreUnavailable`.

    Raises:
        AssertionError: it did not.
    """
    try:
        found = await asyncio.wait_for(call(), DEADLINE_S)
    except StoreUnavailable:
        return
    raise AssertionError(f"{what}: wanted StoreUnavailable, found {found!r}")


class Lab:
    """Gives a check its stores, and closes them after it.

    Args:
        make: gives a new, unopened store on the same data at every call, as processes that open one URL would.
    """

    def __init__(self, make: Callable[[], Store]) -> None:
        self._make = make
        self._open: list[Store] = []

    async def engine(self, worker: str = "w1") -> Store:
        """A store opened as its owner."""
        return await self._opened(worker)

    async def client(self) -> Store:
        """A store opened beside the owner."""
        return await self._opened(None)

    def unopened(self) -> Store:
        """A store that the check opens itself; closed after it."""
        store = self._make()
        self._open.append(store)
        return store

    async def reopened(self, store: Store, worker: str = "w1") -> Store:
        """Close an engine's store and open a new one on the same data."""
        await store.close()
        return await self.engine(worker)

    async def close(self) -> None:
        """Close everything that is still open."""
        for store in self._open:
            await store.close()

    async def _opened(self, owner: str | None) -> Store:
        store = self.unopened()
        await store.open(owner=owner)
        return store


Check: TypeAlias = Callable[[Lab], Awaitable[None]]
"""One check of the suite. Raises `AssertionError` where the store breaks the contract."""


def part(checks: list[Check]) -> Callable[[Check], Check]:
    """A decorator that adds a function to a part of the suite."""

    def add(function: Check) -> Check:
        checks.append(function)
        return function

    return add


class Draft:
    """One run as an engine writes it: builds appends that follow its tail.

    Args:
        run_id: ids of the suite sort by their text, as real ones do.
        slot: slot key; the resource is the same.
        once: the slot stays taken.
        input: what the run is about; two drafts with equal input have equal digests.
        annotations: labels of the run.
    """

    def __init__(
        self,
        run_id: str,
        *,
        pipeline: str = "payout",
        tenant: str = "default",
        slot: str | None = None,
        once: bool = False,
        input: str = "{}",
        submitted_us: int = T0,
        annotations: dict[str, str] | None = None,
    ) -> None:
        digest = hashlib.sha256(input.encode()).digest()
        labels = tuple(sorted((annotations or {}).items()))
        self.new = NewRun(
            run_id, tenant, pipeline, slot or run_id, slot, once, digest, submitted_us, annotations=labels
        )
        self.run_id = run_id
        self.locator = 0
        self.rows: list[JournalRow] = []
        self._input = input
        self._appends = 0

    @property
    def tail(self) -> int:
        """First sequence of the last row, 0 before the first."""
        return self.rows[-1].first_seq if self.rows else 0

    def submit(self, state: IndexState = READY, token: int = 0) -> Append:
        """The first append."""
        new = self.new
        fact = RunSubmitted(
            self.run_id,
            new.pipeline,
            msgspec.Raw(self._input.encode()),
            new.input_digest.hex(),
            new.resource,
            new.tenant,
            annotations=dict(new.annotations),
        )
        return self._append((fact,), new.submitted_us, token, new, state)

    def claim(self, token: int = 1, worker: str = "w1") -> Append:
        """The append of a claim with its first reservation."""
        facts = (SegmentAttemptStarted(token, worker, 1), OperationReserved("reserve/v1", 1))
        return self.next(*facts, token=token, index=owned(token, worker))

    def next(
        self, *facts: Fact, token: int = 0, index: IndexState | None = None, at_us: int = 0, after: int | None = None
    ) -> Append:
        """An append that follows the tail, or the row with index `after`."""
        rows = self.rows if after is None else self.rows[: after + 1]
        facts = facts or (OperationSucceeded("reserve/v1", 1, msgspec.Raw('{"hold":"Ä→😀"}'.encode())),)
        return self._append(facts, at_us or T0 + len(rows), token, None, index, rows)

    def _append(
        self,
        facts: Sequence[Fact],
        at_us: int,
        token: int,
        new: NewRun | None,
        index: IndexState | None,
        rows: Sequence[JournalRow] = (),
    ) -> Append:
        last = rows[-1] if rows else None
        first_seq = 1 if last is None else last.first_seq + last.count
        prev_seq, prev_hash = (0, b"") if last is None else (last.first_seq, last.hash)
        self._appends += 1
        append_id = hashlib.sha256(f"{self.run_id} {self._appends}".encode()).digest()[:16]
        text = msgspec.json.encode(facts)
        digest = chain_hash(prev_hash, first_seq, len(facts), at_us, append_id, text)
        return Append(
            self.run_id,
            0 if new is not None else self.locator,
            first_seq,
            len(facts),
            at_us,
            append_id,
            text,
            digest,
            prev_seq,
            prev_hash,
            token,
            new,
            index,
        )

    def accept(self, append: Append, result: AppendResult) -> None:
        """Remember a committed append as the tail."""
        self.locator = expect_type(result, Committed, f"append at {append.first_seq} of {self.run_id}").locator
        self.rows.append(
            JournalRow(append.first_seq, append.count, append.at_us, append.append_id, append.hash, append.facts)
        )


async def put(store: Store, draft: Draft, append: Append) -> None:
    """Append and insist that it is committed."""
    draft.accept(append, await asyncio.wait_for(store.append(append), DEADLINE_S))


async def submitted(store: Store, run_id: str, state: IndexState = READY, *, slot: str | None = None) -> Draft:
    """A run with its first append."""
    draft = Draft(run_id, slot=slot)
    await put(store, draft, draft.submit(state))
    return draft


async def claimed(store: Store, run_id: str, *, slot: str | None = None) -> Draft:
    """A run that worker w1 owns with token 1."""
    draft = await submitted(store, run_id, slot=slot)
    await put(store, draft, draft.claim())
    return draft


async def ended(store: Store, run_id: str, at_us: int = T0 + 10) -> Draft:
    """A run that has succeeded at `at_us`."""
    draft = await claimed(store, run_id)
    await put(store, draft, draft.next(token=1, index=ENDED, at_us=at_us))
    return draft


async def loaded(store: Store, draft: Draft) -> LoadedRun:
    """The run as the store reads it; it must be there."""
    return expect_type(await store.load(draft.run_id), LoadedRun, f"load of {draft.run_id}")


async def expect_journal(store: Store, draft: Draft) -> LoadedRun:
    """Fail unless the stored journal is exactly the accepted appends, byte for byte."""
    run = expect_type(await store.load_all_rows(draft.run_id), LoadedRun, f"all rows of {draft.run_id}")
    expect(run.rows, tuple(draft.rows), f"journal of {draft.run_id}")
    return run
