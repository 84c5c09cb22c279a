"""What `doctor` says of a PostgreSQL server and of the role in the URL; and that its advice helps."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from perdure.cli import examine_server
from perdure.cli.exits import Exit
from perdure.storage.postgres.survey import Survey
from tests.cli.harness import Cli
from tests.pgbouncer import PgBouncer
from tests.postgres import PostgresServer

WELL = Survey("ada", "perdure", "payouts", 18, True, True, (), True, (), True, False, False, True)


def checks(cli: Cli, url: str) -> dict[str, dict[str, object]]:
    """Lines of `doctor`, by what they are about."""
    return {str(line["check"]): line for line in cli("doctor", "--store", url, "--json").json_lines()}


@pytest.fixture
def schema(folder: Path, postgres: PostgresServer, cli: Cli) -> str:
    """Give the schema of a store that the administrator has made."""
    name = postgres.url().partition("&schema=")[2]
    assert cli("list", "--store", postgres.url(schema=name)).code == Exit.OK
    return name


@pytest.fixture
def role(postgres: PostgresServer, schema: str) -> str:
    """Give a role without any rights."""
    postgres.sql(f"CREATE ROLE r_{schema} LOGIN")
    return f"r_{schema}"


def test_rights_that_lack_are_named_and_the_advice_grants_them(
    postgres: PostgresServer, schema: str, role: str, cli: Cli
) -> None:
    url = postgres.url(schema=schema, user=role)
    found = checks(cli, url)
    assert found["rights"]["verdict"] == "fail"
    lacks = f"{role} lacks USAGE on schema {schema}; SELECT on annotation, attendant, bound"
    assert lacks in str(found["rights"]["found"])
    assert "runs" not in found, "nothing was read that may not be read"
    granted = str(found["rights"]["advice"]).partition("writes: ")[2]
    postgres.sql(granted)
    found = checks(cli, url)
    assert found["rights"]["verdict"] == "ok"
    assert found["runs"]["verdict"] == "ok"
    postgres.sql(
        f"REVOKE DELETE ON {schema}.run, {schema}.journal FROM {role}; REVOKE UPDATE ON {schema}.run FROM {role}"
    )
    found = checks(cli, url)
    assert str(found["rights"]["found"]) == f"{role} lacks UPDATE on run; DELETE on journal, run"
    assert cli("doctor", "--store", url).code == Exit.FINDING


def test_functions_count_too(postgres: PostgresServer, schema: str, role: str, cli: Cli) -> None:
    """Where rights that everybody has by default were taken away."""
    usual = f"ALL TABLES IN SCHEMA {schema} TO {role}"
    postgres.sql(f"GRANT USAGE ON SCHEMA {schema} TO {role}; GRANT SELECT, INSERT, UPDATE, DELETE ON {usual}")
    postgres.sql(f"REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA {schema} FROM PUBLIC")
    found = checks(cli, postgres.url(schema=schema, user=role))["rights"]
    assert "EXECUTE on" in str(found["found"])


def test_who_may_make_the_tables(postgres: PostgresServer, role: str, cli: Cli) -> None:
    """Before the store is there: either the role can make it, or somebody has to open it once."""
    found = checks(cli, postgres.url(schema="not_there", user=role))
    assert found["rights"]["verdict"] == "fail"
    assert "may not create the schema not_there" in str(found["rights"]["found"])
    postgres.sql(str(found["rights"]["advice"]).partition(", or ")[2])
    found = checks(cli, postgres.url(schema="not_there", user=role))
    assert found["rights"]["verdict"] == "ok"
    assert found["store"]["verdict"] == "ok"


def test_tables_without_vacuum(postgres: PostgresServer, schema: str, cli: Cli) -> None:
    url = postgres.url(schema=schema)
    assert checks(cli, url)["autovacuum"]["verdict"] == "ok"
    postgres.sql(f"ALTER TABLE {schema}.run SET (autovacuum_enabled = false)")
    found = checks(cli, url)["autovacuum"]
    assert (found["verdict"], found["found"]) == ("warn", "off for run")
    postgres.sql(str(found["advice"]).partition("without it: ")[2])
    assert checks(cli, url)["autovacuum"]["verdict"] == "ok"


def test_notifications(postgres: PostgresServer, pooler: PgBouncer, schema: str, cli: Cli) -> None:
    """One is sent, and has to arrive; through a pooler that the URL names nobody waits for any."""
    url = postgres.url(schema=schema)
    assert checks(cli, url)["notifications"]["found"] == "arrive"
    found = checks(cli, pooler.through(url))
    assert str(found["notifications"]["found"]).startswith("none through the pooler")
    assert found["jit"]["verdict"] == "warn", "what perdure sets itself does not come through a pooler"
    deaf = examine_server.check_listen(replace(WELL, pooled=True, hears=False))
    assert (deaf.verdict, "pooler=transaction" in deaf.advice) == ("warn", True)


def test_a_role_that_does_not_wait_for_the_disk(postgres: PostgresServer, schema: str, role: str, cli: Cli) -> None:
    postgres.sql(f"ALTER ROLE {role} SET synchronous_commit = off")
    found = checks(cli, postgres.url(schema=schema, user=role))["store"]
    assert found["verdict"] == "fail"
    assert "synchronous_commit = off, which loses committed facts; set it to on for this role" in str(found["found"])


@pytest.mark.parametrize(
    ("found", "name", "verdict"),
    [
        (WELL, "server", "ok"),
        (replace(WELL, version=19), "server", "warn"),
        (replace(WELL, autovacuum=False), "autovacuum", "warn"),
        (replace(WELL, durable=False), "durability", "fail"),
        (replace(WELL, there=False), "rights", "ok"),
        (replace(WELL, there=False, may_create=False), "rights", "fail"),
        (replace(WELL, jit=True), "jit", "warn"),
        (replace(WELL, hears=None), "notifications", "ok"),
    ],
)
def test_verdicts(found: Survey, name: str, verdict: str) -> None:
    """Every verdict but a good one says what to do."""
    (check,) = [check for check in examine_server.checks_of(found) if check.name == name]
    assert check.verdict == verdict
    assert bool(check.advice) == (verdict != "ok")
