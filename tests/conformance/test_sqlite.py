"""The SQLite store keeps the contract, the order of its checks included [J-3]."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.storage.sqlite import SqliteStore
from perdure.testing.conformance import CHECKS, Check, run_check


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: str(check.__name__))
async def test_contract(check: Check, tmp_path: Path) -> None:
    await run_check(check, lambda: SqliteStore(tmp_path / "store.db"))
