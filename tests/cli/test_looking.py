"""Commands that look: list, show, watch, explain, journal, verify [I-2, E-11, J-11]."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from perdure.cli.exits import Exit
from tests.cli.harness import Cli, record, records

STATUSES = {"succeeded": 2, "failed": 1, "held": 1, "invalid": 1, "ready": 1}


def run_id(cli: Cli, resource: str) -> str:
    """The id of the one run about a resource."""
    runs = records(cli("list", "--resource", resource, "--json").json()["runs"])
    return str(runs[0]["run_id"])


def test_list_shows_runs_newest_first_and_counts(shop: Path, cli: Cli) -> None:
    answer = cli("list")
    assert answer.code == Exit.OK
    head, *rows, counts = answer.out.splitlines()
    assert head.split() == ["RUN", "PIPELINE", "RESOURCE", "STATUS", "STEP", "REASON", "SUBMITTED", "AGE"]
    assert [row.split()[2] for row in rows] == ["later", "odd", "stuck", "bad", "more", "good"]
    assert "ready, in 29 d" in rows[0]
    assert counts == "1 ready, 1 held, 1 invalid, 2 succeeded, 1 failed"
    assert "\x1b" not in answer.out
    assert not any("\u2500" <= char <= "\u257f" for char in answer.out)


def test_list_as_json_has_the_documented_keys(shop: Path, cli: Cli) -> None:
    found = cli("list", "--json").json()
    assert set(found) == {"runs", "counts", "at_least", "next", "held_pipelines"}
    assert found["counts"] == STATUSES
    assert found["next"] is None
    runs = records(found["runs"])
    assert set(runs[0]) == {
        "run_id", "pipeline", "tenant", "resource", "status", "step", "reason", "waits_for_worker", "canceling",
        "generation", "worker", "priority", "submitted_at", "due_at", "ended_at", "annotations",
    }  # fmt: skip


def test_list_filters(shop: Path, cli: Cli) -> None:
    found = cli(
        "list", "--status", "held", "-s", "invalid", "--pipeline", "job", "--tenant", "default", "--json"
    ).json()
    runs = records(found["runs"])
    assert [run["resource"] for run in runs] == ["odd", "stuck"]
    assert found["counts"] == {"held": 1, "invalid": 1}
    assert cli("list", "--since", "1h", "--json").json()["counts"] == STATUSES
    assert cli("list", "--before", "1h", "--json").json()["counts"] == {}
    assert cli("list", "--since", "2100-01-01").out == "no runs\n"
    nothing = cli("list", "--pipeline", "other")
    assert nothing.out == "no runs\n"
    assert "no run fits the filters" in nothing.err


def test_list_goes_through_pages(shop: Path, cli: Cli) -> None:
    first = cli("list", "--limit", "4", "--json").json()
    second = cli("list", "--limit", "4", "--after", str(first["next"]), "--json").json()
    names = [run["resource"] for run in [*records(first["runs"]), *records(second["runs"])]]
    assert names == ["later", "odd", "stuck", "bad", "more", "good"]
    assert second["next"] is None
    assert f"perdure list --limit 4 --after {first['next']}" in cli("list", "--limit", "4").err


def test_the_next_page_is_named_with_its_options(shop: Path, cli: Cli) -> None:
    first = cli("list", "-s", "succeeded", "-s", "failed", "--oldest", "-n", "1", "--tenant", "default")
    assert first.out.splitlines()[1].split()[2] == "good"
    command = first.err.split("`")[1]
    assert command.startswith(
        "perdure list --status succeeded --status failed --tenant default --oldest --limit 1 --af"
    )
    assert cli(*command.split()[1:]).out.splitlines()[1].split()[2] == "more"
    backwards = cli("list", "--after", command.split()[-1])
    assert (backwards.code, "a list of another order" in backwards.err) == (Exit.USAGE, True)


def test_lists_by_annotation_and_by_what_runs_wait_for(shop: Path, cli: Cli) -> None:
    for options in (["--annotation", "color=blue"], ["--waiting", "time"], ["--waiting", "time", "-s", "ready"]):
        runs = records(cli("list", *options, "--json").json()["runs"])
        assert [run["resource"] for run in runs] == ["later"], options
    assert "no run fits the filters" in cli("list", "--annotation", "color=red").err
    runs = records(cli("list", "--step", "work/v1", "--json").json()["runs"])
    assert [run["resource"] for run in runs] == ["stuck", "bad"]
    runs = records(cli("list", "--ended-since", "1h", "--json").json()["runs"])
    assert sorted(str(run["resource"]) for run in runs) == ["bad", "good", "more"]


def test_counts_alone(shop: Path, cli: Cli) -> None:
    answer = cli("list", "--count")
    assert answer.out.splitlines()[0].split() == ["PIPELINE", "STATUS", "RUNS"]
    numbers = record(record(cli("list", "--count", "--exact", "--json").json())["counts"])
    assert {status: n for each in numbers.values() for status, n in record(each).items()} == STATUSES
    assert cli("list", "--count", "--tenant", "nobody").out == "no runs\n"


def test_an_empty_list_says_what_to_do(project: Path, cli: Cli) -> None:
    cli("run", "--until-idle")
    answer = cli("list")
    assert answer.out == "no runs\n"
    assert "perdure submit PIPELINE INPUT" in answer.err


def test_show_a_run_that_succeeded(shop: Path, cli: Cli) -> None:
    answer = cli("show", run_id(cli, "good"))
    rows = dict(line.split(maxsplit=1) for line in answer.out.splitlines())
    assert rows["status"] == "succeeded"
    assert rows["input"] == '{"name":"good","trouble":""}'
    assert rows["output"] == '"GOOD"'
    assert "by    ada" in answer.out.replace("submitted by  ada", "by    ada")


def test_show_a_run_that_failed(shop: Path, cli: Cli) -> None:
    found = cli("show", run_id(cli, "bad"), "--json").json()
    assert found["status"] == "failed"
    failure = record(found["failure"])
    assert (failure["step"], failure["kind"], failure["reason"]) == ("work/v1", "user", "declined")
    assert found["in_doubt"] == found["uncompensated"] == []
    assert "work/v1, attempt 1: " in cli("show", run_id(cli, "bad")).out


def test_show_a_held_run_says_what_lets_it_go_on(shop: Path, cli: Cli) -> None:
    answer = cli("show", run_id(cli, "stuck"))
    assert "attempts-exhausted" in answer.out
    assert "no route to the bank" in answer.out
    assert "perdure resolve" in answer.err


def test_show_what_was_given_at_the_start(shop: Path, cli: Cli) -> None:
    found = cli("show", "last", "--json").json()
    assert found["annotations"] == {"color": "blue"}
    assert found["start_at"] is not None
    assert "annotation    color=blue" in cli("show", "last").out


def test_runs_by_the_beginning_of_their_id(shop: Path, cli: Cli) -> None:
    whole = run_id(cli, "good")
    with sqlite3.connect(shop / "shop.db") as con:
        ids = [row[0] for row in con.execute("SELECT id FROM run")]
    con.close()
    unique = next(whole[:n] for n in range(6, 22) if sum(i.startswith(whole[:n]) for i in ids) == 1)
    assert cli("show", unique, "--json").json()["run_id"] == whole


def test_explain_draws_each_step_and_what_comes_next(shop: Path, cli: Cli) -> None:
    answer = cli("explain", run_id(cli, "stuck"))
    lines = [line.split()[:3] for line in answer.out.splitlines()]
    assert ["+", "take/v1", "succeeded"] in lines
    assert ["-", "more/v1", "skipped"] in lines
    assert any(line[1:3] == ["work/v1", "unresolved"] for line in lines)
    assert "next: nothing: held (attempts-exhausted)" in answer.out
    found = cli("explain", run_id(cli, "stuck"), "--json").json()
    assert found["next"] == {"op": "held", "reason": "attempts-exhausted"}
    assert found["status"] == "held"


def test_explain_needs_no_application(shop: Path, cli: Cli) -> None:
    run = run_id(cli, "bad")
    for name in ("shop.py", "pyproject.toml"):
        (shop / name).unlink()
    answer = cli("explain", run, "--store", "sqlite:///shop.db")
    assert answer.code == Exit.OK
    assert "unwound" in answer.out


def test_journal_prints_the_facts(shop: Path, cli: Cli) -> None:
    run = run_id(cli, "bad")
    facts = cli("journal", run, "--json").json_lines()
    assert [fact["seq"] for fact in facts] == list(range(1, len(facts) + 1))
    assert [facts[0]["fact"], facts[-1]["fact"]] == ["RunSubmitted", "RunFailed"]
    text = cli("journal", run)
    assert len(text.out.splitlines()) == len(facts) + 1
    assert "take/v1 (unwind)" in text.out
    assert 'state="key of bad"' in text.out
    part = cli("journal", run, "--after", "2", "--limit", "3", "--json").json_lines()
    assert [fact["seq"] for fact in part] == [3, 4, 5]
    assert "no fact after 99" in cli("journal", run, "--after", "99").err


def test_watch_follows_to_the_end(shop: Path, cli: Cli) -> None:
    good = cli("watch", run_id(cli, "good"))
    assert good.code == Exit.OK
    assert "succeeded" in good.out.splitlines()[0]
    assert cli("watch", run_id(cli, "bad")).code == Exit.FINDING
    assert [line["status"] for line in cli("watch", run_id(cli, "bad"), "--json").json_lines()] == ["failed"]


def test_watch_does_not_wait_for_what_cannot_go_on(shop: Path, cli: Cli) -> None:
    assert cli("watch", run_id(cli, "odd")).code == Exit.INVALID_RUN


def test_watch_gives_up_after_its_time(shop: Path, cli: Cli) -> None:
    answer = cli("watch", "last", "--timeout", "10ms")
    assert answer.code == Exit.FINDING
    assert "has not ended within 0.01 s" in answer.err


def test_verify_finds_nothing_in_a_good_store(shop: Path, cli: Cli) -> None:
    answer = cli("verify")
    assert (answer.code, answer.out[:16]) == (Exit.OK, "all good: 6 runs")
    found = cli("verify", "last", "--json").json()
    assert found == {"runs": 1, "facts": 1, "findings": []}


def test_verify_repairs_what_follows_from_the_facts(shop: Path, cli: Cli) -> None:
    """J-11, R-10: a mutex that a hand gave to nobody is found, and gone after `--repair`."""
    with sqlite3.connect(shop / "shop.db") as con:
        con.execute("INSERT INTO mutex (tenant, resource, name, run) VALUES ('default', 'a', 'till', 999)")
    con.close()
    assert "--repair` removes it" in str(cli("verify", "--json").json()["findings"])
    answer = cli("verify", "--repair")
    assert answer.code == Exit.FINDING
    assert "verify again" in answer.out + answer.err
    assert cli("verify").code == Exit.OK


@pytest.fixture
def damaged(shop: Path, cli: Cli) -> str:
    """Give the id of a run with one fact changed in the file."""
    run = run_id(cli, "bad")
    con = sqlite3.connect(shop / "shop.db")
    con.execute(
        "UPDATE journal SET facts = replace(facts, 'declined', 'accepted')"
        " WHERE run = (SELECT n FROM run WHERE id = ?) AND facts LIKE '%OperationFailed%'",
        (run,),
    )
    con.commit()
    con.close()
    return run


def test_verify_finds_a_changed_fact(damaged: str, cli: Cli) -> None:
    answer = cli("verify")
    assert answer.code == Exit.FINDING
    assert damaged in answer.out
    findings = records(cli("verify", damaged, "--json").json()["findings"])
    assert findings[0]["run_id"] == damaged
    assert findings[0]["seq"] != 0


def test_a_corrupt_run_has_its_own_exit_code(damaged: str, cli: Cli) -> None:
    answer = cli("explain", damaged)
    assert answer.code == Exit.CORRUPT
    assert f"perdure verify {damaged}" in answer.err
