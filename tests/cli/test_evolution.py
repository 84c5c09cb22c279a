"""D-4 to D-6 at the keyboard: check, deploy, deployments, drain, ledgers, and the lock file."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import msgspec
import pytest

from perdure.cli.evolution import outdated
from perdure.cli.exits import Exit
from perdure.ports.store import Deployment
from perdure.storage.sqlite.owner import Holder
from tests.cli.harness import Answer, Cli, records

STEPS = "steps=(take, more, work)"
EXTRA = """

@step("screen/v1")
async def screen(inv: Inv) -> None:
    pass


"""


@pytest.fixture
def edit(shop: Path) -> Path:
    """Give the project's file; of the live runs one is held at work/v1, one is invalid at its end, one not started."""
    return shop / "shop.py"


def steps(file: Path, to: str) -> None:
    """Put other steps into the pipeline; `screen` is a new one."""
    text = file.read_text(encoding="utf-8").replace("Retry, step", "Retry, retired, step")
    text = text.replace("\n\ndef output", EXTRA + "def output", 1)
    file.write_text(text.replace(STEPS, f"steps=({to})"), encoding="utf-8")


def reimport(cli: Cli) -> Cli:
    """Commands that import the project anew each time, as processes would."""
    import sys

    def run(*arguments: str, stdin: bytes | None = None) -> Answer:
        sys.modules.pop("shop", None)
        return cli(*arguments, stdin=stdin)

    return run


def test_nothing_changes(edit: Path, cli: Cli) -> None:
    answer = cli("check")
    assert answer.code == Exit.OK
    assert "job: no change; 3 live runs, 3 distinct ledgers" in answer.out
    assert "3 runs go on unchanged" in answer.out
    assert answer.out.endswith("no run would become invalid\n")


def test_an_insertion_is_explained(edit: Path, cli: Cli) -> None:
    steps(edit, "take, screen, more, work")
    answer = cli("check", "shop:app")
    assert answer.code == Exit.OK
    assert "job: inserted screen/v1; 3 live runs" in answer.out
    assert "2 runs are past screen/v1 and will never run it" in answer.out
    assert "1 run will run screen/v1 as well" in answer.out
    assert "work/v1 is unresolved" in answer.out


def test_a_removal_fails_the_check(edit: Path, cli: Cli) -> None:
    """D-6: exit code 1, and what to do about it."""
    steps(edit, "take, more")
    answer = cli("check")
    assert answer.code == Exit.FINDING
    assert "1 run would become invalid because its unresolved step work/v1 is gone: keep it as retired" in answer.out
    assert "INVALID (step-missing)" in answer.out
    value = cli("check", "--json").json()
    assert value["ok"] is False
    (pipeline,) = records(value["pipelines"])
    assert (pipeline["pipeline"], pipeline["runs"], pipeline["invalid"]) == ("job", 3, 1)
    assert {"stand", "runs", "example_run", "oldest", "validity", "gains", "misses"} <= records(pipeline["kinds"])[
        0
    ].keys()


def test_leaks_count_when_strict(edit: Path, cli: Cli) -> None:
    """U-9: an effect that can be undone today and could not be undone any more."""
    edit.write_text(
        edit.read_text(encoding="utf-8").replace('"take/v1", unwind=give_back', '"take/v1"'), encoding="utf-8"
    )
    answer = cli("check")
    assert answer.code == Exit.OK
    assert "could no longer undo take/v1 if they fail" in answer.out
    assert answer.out.endswith("no run would become invalid, but some effects could not be undone\n")
    assert cli("check", "--strict").code == Exit.FINDING


def test_an_export_answers_like_the_store(edit: Path, cli: Cli) -> None:
    """D-6: without payloads and without the database."""
    steps(edit, "take, more")
    from_store = cli("check", "--json").json()
    assert cli("ledgers", "export", "--output", "ledgers.json").out == "ledgers.json: 3 live runs, 3 distinct ledgers\n"
    exported = cli("ledgers", "export").out
    written = Path("ledgers.json").read_text(encoding="utf-8")
    assert json.loads(exported)["ledgers"] == json.loads(written)["ledgers"]
    assert "no-route" not in written
    (edit.parent / "shop.db").unlink()
    from_export = cli("check", "--ledgers", "ledgers.json", "--json")
    assert from_export.code == Exit.FINDING
    assert from_export.json() == from_store


def test_ledgers_say_where_runs_stand(edit: Path, cli: Cli) -> None:
    answer = cli("ledgers")
    assert "work/v1 is unresolved" in answer.out
    assert "not started" in answer.out
    assert [entry["runs"] for entry in records(cli("ledgers", "--json").json()["ledgers"])] == [1, 1, 1]


# --- the lock file


def test_the_lock_file_is_written_once(edit: Path, cli: Cli) -> None:
    assert cli("check", "--write-lock").out == "perdure.lock written; commit it\n"
    before = Path("perdure.lock").read_bytes()
    assert cli("check", "--write-lock").out == "perdure.lock is up to date\n"
    assert Path("perdure.lock").read_bytes() == before
    assert cli("check", "--write-lock", "--lock", "other.lock", "--json").json() == {
        "lock_file": "other.lock",
        "changed": True,
        "pipelines": ["job"],
    }


def test_a_review_sees_what_changed_and_needs_no_store(edit: Path, cli: Cli) -> None:
    cli("check", "--write-lock")
    (edit.parent / "shop.db").unlink()
    assert cli("check", "--lock", "perdure.lock").out == "nothing differs from the lock\n"
    steps(edit, "take, screen, more")
    again = reimport(cli)
    answer = again("check", "--lock", "perdure.lock")
    assert answer.code == Exit.OK
    assert "job against the lock: inserted screen/v1; removed work/v1" in answer.out
    assert "warning: work/v1 is removed without retiring" in answer.out
    assert again("check", "--lock", "perdure.lock", "--strict").code == Exit.FINDING
    (change,) = records(again("check", "--lock", "perdure.lock", "--json").json()["lock"])
    assert change["pipeline"] == "job"


def test_a_lock_and_a_store_are_both_looked_at(edit: Path, cli: Cli) -> None:
    cli("check", "--write-lock")
    steps(edit, "take, more")
    answer = reimport(cli)("check", "--lock", "perdure.lock", "--store", "sqlite:///shop.db")
    assert answer.code == Exit.FINDING
    assert "removed without retiring" in answer.out
    assert "1 run would become invalid" in answer.out


def retype(file: Path) -> None:
    """`take/v1` makes a number now, of which no text can be read; `work/v1` lists it as a need."""
    text = file.read_text(encoding="utf-8")
    text = text.replace("(inv: Inv) -> str:\n    return f", "(inv: Inv) -> int:\n    return 7  # f", 1)
    text = text.replace("key: str", "key: int", 1).replace("(max_attempts=1))", "(max_attempts=1), needs=(take,))", 1)
    file.write_text(text, encoding="utf-8")


def test_a_changed_type_is_seen_where_a_lock_lies_beside(edit: Path, cli: Cli) -> None:
    """P-3: nothing in the store says what types states had, so the check of runs takes perdure.lock where it is."""
    cli("check", "--write-lock")
    retype(edit)
    again = reimport(cli)
    answer = again("check")
    assert answer.code == Exit.OK
    assert "1 run has a state of take/v1, whose type changed since the lock file was written (str to int)" in answer.out
    assert "and work/v1, the unwind of take/v1 read it: what is stored must stay readable" in answer.out
    assert "type of take/v1 changed" in answer.out
    assert answer.out.endswith("no run would become invalid, but types of what they have stored changed\n")
    assert again("check", "--strict").code == Exit.FINDING
    found = again("check", "--json").json()
    assert (found["ok"], found["retyped"], found["types_compared"]) == (True, True, True)
    again("ledgers", "export", "--output", "ledgers.json")
    assert again("check", "--ledgers", "ledgers.json").out.endswith("types of what they have stored changed\n")


def test_without_a_lock_it_says_that_types_were_not_compared(edit: Path, cli: Cli) -> None:
    retype(edit)
    answer = reimport(cli)("check")
    assert "3 runs go on unchanged" in answer.out
    assert answer.err == (
        "types of states were not compared: there is no perdure.lock here, which --write-lock writes\n"
    )
    found = reimport(cli)("check", "--json")
    assert (found.json()["types_compared"], found.err) == (False, "")


def test_a_broken_lock_beside_is_no_silent_omission(edit: Path, cli: Cli) -> None:
    Path("perdure.lock").write_text("{", encoding="utf-8")
    answer = cli("check")
    assert answer.code == Exit.USAGE
    assert "types of states: perdure.lock: this is no lock file" in answer.err


def test_a_lock_stands_for_an_application_that_is_not_here(edit: Path, cli: Cli) -> None:
    """Where the store is, the code need not be."""
    steps(edit, "take, more")
    cli("check", "--write-lock")
    (edit.parent / "pyproject.toml").unlink()
    edit.unlink()
    answer = cli("check", "--lock", "perdure.lock", "--store", "sqlite:///shop.db")
    assert answer.code == Exit.FINDING
    assert "1 run would become invalid" in answer.out


# --- deploy


def test_a_deployment_is_checked_numbered_and_taken_back(edit: Path, cli: Cli) -> None:
    """D-5."""
    again = reimport(cli)
    assert again("deploy").out == "job: generation 1 is current already\n"
    steps(edit, "take, more")
    refused = again("deploy")
    assert refused.code == Exit.CONFLICT
    assert "1 run would become invalid" in refused.err
    assert "nothing was deployed" in refused.err
    assert again("deploy", "--force", "--actor", "ada").out == "job: generation 2 is current now\n"
    back = again("deploy", "--rollback", "1", "--pipeline", "job", "--json").json()
    assert back == {
        "deployed": [{"pipeline": "job", "generation": 3, "new": True}],
        "engine": None,
        "superseded_workers": [],
    }
    lines = again("deployments").out.splitlines()
    assert [line.split()[:2] for line in lines[1:]] == [["job", "1"], ["job", "2"], ["job", "3"]]
    assert lines[2].endswith("ada              removed work/v1") or "removed work/v1" in lines[2]
    assert lines[3].endswith("inserted work/v1")
    found = records(again("deployments", "job", "--json").json()["deployments"])
    assert [entry["generation"] for entry in found] == [1, 2, 3]
    assert found[0]["changes"] is None
    assert found[0]["digest"] == found[2]["digest"]


def test_another_application_is_noticed(edit: Path, cli: Cli) -> None:
    """None of the deployed steps is known: that is no edit."""
    steps(edit, "screen,")
    refused = cli("deploy")
    assert refused.code == Exit.CONFLICT
    assert "this looks like another application" in refused.err


def test_a_first_deployment_makes_the_store(project: Path, cli: Cli) -> None:
    assert cli("deploy").out == "job: generation 1 is current now\n"
    assert (project / "shop.db").exists()
    assert "3 steps" in cli("deployments").out


def test_a_running_engine_is_mentioned(edit: Path, cli: Cli) -> None:
    """It goes on with what it started with; nobody is to believe otherwise."""
    from perdure.storage.sqlite.owner import Ownership

    steps(edit, "take, screen, more, work")
    ownership = Ownership.take(edit.parent / "shop.db", "w-first")
    try:
        answer = cli("deploy")
    finally:
        ownership.release()
    assert answer.out == "job: generation 2 is current now\n"
    assert "w-first" in answer.err
    assert "restart it" in answer.err


# --- drain


def test_drain_says_which_steps_may_go(edit: Path, cli: Cli) -> None:
    """D-6."""
    again = reimport(cli)
    assert "no step is retired" in again("drain").err
    steps(edit, "take, retired(more), retired(work)")
    again("deploy")
    lines = again("drain").out.splitlines()
    assert lines[1].split()[:3] == ["job", "more/v1", "0"]
    assert lines[1].endswith("may be removed")
    assert lines[2].split()[:3] == ["job", "work/v1", "1"]
    assert "1 run is at it" in lines[2]
    more, work = records(again("drain", "--json").json()["steps"])
    assert (more["drained"], work["drained"], work["unresolved"]) == (True, False, 1)


@pytest.mark.parametrize(
    ("at_us", "actor", "behind"),
    [
        (9_000_000, "ada", False),
        (10_500_000, "ada", False),  # within the second in which it started
        (11_000_000, "ada", True),
        (11_000_000, "w-first", False),  # it deployed that itself
    ],
)
def test_an_engine_that_runs_something_else_is_known(at_us: int, actor: str, behind: bool) -> None:
    """D-6: a step is not drained while a worker still deploys it unretired."""
    deployed = Deployment("job", 2, "", b"[]", at_us, actor)
    assert outdated("w-first", 10_000_000, [deployed]) is behind


def test_drain_names_an_engine_that_runs_something_else(edit: Path, cli: Cli) -> None:
    steps(edit, "take, retired(more), work")
    again = reimport(cli)
    held = Holder("w-first", os.getpid(), socket.gethostname(), "2020-01-01T00:00:00Z")
    (edit.parent / "shop.db-owner").write_bytes(msgspec.json.encode(held))
    again("deploy", "--actor", "ada")
    answer = again("drain")
    assert "w-first" in answer.err
    assert "may start what is retired by now: restart it" in answer.err
    assert "w-first" in str(again("drain", "--json").json()["outdated_engine"])
    (edit.parent / "shop.db-owner").unlink()
    assert again("drain", "--json").json()["outdated_engine"] is None
