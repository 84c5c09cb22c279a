"""What a running engine shows: which events become lines, and what the live view counts [R-15]."""

from __future__ import annotations

from perdure.cli.monitor import LINES_A_SECOND, LogLines, Monitor, event_json
from perdure.cli.tables import plain
from perdure.ports.observer import Event, EventKind

SECOND = 1_000_000


def event(kind: EventKind, at_us: int = 0, run_id: str = "r1", step: str = "", attempt: int = 0) -> Event:
    return Event(kind, at_us, run_id, "order", step, "forward" if step else "", attempt, "")


def test_ends_become_lines_and_single_steps_do_not() -> None:
    log = LogLines()
    assert log.lines(event("attempt-succeeded", step="a")) == []
    assert [line.split("  ")[1] for line in log.lines(event("succeeded"))] == ["run r1 of order succeeded"]
    assert log.lines(event("retry-scheduled", step="a", attempt=2))[0].endswith(
        "run r1 of order retry scheduled, a attempt 2"
    )


def test_what_is_frequent_is_summed_up_and_what_matters_is_not() -> None:
    log = LogLines()
    lines = [line for _ in range(500) for line in log.lines(event("succeeded", at_us=SECOND))]
    assert len(lines) == LINES_A_SECOND
    assert len(log.lines(event("failed", at_us=SECOND))) == 1
    later = log.lines(event("succeeded", at_us=2 * SECOND))
    assert later[0].endswith("480 more succeeded")
    assert len(later) == 2
    assert log.tick(3 * SECOND) == []


def test_trouble_with_the_store_is_news_and_no_line_beside_that_of_the_log() -> None:
    trouble, monitor = event("store-trouble", run_id=""), Monitor(started_us=0)
    assert LogLines().lines(trouble) == []
    monitor.see(trouble)
    assert "store trouble" in "\n".join(plain(monitor.table(SECOND)))


def test_the_live_view_counts_and_names_what_is_at_work() -> None:
    monitor = Monitor(started_us=0)
    monitor.read({("order", "running"): 2, ("order", "held"): 1, ("other", "running"): 1})
    for e in (
        event("attempt-started", 0, "r1", "a", 1),
        event("attempt-succeeded", 1, "r1", "a", 1),
        event("attempt-started", 2, "r1", "b", 1),
        event("attempt-started", 3, "r2", "a", 1),
        event("retry-scheduled", 4, "r2", "a", 1),
        event("attempt-started", 5, "r2", "a", 2),
        event("attempt-started", 6, "r3", "a", 1),
        event("attempt-succeeded", 7, "r3", "a", 1),
        event("failed", 8, "r3", "a"),
    ):
        monitor.see(e)
    text = "\n".join(plain(monitor.table(2 * SECOND)))
    assert "3 running, 1 held" in text
    assert "2 steps done (1.0/s), 1 retry" in text
    assert "r1  b  1 s" in text
    assert "r2  a attempt 2  1 s" in text
    assert "r3  a" not in text
    assert "run r3 of order failed, a" in text
    assert monitor.summary(2 * SECOND).startswith("1 run failed, 2 steps done")


def test_an_event_as_json() -> None:
    assert event_json(event("held")) == {
        "event": "held", "at": "1970-01-01T00:00:00.000000Z", "run_id": "r1", "pipeline": "order", "step": None,
        "phase": None, "attempt": None, "detail": None, "item": None,
    }  # fmt: skip


def test_items_are_counted_apart_and_shown_while_they_run() -> None:
    """B-2: several of one run at once."""
    monitor = Monitor(started_us=0)
    for i in range(3):
        monitor.see(Event("attempt-started", 0, "r1", "order", "a", "", 1, "", i))
    monitor.see(Event("attempt-succeeded", SECOND, "r1", "order", "a", "", 1, "", 0))
    monitor.see(Event("attempt-failed", SECOND, "r1", "order", "a", "", 1, "no crew", 2))
    rows = [" ".join(line.split()) for line in plain(monitor.table(2 * SECOND))]
    assert [row for row in rows if "r1" in row] == ["now r1 a item 1 2 s"]
    assert "1 item done" in monitor.summary(2 * SECOND)
    monitor.see(Event("unit-resolved", SECOND, "r1", "order", "a"))
    monitor.see(Event("released", SECOND, "r1", "order"))
    assert not monitor.at_work
    assert "1 step done" in monitor.summary(2 * SECOND)


def test_a_run_that_begins_to_wait_is_a_line() -> None:
    waiting = Event("waiting", SECOND, "r1", "order", "a", "", 0, "waits for message 'go'")
    assert LogLines().lines(waiting)[0].endswith("run r1 of order waiting, a: waits for message 'go'")
