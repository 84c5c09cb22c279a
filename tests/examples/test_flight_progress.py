"""What one sees while the main example runs."""

from __future__ import annotations

import io
from datetime import date
from pathlib import Path

import pytest
from rich.console import Console

from examples.flight_refunds.demo import RunsStuck, cell_of, complain_if_stuck
from examples.flight_refunds.flights import CarrierDay, airline_names
from examples.flight_refunds.progress import Cell, LiveView, PlainView, Snapshot, calendar, dollars
from perdure import RunInfo
from perdure.ports.store import RunStatus

UA1, UA2, HA2 = (CarrierDay(carrier, date(2013, 1, day)) for carrier, day in (("UA", 1), ("UA", 2), ("HA", 2)))
CELLS = {UA1: Cell.PAID, UA2: Cell.RUNNING, HA2: Cell.UNWOUND}


def snapshot(seconds: float, cells: dict[CarrierDay, Cell] | None = None) -> Snapshot:
    return Snapshot(seconds, CELLS if cells is None else cells, paid=3, paid_cents=123_450, worker="process 7, working")


def text_of(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def terminal(width: int) -> Console:
    return Console(file=io.StringIO(), force_terminal=True, color_system=None, width=width, height=40)


def test_a_snapshot_counts() -> None:
    now = snapshot(1.0)
    assert (now.total, now.ended) == (3, 2)
    assert now.counts[Cell.RUNNING] == 1


def test_plain_lines_come_when_due_and_at_the_end() -> None:
    lines: list[str] = []
    view = PlainView(lines.append, every_s=2.0)
    with view:
        view.show(snapshot(0.0))
        view.show(snapshot(1.9))
        view.show(snapshot(2.0))
        view.say("kill -9 7")
        view.show_command("perdure check", "no live runs\n\nfine\n")
        view.show(snapshot(2.1, {UA1: Cell.QUIET}))
    assert lines == [
        "   0.0 s  2 of 3 runs ended, 1 unwound, 3 refunds paid ($1,234.50)",
        "   2.0 s  2 of 3 runs ended, 1 unwound, 3 refunds paid ($1,234.50)",
        "   2.0 s  kill -9 7",
        "   2.0 s  $ perdure check",
        "          no live runs",
        "",
        "          fine",
        "   2.1 s  1 of 1 runs ended, 0 unwound, 3 refunds paid ($1,234.50)",
    ]


def test_the_calendar_has_a_row_a_carrier_and_a_column_a_day() -> None:
    console = terminal(100)
    console.print(calendar(snapshot(0.0), airline_names()))
    rows = [line.rstrip() for line in text_of(console).splitlines()]
    assert rows == ["day of January 2013    1", "Hawaiian Airlines Inc.   ✗", "United Air Lines Inc.  ■ ▶"]


def test_the_live_view_ends_with_everything_on_the_screen() -> None:
    console = terminal(100)
    with LiveView(console, airline_names()) as view:
        view.show(snapshot(1.0))
        view.say("kill -9 7: the worker is dead")
        view.show_command("perdure check", "[no] live runs\n")
    shown = text_of(console)
    for expected in (
        "2 of 3 runs ended",
        "process 7, working",
        "3 refunds paid, $1,234.50",
        "1.0 s  kill -9 7",
        "1.0 s  $ perdure check",
        "[no] live runs",
    ):
        assert expected in shown


def test_a_month_fits_on_a_narrow_terminal() -> None:
    console = terminal(80)
    month = {CarrierDay("FL", date(2013, 1, day)): Cell.WAITING for day in range(1, 32)}
    view = LiveView(console, airline_names())
    view.show(snapshot(0.0, month))
    with view:
        pass
    assert "AirTran Airways Corporation " + 31 * "·" in text_of(console)


def info(status: RunStatus, reason: str = "") -> RunInfo:
    ended_us = 1 if status in ("succeeded", "failed", "canceled") else None
    return RunInfo(
        run_id="r1",
        pipeline="refunds",
        tenant="default",
        resource=UA1.name,
        status=status,
        submitted_us=0,
        due_us=None,
        ended_us=ended_us,
        deadline_us=0,
        reason=reason,
        step="",
        generation=1,
        build="",
        worker="",
        canceling=False,
        attention=False,
    )


@pytest.mark.parametrize(
    ("run", "has_paid", "cell"),
    [
        (None, False, Cell.WAITING),
        (info("ready"), False, Cell.WAITING),
        (info("ready", "error"), False, Cell.RETRYING),
        (info("ready", "polling"), True, Cell.SETTLING),
        (info("running"), True, Cell.RUNNING),
        (info("succeeded"), True, Cell.PAID),
        (info("succeeded"), False, Cell.QUIET),
        (info("failed"), False, Cell.UNWOUND),
        (info("held"), False, Cell.STUCK),
        (info("invalid"), False, Cell.STUCK),
    ],
)
def test_signs_of_runs(run: RunInfo | None, has_paid: bool, cell: Cell) -> None:
    assert cell_of(run, has_paid=has_paid) is cell


def test_runs_that_need_an_operator_end_the_watching() -> None:
    complain_if_stuck({UA1.name: info("running")}, Path("demo"))
    with pytest.raises(RunsStuck, match=r"UA-2013-01-01 is held: attempts-exhausted\n.*perdure explain r1"):
        complain_if_stuck({UA1.name: info("held", "attempts-exhausted")}, Path("demo"))


def test_dollars() -> None:
    assert dollars(123_456_789) == "$1,234,567.89"
