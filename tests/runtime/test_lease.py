"""A lease's end holds up whoever is about to begin something, and its renewal lets everybody go on [R-3]."""

from __future__ import annotations

import asyncio

import pytest

from perdure.runtime.lease import Lease
from perdure.runtime.live import Lost
from perdure.runtime.system import RealSystem
from tests.storage.helpers import soon

OVER_S = -1.0


async def _waiting(lease: Lease) -> list[asyncio.Task[None]]:
    waiting = [asyncio.create_task(lease.wait()) for _ in range(3)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not any(task.done() for task in waiting)
    return waiting


async def test_all_who_wait_go_on_when_it_is_renewed() -> None:
    """Not only who came last; and again the next time."""
    lease = Lease(RealSystem(), OVER_S)
    for _ in range(2):
        waiting = await _waiting(lease)
        lease.renewed(float("inf"))
        await soon(asyncio.gather(*waiting))
        lease.until_s = OVER_S


async def test_all_who_wait_hear_that_it_is_over() -> None:
    lease = Lease(RealSystem(), OVER_S)
    waiting = await _waiting(lease)
    lease.end()
    for task in waiting:
        with pytest.raises(Lost):
            await soon(task)
