"""What only the store in memory has: data that outlives it, groups by turns of the loop, an index to lose."""

from __future__ import annotations

import asyncio

from perdure.storage.memory import MemoryData, MemoryStore
from perdure.testing.conformance.lab import claimed, expect_journal, loaded, submitted


async def test_appends_of_one_turn_are_one_group() -> None:
    """Nothing is durable before the next turn of the loop, then everything of this turn is, at once."""
    data = MemoryData()
    store = MemoryStore(data)
    await store.open(owner="w1")
    drafts = [await submitted(store, f"run-{i}") for i in range(5)]
    before = data.commits
    appends = [draft.next() for draft in drafts]
    futures = [store.append(append) for append in appends]
    assert not any(future.done() for future in futures)
    assert data.commits == before
    await asyncio.sleep(0)
    assert data.commits == before + 1
    assert all(future.done() for future in futures)
    await store.close()


async def test_abort_loses_exactly_what_was_not_durable() -> None:
    """Before the turn ends an append is lost, after it the append is there although nobody was told [J-14]."""
    data = MemoryData()
    store = MemoryStore(data)
    await store.open(owner="w1")
    draft, other = await claimed(store, "run-1"), await claimed(store, "run-2")
    durable = draft.next(token=1)
    future = store.append(durable)
    await asyncio.sleep(0)
    lost = store.append(other.next(token=1))
    store.abort()
    store = MemoryStore(data)
    await store.open(owner="w2")
    draft.accept(durable, future.result())
    assert lost.cancelled()
    await expect_journal(store, draft)
    await expect_journal(store, other)
    await store.close()


async def test_lost_index_is_found_and_restored() -> None:
    """The same holds as for a SQLite file whose index rows were deleted [J-11]."""
    data = MemoryData()
    store = MemoryStore(data)
    await store.open(owner="w1")
    draft = await claimed(store, "run-1", slot="invoice-7")
    row = (await loaded(store, draft)).row
    data.lose_index()
    assert await store.load("run-1") is None
    assert list(await store.missing_index(5)) == ["run-1"]
    await store.restore_index(draft.locator, row.run, row.state, None, slot_held=True)
    assert (await loaded(store, draft)).row == row
    assert list(await store.missing_index(5)) == []
    await store.close()
