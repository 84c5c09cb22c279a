"""Operators at the keyboard: many runs by selector, giving up, holding a pipeline [R-17, D-7, I-2]."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from perdure.cli.exits import Exit
from tests.cli.harness import Cli, record
from tests.cli.test_looking import run_id


def test_many_runs_are_held_and_released_with_a_verdict_for_each(shop: Path, cli: Cli) -> None:
    held = cli("hold", "--pipeline", "job", "--status", "ready", "--yes", "--note", "audit", "--actor", "ada", "--json")
    assert held.code == Exit.OK
    (verdict,) = held.json_lines()
    assert (verdict["verdict"], verdict["status"], verdict["dry_run"]) == ("done", "ready", False)
    assert verdict["run_id"] == run_id(cli, "later")
    assert cli("journal", "last", "--json").json_lines()[-1]["actor"] == "ada"
    again = cli("hold", "--resource", "later", "--yes", "--json").json_lines()
    assert [line["verdict"] for line in again] == ["duplicate"]
    released = cli("release", "--pipeline", "job", "--yes")
    assert released.code == Exit.FINDING
    assert "released" in released.out
    assert "refused" in released.out
    assert "not held" in released.out


def test_a_dry_run_changes_nothing(shop: Path, cli: Cli) -> None:
    before = cli("list", "--json").json()
    many = cli("cancel", "--pipeline", "job", "--dry-run")
    assert many.code == Exit.OK
    assert "would be asked to cancel" in many.out
    one = cli("cancel", run_id(cli, "later"), "--dry-run")
    assert "would be asked to cancel" in one.out
    assert cli("list", "--json").json() == before


def test_a_selector_that_fits_nothing(shop: Path, cli: Cli) -> None:
    answer = cli("retry", "--step", "nowhere", "--yes")
    assert (answer.code, answer.out) == (Exit.OK, "no run fits\n")


class Keyboard(io.StringIO):
    """Somebody at a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("word", "code"), [("y", Exit.OK), ("n", Exit.INTERRUPTED)])
def test_many_ask_first(
    shop: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], word: str, code: Exit
) -> None:
    from perdure.cli.main import main

    monkeypatch.setattr(sys, "stdin", Keyboard(f"{word}\n"))
    assert main(["hold", "--resource", "later"]) == code
    assert "1 run would be held. Go on?" in capsys.readouterr().err
    status = record(cli("show", run_id(cli, "later"), "--json").json())["status"]
    assert status == ("held" if code == Exit.OK else "ready")


def test_many_are_resolved(shop: Path, cli: Cli) -> None:
    answer = cli("resolve", "--step", "work/v1", "--skip", "--yes", "--json")
    assert answer.code == Exit.OK
    assert [line["verdict"] for line in answer.json_lines()] == ["done"]


def test_many_are_given_another_priority(shop: Path, cli: Cli) -> None:
    """R-1, R-17"""
    answer = cli("prioritize", "--priority", "-4", "--pipeline", "job", "--yes", "--json")
    assert answer.code == Exit.OK
    assert {line["verdict"] for line in answer.json_lines()} == {"done"}
    later = run_id(cli, "later")
    assert cli("show", later, "--json").json()["priority"] == -4
    again = cli("prioritize", later, "--priority", "-4", "--dry-run").out
    assert "would stay as it is" in again
    assert "given priority 2; it is now ready" in cli("prioritize", later, "--priority", "2", "--note", "soon").out
    assert "RunPrioritized" in cli("journal", later).out
    assert cli("prioritize", later, "--priority", "12").code == Exit.USAGE
    assert cli("verify").code == Exit.OK


def test_an_invalid_run_is_given_up(shop: Path, cli: Cli) -> None:
    odd = run_id(cli, "odd")
    assert cli("show", odd, "--json").json()["status"] == "invalid"
    assert "abandon" in cli("show", odd).err
    answer = cli("abandon", odd, "--yes", "--note", "nobody needs it", "--actor", "ada")
    assert answer.code == Exit.OK
    assert "abandoned; it is now failed" in answer.out
    found = cli("show", odd, "--json").json()
    assert (found["status"], found["reason"]) == ("failed", "abandoned")
    assert record(found["failure"])["kind"] == "abandoned"
    assert "RunAbandoned" in cli("journal", odd).out
    assert cli("verify").code == Exit.OK


def test_a_pipeline_is_held_and_everything_says_so(shop: Path, cli: Cli) -> None:
    held = cli("hold-pipeline", "job", "--note", "bank down", "--actor", "ada", "--json").json()
    assert (held["held"], held["new"], held["actor"], held["note"]) == (True, True, "ada", "bank down")
    again = cli("hold-pipeline", "job").out
    assert "pipeline job is held since" in again
    assert "by ada: bank down" in again
    assert "pipeline job is held since" in cli("list").out
    assert cli("list", "--json").json()["held_pipelines"] == ["job"]
    assert cli("list", "--json", "--pipeline", "other").json()["held_pipelines"] == []
    later = run_id(cli, "later")
    assert "release-pipeline job" in cli("explain", later).err
    assert cli("explain", later, "--json").json()["pipeline_held"] is True
    assert "release-pipeline job" in cli("show", later).err
    assert "held pipeline" in cli("doctor").out
    cli("submit", "job", '{"name": "new"}')
    assert cli("run", "--until-idle").code == Exit.OK
    assert cli("show", "last", "--json").json()["status"] == "ready"
    assert "goes on" in cli("release-pipeline", "job").out
    assert cli("run", "--until-idle").code == Exit.OK
    assert cli("show", "last", "--json").json()["status"] == "succeeded"
