"""The PostgreSQL store keeps the contract, the order of its checks included [J-3]: a real server, a real PgBouncer."""

from __future__ import annotations

import pytest

from perdure.storage import open_store
from perdure.testing.conformance import CHECKS, Check, run_check
from tests.pgbouncer import PgBouncer
from tests.postgres import PostgresServer

LOOKS = {"own_commits_are_no_news"}
"""Behind a pooler one looks at what the whole server did: it may be told of its own commits."""


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: str(check.__name__))
async def test_contract(check: Check, postgres: PostgresServer) -> None:
    url = postgres.url()
    await run_check(check, lambda: open_store(url))


@pytest.mark.parametrize("check", [check for check in CHECKS if check.__name__ not in LOOKS], ids=lambda c: c.__name__)
async def test_contract_through_postgres_pooler(check: Check, postgres: PostgresServer, pooler: PgBouncer) -> None:
    url = pooler.through(postgres.url())
    await run_check(check, lambda: open_store(url))
