"""The PostgreSQL store keeps the contract, the order of its checks included [J-3], on a real server."""

from __future__ import annotations

import pytest

from perdure.storage import open_store
from perdure.testing.conformance import CHECKS, Check, run_check
from tests.postgres import PostgresServer


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: str(check.__name__))
async def test_contract(check: Check, postgres: PostgresServer) -> None:
    url = postgres.url()
    await run_check(check, lambda: open_store(url))
