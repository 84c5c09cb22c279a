"""The store in memory keeps the contract."""

from __future__ import annotations

import pytest

from perdure.storage.memory import MemoryData, MemoryStore
from perdure.testing.conformance import CHECKS, Check, run_check


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: str(check.__name__))
async def test_contract(check: Check) -> None:
    data = MemoryData()
    await run_check(check, lambda: MemoryStore(data))
