"""Tables in a pipe: aligned, without frames, and never steering a terminal [I-2]."""

from __future__ import annotations

import pytest

from perdure.cli.tables import Cell, Table, fitting, plain, safe, width


def test_columns_are_aligned_and_lines_end_without_blanks() -> None:
    table = Table(["run", "age", "step"], right=frozenset({"age"}))
    table.add("a", "3 s", "reserve/v1")
    table.add(Cell("bcd", "bold"), "120 s", "")
    assert plain(table) == ["RUN    AGE  STEP", "a      3 s  reserve/v1", "bcd  120 s"]


def test_a_table_without_a_head() -> None:
    table = Table([])
    table.add("status", "held")
    table.add("at", "x")
    assert plain(table) == ["status  held", "at      x"]
    assert plain(Table([])) == []


def test_wide_and_combining_characters_keep_the_columns() -> None:
    table = Table(["what", "n"])
    table.add("日本", "1")
    table.add("e\u0301", "2")
    assert plain(table) == ["WHAT  N", "日本  1", "e\u0301     2"]
    assert width("日本") == 4


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("two\nlines\t", "two\\nlines\\t"),
        ("\x1b[31mred\x07", "\\x1b[31mred\\x07"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("\U000e0001", "\\U000e0001"),
        ("é 日本", "é 日本"),
    ],
)
def test_what_could_steer_a_terminal_is_written_out(text: str, shown: str) -> None:
    assert safe(text) == shown
    table = Table([])
    table.add(text)
    assert plain(table) == [shown]


def test_a_narrow_terminal_goes_without_empty_and_spare_columns() -> None:
    table = Table(["run", "step", "reason", "age"], wraps="reason", spare=("age", "step"))
    table.add("r" * 21, "reserve/v1", "", "120 s")
    assert fitting(table, 60).columns == ["run", "step", "reason", "age"]
    assert fitting(table, 45).columns == ["run", "step", "reason"]
    assert fitting(table, 30).columns == ["run", "reason"]
    assert fitting(table, 3).columns == ["run", "reason"]
    table.rows[0] = ["r" * 21, "", "", "120 s"]
    narrow = fitting(table, 60)
    assert narrow.columns == ["run", "reason", "age"]
    assert narrow.rows == [["r" * 21, "", "120 s"]]
