"""`perdure submit` on a busy slot, under a key, and of a whole file; what the shell offers [R-5, I-2]."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from perdure.cli import main as entry
from perdure.cli.exits import Exit
from tests.cli.harness import Cli, records


def statuses(cli: Cli) -> dict[str, str]:
    """Status by run id."""
    return {str(run["run_id"]): str(run["status"]) for run in records(cli("list", "--json").json()["runs"])}


def test_a_queued_run_waits_and_a_replaced_one_is_canceled(project: Path, cli: Cli) -> None:
    """R-5"""
    submit = ("submit", "job", '{"name": "x"}', "--json", "--on-busy")
    first, queued = (str(cli(*submit, policy).json()["run_id"]) for policy in ("reject", "queue"))
    assert "waits for its slot" in cli("show", queued).out
    newest = str(cli(*submit, "replace").json()["run_id"])
    assert cli("run", "--until-idle").code == Exit.OK
    assert statuses(cli) == {first: "canceled", queued: "canceled", newest: "succeeded"}
    assert cli("verify").code == Exit.OK


def test_priorities_are_given_and_shown(project: Path, cli: Cli) -> None:
    """R-1"""
    urgent = str(cli("submit", "job", '{"name": "x"}', "--priority", "-3", "--json").json()["run_id"])
    assert "ready, priority -3" in cli("list").out
    assert cli("show", urgent, "--json").json()["priority"] == -3
    assert re.search(r"priority\s+-3", cli("show", urgent).out)
    (project / "jobs.jsonl").write_text('{"name": "y"}\n')
    assert cli("submit", "job", "--many", "jobs.jsonl", "--priority", "9").code == Exit.OK
    assert [run["priority"] for run in records(cli("list", "--json").json()["runs"])] == [9, -3]
    assert cli("submit", "job", '{"name": "z"}', "--priority", "10").code == Exit.USAGE


def test_a_key_submits_once(project: Path, cli: Cli) -> None:
    """R-5: also after the end; other input is a conflict."""
    submit = ("submit", "job", '{"name": "x"}', "--key", "order-7", "--key-window", "2d")
    first = cli(*submit, "--json").json()
    cli("run", "--until-idle")
    again = cli(*submit, "--json").json()
    assert (again["run_id"], again["created"]) == (first["run_id"], False)
    other = cli("submit", "job", '{"name": "y"}', "--key", "order-7")
    assert (other.code, str(first["run_id"]) in other.err) == (Exit.CONFLICT, True)


def test_a_file_of_inputs(project: Path, cli: Cli) -> None:
    """R-5: blank lines do not count; each line fares alone."""
    lines = [f'{{"name": "n{n}"}}' for n in range(2100)]
    (project / "jobs.jsonl").write_text("\n".join([*lines, "", lines[0], '{"name":"n1","trouble":"declined"}', ""]))
    answer = cli("submit", "job", "--many", "jobs.jsonl")
    assert answer.code == Exit.CONFLICT
    assert "2,100 submitted, 1 joined runs that were there, 1 refused" in answer.out
    assert "line 2103: " in answer.out
    again = cli("submit", "job", "--many", "-", "--json", stdin=f"{lines[5]}\r\n{lines[6]}".encode())
    assert again.code == Exit.OK
    found = [json.loads(line) for line in again.out.splitlines()]
    assert [(one["line"], one["created"]) for one in found] == [(1, False), (2, False)]


@pytest.mark.parametrize("bad", ["{", "[]", '{"name": 7}', "@jobs.jsonl", "-", '{"name": "x"} {"name": "y"}'])
def test_nothing_of_a_file_is_submitted_if_a_line_is_wrong(project: Path, cli: Cli, bad: str) -> None:
    """P-2: the line is named."""
    (project / "jobs.jsonl").write_text(f'{{"name": "x"}}\n{bad}\n')
    answer = cli("submit", "job", "--many", "jobs.jsonl")
    assert (answer.code, "line 2" in answer.err) == (Exit.USAGE, True)
    assert not (project / "shop.db").exists()


def offered(words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What bash is offered for the last word."""
    monkeypatch.setenv("_PERDURE_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split(" ")) - 1))
    capsys.readouterr()
    entry.main([])
    monkeypatch.delenv("_PERDURE_COMPLETE")
    return capsys.readouterr().out.split()


def test_the_shell_is_offered_pipelines_and_runs(
    project: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """I-2: and nothing, without a word, where there is nothing."""
    assert offered("perdure show ", monkeypatch, capsys) == ["last"]
    runs = [str(cli("submit", "job", f'{{"name": "{name}"}}', "--json").json()["run_id"]) for name in "ab"]
    assert offered("perdure submit ", monkeypatch, capsys) == ["job"]
    assert offered("perdure submit x", monkeypatch, capsys) == []
    assert offered("perdure list --pipeline j", monkeypatch, capsys) == ["job"]
    assert offered("perdure submit job {} --on-busy re", monkeypatch, capsys) == ["reject", "replace"]
    assert offered("perdure show ", monkeypatch, capsys) == ["last", *reversed(runs)]
    assert offered(f"perdure show {runs[0]}", monkeypatch, capsys) == [runs[0]]
    monkeypatch.delitem(sys.modules, "shop")
    (project / "shop.py").write_text("print('loud')\nraise SystemExit('broken')\n")
    assert offered("perdure submit ", monkeypatch, capsys) == []
    assert capsys.readouterr().err == ""
