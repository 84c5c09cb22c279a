"""Looking at schedules and pausing them [R-14, R-17]."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from perdure import Event
from perdure.cli.exits import Exit
from perdure.cli.monitor import LogLines
from perdure.ports.observer import EventKind
from tests.cli.harness import Cli, records
from tests.cli.project import SHOP

SCHEDULED = SHOP.replace("import App,", "import App, Schedule,").replace(
    'app = App(job.bind(), store="sqlite:///shop.db")',
    """nightly = Schedule("nightly", job, input=Job("n"), cron="0 3 29 2 *", tz="Europe/Berlin")
rare = Schedule("rare", job, input=Job("h"), every=1_000_000_000)
app = App(job.bind(), store="sqlite:///shop.db", schedules=(nightly, rare))""",
)


@pytest.fixture
def scheduled(project: Path) -> Path:
    """The project with two schedules."""
    (project / "shop.py").write_text(SCHEDULED, encoding="utf-8")
    return project


def states(cli: Cli, *options: str) -> dict[object, object]:
    """States by schedule."""
    return {row["id"]: row["state"] for row in records(cli("schedules", "--json", *options).json()["schedules"])}


def test_schedules_are_shown_before_there_is_a_store(scheduled: Path, cli: Cli) -> None:
    answer = cli("schedules", "shop:app", "-n", "1")
    assert answer.code == Exit.OK
    head, nightly, rare = answer.out.splitlines()
    assert head.split() == ["SCHEDULE", "PIPELINE", "WHEN", "STATE", "LAST", "NEXT"]
    assert "every 1000000000 s" in rare
    assert "cron 0 3 29 2 * Europe/Berlin" in nightly
    assert " 03:00+0" in nightly
    assert states(cli) == {"rare": "new", "nightly": "new"}
    assert not (scheduled / "shop.db").exists()


def test_schedules_as_json(scheduled: Path, cli: Cli) -> None:
    cli("run", "shop:app", "--until-idle")
    nightly, rare = records(cli("schedules", "--json", "--ticks", "2").json()["schedules"])
    ticks = nightly.pop("next_ticks")
    assert nightly == {
        "id": "nightly", "pipeline": "job", "timetable": "cron 0 3 29 2 * Europe/Berlin", "state": "active",
        "last_tick": None, "last_run": None, "paused_at": None, "actor": None, "note": None,
    }  # fmt: skip
    assert re.fullmatch(r"\['\d{4}-02-29T02:00:00.000000Z', '\d{4}-02-29T02:00:00.000000Z'\]", str(ticks))
    without = cli("schedules", "--store", "sqlite:///shop.db", "--json", "-n", "2").json()
    assert records(without["schedules"]) == [{**nightly, "next_ticks": ticks}, rare]


def test_what_differs_between_application_and_store_is_said(scheduled: Path, cli: Cli) -> None:
    """Without an application the store tells what it knows."""
    cli("run", "shop:app", "--until-idle")
    changed = SCHEDULED.replace("0 3 29 2 *", "0 4 29 2 *").replace('"rare"', '"often"')
    (scheduled / "other.py").write_text(changed, encoding="utf-8")
    assert states(cli, "--app", "other:app") == {"rare": "removed", "nightly": "changed", "often": "new"}
    assert states(cli, "--store", "sqlite:///shop.db") == {"rare": "active", "nightly": "active"}
    cli("run", "other:app", "--until-idle")
    assert states(cli, "--app", "other:app") == {"nightly": "active", "often": "active"}
    assert states(cli, "--app", "other:app", "--all") == {"nightly": "active", "often": "active", "rare": "removed"}


def test_a_schedule_is_paused_and_resumed(scheduled: Path, cli: Cli) -> None:
    """R-14, R-17: with who and why [M-16]."""
    cli("run", "shop:app", "--until-idle")
    answer = cli("pause-schedule", "nightly", "--actor", "ada", "--note", "books closed")
    assert answer.out == "schedule nightly is paused; `perdure resume-schedule nightly` lets it go on\n"
    assert cli("pause-schedule", "nightly", "--json").json() == {"schedule": "nightly", "paused": True, "new": False}
    assert states(cli) == {"rare": "active", "nightly": "paused"}
    row = records(cli("schedules", "--json").json()["schedules"])[0]
    assert (row["actor"], row["note"], row["next_ticks"]) == ("ada", "books closed", [])
    assert cli("resume-schedule", "nightly").out == "schedule nightly goes on\n"
    assert states(cli) == {"rare": "active", "nightly": "active"}
    assert cli("resume-schedule", "nightly").code == Exit.CONFLICT
    missing = cli("pause-schedule", "nigthly")
    assert missing.code == Exit.NOT_FOUND
    assert "it has had nightly, rare" in missing.err


def test_an_operator_sees_ticks_that_fail() -> None:
    """R-14, R-15: in what `perdure run` prints, however much else happens."""
    kinds: tuple[tuple[EventKind, str], ...] = (("tick-failed", "tick failed"), ("tick-skipped", "tick skipped"))
    for kind, words in kinds:
        (line,) = LogLines().lines(Event(kind, 0, detail="schedule nightly: OSError('no such file')"))
        assert line.endswith(f"  engine {words}: schedule nightly: OSError('no such file')")


def test_no_schedules_is_no_mistake(shop: Path, cli: Cli) -> None:
    answer = cli("schedules")
    assert (answer.code, answer.out) == (Exit.OK, "")
    assert cli("schedules", "--json").json() == {"schedules": []}


def test_an_application_is_named_once(scheduled: Path, cli: Cli) -> None:
    assert cli("schedules", "shop:app", "--app", "other:app").code == Exit.USAGE
