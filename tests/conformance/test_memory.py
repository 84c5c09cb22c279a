"""The store in memory keeps the contract."""

from __future__ import annotations

import pytest

from perdure.storage.memory import MemoryData, MemoryStore
from perdure.testing.conformance import CHECKS, Check, changes, life, limits, run_check, workers


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: str(check.__name__))
async def test_contract(check: Check) -> None:
    data = MemoryData()
    await run_check(check, lambda: MemoryStore(data))


@pytest.mark.parametrize(
    "check", [*life.CHECKS, *changes.CHECKS, *limits.CHECKS, *workers.CHECKS], ids=lambda check: str(check.__name__)
)
async def test_contract_of_many_workers(check: Check) -> None:
    data = MemoryData(shared=True)
    await run_check(check, lambda: MemoryStore(data))
