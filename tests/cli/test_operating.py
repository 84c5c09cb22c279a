"""Commands that change runs: submit, run, cancel, hold, release, retry, resolve, gc [R-5, R-9, R-12, R-17]."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.cli.exits import Exit
from tests.cli.harness import Cli, record
from tests.cli.test_looking import run_id


def last_fact(cli: Cli, run: str) -> dict[str, object]:
    """The newest fact of a run."""
    return cli("journal", run, "--json").json_lines()[-1]


def test_submit_then_run_until_idle(project: Path, cli: Cli) -> None:
    submitted = cli("submit", "job", '{"name": "x"}', "--json").json()
    assert set(submitted) == {"run_id", "created", "pipeline"}
    assert submitted["created"] is True
    assert cli("run", "shop:app", "--until-idle").code == Exit.OK
    assert cli("show", str(submitted["run_id"]), "--json").json()["output"] == "X"


def test_an_equal_input_joins_and_another_conflicts(project: Path, cli: Cli) -> None:
    first = cli("submit", "job", '{"name": "x"}', "--json").json()
    again = cli("submit", "job", "-", "--json", stdin=b'{"trouble": "", "name": "x"}').json()
    assert again == {**first, "created": False}
    other = cli("submit", "job", '{"name": "x", "trouble": "declined"}')
    assert other.code == Exit.CONFLICT
    assert str(first["run_id"]) in other.err


def test_submit_from_a_file_with_everything(project: Path, cli: Cli) -> None:
    (project / "input.json").write_text('{"name": "x"}')
    options = "--resource r --tenant t --start-at 2100-01-01 --deadline 2100-01-02 -a a=1 -a b= --actor ada".split()
    assert cli("submit", "job", "@input.json", *options).code == Exit.OK
    found = cli("show", "last", "--json").json()
    assert (found["resource"], found["tenant"], found["actor"]) == ("r", "t", "ada")
    assert found["annotations"] == {"a": "1", "b": ""}
    assert str(found["start_at"]).startswith(("2100-01-01", "2099-12-31"))
    assert str(found["deadline_at"]).startswith(("2100-01-02", "2100-01-01"))


def test_submit_can_wait_for_the_end(shop: Path, cli: Cli) -> None:
    answer = cli("submit", "job", '{"name": "later"}', "--wait", "--timeout", "10ms")
    assert answer.code == Exit.FINDING
    assert "joined" in answer.out


def test_run_tells_events_as_json(project: Path, cli: Cli) -> None:
    cli("submit", "job", '{"name": "x", "trouble": "declined"}')
    events = cli("run", "--until-idle", "--json").json_lines()
    kinds = [event["event"] for event in events]
    assert (kinds[0], kinds[-1]) == ("started", "stopped")
    assert "failed" in kinds
    assert events[0]["store"] == "sqlite:///shop.db"


def test_run_prints_lines_in_a_pipe(project: Path, cli: Cli) -> None:
    cli("submit", "job", '{"name": "x"}')
    lines = cli("run", "--until-idle").out.splitlines()
    assert "started" in lines[0]
    assert any("of job succeeded" in line for line in lines)
    assert "1 run succeeded" in lines[-1]


def test_run_on_another_store(project: Path, cli: Cli) -> None:
    cli("submit", "job", '{"name": "x"}', "--store", "sqlite:///other.db")
    assert cli("run", "--until-idle", "--store", "sqlite:///other.db", "--concurrency", "1").code == Exit.OK
    assert not (project / "shop.db").exists()
    assert cli("list", "--store", "sqlite:///other.db", "--json").json()["counts"] == {"succeeded": 1}


def test_run_stops_when_the_store_is_gone_for_good(project: Path, cli: Cli) -> None:
    path = project / "shop.py"
    path.write_text(
        path.read_text().replace('raise OSError("no route to the bank")', '__import__("os").unlink("shop.db")')
    )
    cli("submit", "job", '{"name": "x", "trouble": "no-route"}')
    answer = cli("run", "--until-idle")
    assert answer.code == Exit.STORE
    assert "was deleted, moved or replaced" in answer.err
    assert "Traceback" not in answer.err


def test_cancel_takes_back_what_was_done(shop: Path, cli: Cli) -> None:
    run = run_id(cli, "stuck")
    answer = cli("cancel", run, "--reason", "closing", "--actor", "ada")
    assert answer.code == Exit.OK
    assert "cancel requested" in answer.out
    assert cli("cancel", run).code == Exit.OK  # the first counts
    cli("run", "--until-idle")
    found = cli("show", run, "--json").json()
    assert found["status"] == "canceled"
    assert record(found["failure"])["reason"] == "closing"


def test_hold_and_release(shop: Path, cli: Cli) -> None:
    held = cli("hold", "last", "--reason", "audit", "--note", "wait", "--json").json()
    assert (held["status"], held["reason"]) == ("held", "audit")
    assert last_fact(cli, str(held["run_id"]))["note"] == "wait"
    assert cli("release", "last", "--json").json()["status"] == "ready"


def test_retry_lets_a_held_run_go_on(shop: Path, cli: Cli) -> None:
    run = run_id(cli, "stuck")
    assert "will be tried now" in cli("retry", run, "--note", "again", "--actor", "ada").out
    assert cli("show", run, "--json").json()["status"] == "ready"
    assert last_fact(cli, run)["actor"] == "ada"


@pytest.mark.parametrize(
    ("options", "status", "how"),
    [
        (("work/v1", "--value", "8"), "succeeded", "value"),
        (("--step", "work/v1", "--skip"), "succeeded", "skip"),
        (("--fail", "they said no"), "failed", "fail"),
    ],
)
def test_resolve_a_held_step(shop: Path, cli: Cli, options: tuple[str, ...], status: str, how: str) -> None:
    run = run_id(cli, "stuck")
    assert cli("resolve", run, *options, "--note", "by telephone").code == Exit.OK
    fact = last_fact(cli, run)
    assert (fact["fact"], fact["how"], fact["note"]) == ("OperationResolved", how, "by telephone")
    cli("run", "--until-idle")
    assert cli("show", run, "--json").json()["status"] == status


def test_resolve_checks_the_value(shop: Path, cli: Cli) -> None:
    answer = cli("resolve", run_id(cli, "stuck"), "--value", '"seven"')
    assert answer.code == Exit.USAGE
    assert answer.err.startswith("error: $: ")


def test_gc_removes_what_ended_long_ago(shop: Path, cli: Cli) -> None:
    assert cli("gc", "--older-than", "30d").out.startswith("0 runs removed")
    assert cli("gc", "--older-than", "0", "--dry-run").out == "3 runs would be removed\n"
    found = cli("gc", "--older-than", "0", "--limit", "1", "--json").json()
    assert {**found, "bytes": 0} == {
        "removed": 1, "bytes": 0, "remaining": 2, "dry_run": False, "archived": 0, "parts": [], "findings": [],
    }  # fmt: skip
    assert cli("gc", "--older-than", "0").out.startswith("2 runs removed")
    assert cli("list", "--json").json()["counts"] == {"ready": 1, "held": 1, "invalid": 1}
    assert cli("verify").code == Exit.OK
