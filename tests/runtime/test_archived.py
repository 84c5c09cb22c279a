"""Lines and names of archives: what any release wrote is read by every later one [R-9, J-13]."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from perdure.core.chain import chain_hash
from perdure.ports.store import IndexState, JournalRow, LoadedRun, NewRun, RunRow
from perdure.runtime.archived import (
    ArchivedRun,
    archive_problem,
    chain_problem,
    decode_line,
    encode_line,
)
from perdure.runtime.parts import Part, PartName, decode_index, encode_index, label_of, part_name, read_lines
from perdure.runtime.verifying import check_run

CORPUS = Path(__file__).parent / "corpus" / "archive-1.jsonl"

NOT_ARCHIVED = {"due_us", "worker", "ledger", "awaits", "need", "permits", "at_us", "run_id", "mutexes", "entrances"}
"""Columns that a run which has ended does not have; and its id, which has another name in a line."""


def test_every_column_is_archived() -> None:
    """R-9: whoever adds a column to the index says here, or in a line, what becomes of it."""
    columns = {*NewRun.__struct_fields__, *IndexState.__struct_fields__}
    fields = set(ArchivedRun.__struct_fields__)
    assert columns - NOT_ARCHIVED == fields - {"format", "perdure", "id", "ended_us", "rows"}


def test_lines_of_the_first_format_are_read_for_ever() -> None:
    """J-13, R-9: a frozen file. If this fails, archives of users can no longer be read."""
    lines = CORPUS.read_bytes().splitlines(keepends=True)
    runs = [decode_line(line) for line in lines]
    assert [run.row.state.status for run in runs] == ["succeeded", "failed", "canceled"]
    assert [run.row.run.annotations for run in runs] == [(("n", "0"),), (), ()]
    assert [run.row.run.resource for run in runs] == ["<number 0>", "<fails>", "<later>"]
    assert all(run.row.ended_us and run.row.state.priority in (0, 3) for run in runs)
    for run in runs:
        assert (chain_problem(run), check_run(run, None, 0)) == ("", [])
    assert [set(json.loads(line)) for line in lines] == [set(ArchivedRun.__struct_fields__)] * 3


def run_with(facts: bytes, **columns: object) -> LoadedRun:
    """An ended run of one row."""
    row = JournalRow(1, 1, 5, bytes(16), chain_hash(b"", 1, 1, 5, bytes(16), facts), facts)
    new = NewRun("run-1", "t", "p", "r", None, False, bytes(32), 1)
    return LoadedRun(RunRow(7, new, replace(IndexState("failed"), **columns), 9, False), None, (row,))


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_facts_come_back_byte_for_byte_whatever_they_are(text: str) -> None:
    """J-11: also where they are no JSON, or would break the line."""
    for facts in (
        text,
        f"[{text}]",
        f"[{json.dumps(text)}]",
        f" [{json.dumps(text)}]",
        json.dumps(text),
        f"[\n{text}]",
    ):
        run = run_with(facts.encode())
        line = encode_line(run, "1.2")
        assert line.count(b"\n") == 1
        problem = archive_problem(run, line)
        assert problem == "" or "a line is no run" in problem  # such a run stays where it is
        if problem == "":
            assert decode_line(line).rows == run.rows
    assert archive_problem(run_with(b'[{"fact":"X"}]'), encode_line(run_with(b'[{"fact":"X"}]'), "1.2")) == ""


def test_what_would_not_come_back_is_a_problem() -> None:
    """R-9: a run that waits for others, say, has not ended, whatever its row says."""
    run = run_with(b"[]", due_us=4)
    assert "would not bring back" in archive_problem(run, encode_line(run, "1.2"))
    other = encode_line(run_with(b"[{}]"), "1.2")
    assert "would not bring back" in archive_problem(run_with(b"[]"), other)


def test_names_tell_what_is_in_a_part() -> None:
    """R-9: and are read again; whole seconds around the ends of its runs."""
    part = Part()
    for number, ended_us in enumerate((1_796_068_967_000_001, 1_796_068_978_000_000)):
        part.add(f"run-{number}", ended_us, b"{}\n")
    name, data = part.finish("mail", 12)
    assert str(name) == f"mail.20261130T200247Z.20261130T200258Z.000012.2.{name.digest}.jsonl.gz"
    read = part_name(str(name))
    assert read == PartName("mail", 1_796_068_967_000_000, 1_796_068_978_000_000, 12, 2, name.digest)
    assert list(read_lines(data)) == [b"{}", b"{}"]
    ids = encode_index(part.ids)
    assert decode_index(ids, name) == frozenset(("run-0", "run-1"))
    for damaged in (b"", ids[:-1], ids[:-3], ids + b"x\n", b"\xff\n\n"):
        assert decode_index(damaged, name) is None


@pytest.mark.parametrize(
    ("url", "label"),
    [
        ("sqlite:///mail.db", "mail"),
        ("sqlite:////var/lib/my%20shop/Orders.v2.sqlite?network=allow", "orders-v2"),
        ("postgresql://ada:secret@db.example/shop?schema=prod_eu", "shop-prod-eu"),
        ("postgresql://ada:secret@/shop?host=/tmp/x", "shop"),
        ("postgresql://ada:secret@db.example", "store"),
        ("memory://tests", "tests"),
        ("memory://", "store"),
        ("sqlite:///üü.db", "store"),
    ],
)
def test_labels_come_from_urls_without_secrets(url: str, label: str) -> None:
    """R-9"""
    assert label_of(url) == label
