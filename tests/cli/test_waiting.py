"""Runs that wait and how far their items are, in every command that looks; messages sent from it [B-2, B-24]."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.cli.exits import Exit
from tests.cli.harness import Cli, record, records
from tests.cli.waiting import WAITING


@pytest.fixture
def desk(folder: Path, cli: Cli) -> Cli:
    """Give a command line beside an application whose runs wait, and no run yet."""
    (folder / "desk.py").write_text(WAITING, encoding="utf-8")
    (folder / "pyproject.toml").write_text('[tool.perdure]\napp = "desk:app"\n', encoding="utf-8")
    return cli


def submitted(cli: Cli, pipeline: str, text: str = "x") -> str:
    """The id of a run that an engine has worked on until it rests."""
    run_id = str(cli("submit", pipeline, f'"{text}"', "--json").json()["run_id"])
    assert cli("run", "--until-idle").code == Exit.OK
    return run_id


def rows(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines()]


def test_a_run_that_waits_for_a_message_says_so_everywhere(desk: Cli) -> None:
    run_id = submitted(desk, "asked")
    assert "ready, waiting, in 2 d at the latest approval/v1 waits for message 'approval'" in rows(desk("list").out)[1]
    shown = rows(desk("show", run_id).out)
    assert any(
        row.startswith("waits for message 'approval', until 2") and row.endswith("at the latest") for row in shown
    )
    found = desk("show", run_id, "--json").json()
    waits = record(found["waits"])
    assert (waits["step"], waits["for"], waits["message"], waits["runs"]) == ("approval/v1", "message", "approval", [])
    assert waits["until"] == found["due_at"] is not None
    assert (found["parent"], found["progress"], found["children"], found["child_of"]) == (None, None, [], None)
    explained = desk("explain", run_id)
    assert "it waits for message 'approval', and pins the run" in explained.out
    assert "next: go on waiting for a message at approval/v1, in 2 d at the latest" in explained.out
    assert desk("explain", run_id, "--json").json()["due_at"] == found["due_at"]


def test_send_wakes_it(desk: Cli, folder: Path) -> None:
    """B-24, B-4: from another process, checked before anything is written, and the journal shows it."""
    run_id = submitted(desk, "asked")
    wrong = desk("send", run_id, "approval", '{"by": 7}')
    assert (wrong.code, wrong.out) == (Exit.USAGE, "")
    assert "$.by" in wrong.err
    assert "did you mean 'approval'?" in desk("send", run_id, "aproval", "{}").err
    sent = desk("send", run_id, "approval", '{"by": "ada"}', "--key", "k", "--actor", "cy")
    assert sent.out == f"{run_id} was sent approval; it is now ready\n"
    again = desk("send", run_id, "approval", "-", "--key", "k", stdin=b'{"by": "ada"}')
    assert again.out == f"{run_id} had been sent it; it is now ready\n"
    assert desk("send", run_id, "approval", '{"by": "bob"}', "--key", "k").code == Exit.CONFLICT
    desk("run", "--until-idle")
    found = desk("show", run_id, "--json").json()
    assert (found["status"], found["output"], found["waits"]) == ("succeeded", "ada", None)
    journal = rows(desk("journal", run_id).out)
    assert any('MessageReceived name=approval; payload={"by":"ada"}; actor=cy; key=k' in row for row in journal)
    assert any("OperationWoken approval/v1 by=message; key=k" in row for row in journal)
    assert not any("digest" in row for row in journal)


def test_send_to_many_takes_a_file_and_asks_first(desk: Cli, folder: Path) -> None:
    """R-17."""
    ids = {submitted(desk, "asked", text) for text in "ab"}
    (folder / "all.json").write_text('{"by": "all"}')
    many = ("send", "--step", "approval/v1", "--name", "approval", "--value", "@all.json", "--key", "k")
    planned = desk(*many, "--dry-run", "--json").json_lines()
    assert {row["run_id"] for row in planned} == ids
    assert "give --yes" in desk(*many).err
    assert "2 runs sent approval" in desk(*many, "--yes").out
    assert {row["verdict"] for row in desk(*many, "--yes", "--pipeline", "asked", "--json").json_lines()} <= {
        "duplicate"
    }


def test_a_message_of_a_pipeline_that_is_not_known_here_is_taken_as_it_is(desk: Cli) -> None:
    run_id = submitted(desk, "asked")
    assert desk("send", run_id, "whatever", "[1]", "--store", "sqlite:///wait.db").code == Exit.OK


def test_a_run_that_waits_for_another_names_it(desk: Cli) -> None:
    awaited = submitted(desk, "asked")
    run_id = submitted(desk, "follower", awaited)
    assert "waits for a run" in desk("list", "--pipeline", "follower").out
    shown = rows(desk("show", run_id).out)
    assert "waits for 1 of 1 run" in shown
    assert f"awaited run {awaited}" in shown
    waits = record(desk("show", run_id, "--json").json()["waits"])
    assert (waits["for"], waits["runs"], waits["need"], waits["until"]) == ("runs", [awaited], 1, None)
    assert f"it waits for runs: {awaited}" in desk("explain", run_id).out


def test_a_parent_names_its_children_and_they_name_it(desk: Cli) -> None:
    """B-21: while they are under way, and after."""
    run_id = submitted(desk, "parent")
    found = desk("show", run_id, "--json").json()
    children = records(found["children"])
    assert [(child["step"], child["index"], child["status"]) for child in children] == [
        ("legs/v1", 0, "live"),
        ("legs/v1", 1, "live"),
    ]
    progress = {"step": "legs/v1", "shape": "children", "total": 2, "done": 0, "failed": 0, "open": 2}
    assert found["progress"] == progress
    assert "progress 0 of 2 child runs succeeded, 2 not ended" in rows(desk("show", run_id).out)
    first = str(children[0]["run_id"])
    child = desk("show", first, "--json").json()
    assert (child["parent"], child["child_of"]) == (run_id, {"step": "legs/v1", "index": 0})
    assert f"child of run {run_id}, legs/v1 item 0" in rows(desk("show", first).out)
    assert "it waits for child runs: 0 of 2 succeeded" in desk("explain", run_id).out
    for each in children:
        desk("send", str(each["run_id"]), "approval", '{"by": "ada"}')
    desk("run", "--until-idle")
    found = desk("show", run_id, "--json").json()
    assert (found["status"], found["progress"]) == ("succeeded", None)
    assert {each["status"] for each in records(found["children"])} == {"succeeded"}
    assert f"child run {first} succeeded, legs/v1 item 0" in rows(desk("show", run_id).out)


def test_items_show_how_many_are_done_and_what_they_wait_for(desk: Cli) -> None:
    """B-2, M-17."""
    run_id = submitted(desk, "itemized")
    assert "progress 3 of 4 items done" in rows(desk("show", run_id).out)
    found = desk("show", run_id, "--json").json()
    assert (found["attempts"], record(found["progress"])["done"], found["reason"]) == (4, 3, "error")
    assert record(found["last_failure"])["message"] == "no route"
    assert "it has 3 of 4 items done, and pins the run" in desk("explain", run_id).out
    journal = rows(desk("journal", run_id).out)
    assert any("BoundaryOpened items/v1 shape=each; 4 items" in row for row in journal)
    assert any("ItemOutputRecorded items/v1 item 1; attempt 1; output=2" in row for row in journal)
    assert any("ItemRetryScheduled items/v1 item 2; attempt 1; cause=error" in row for row in journal)
    watched = desk("watch", run_id, "--timeout", "0.05s")
    assert "items/v1 (error): 3 of 4 items done" in watched.out


def test_the_items_of_a_run_that_failed_are_counted(desk: Cli) -> None:
    """U-12: by `show` and `explain`."""
    run_id = submitted(desk, "itemized")
    desk("cancel", run_id)
    desk("run", "--until-idle")
    found = desk("show", run_id, "--json").json()
    counts = {"step": "items/v1", "items": 4, "completed": 3, "failed": 0, "in_doubt": 1, "not_started": 0}
    assert (found["status"], found["item_counts"]) == ("canceled", [counts])
    assert "items items/v1: of 4 items 3 completed, 1 in doubt" in rows(desk("show", run_id).out)
    assert "a cancel resolved it: of 4 items 3 completed, 1 in doubt" in desk("explain", run_id).out
