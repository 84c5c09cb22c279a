"""`perdure scenario`: agreement, the first difference, malformed lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.cli.exits import Exit
from tests.cli.harness import Cli, record
from tests.postgres import PostgresServer

GOOD = """\
scenario an insert behind a pinned step never runs (E-2, E-7)
deploy A B C
run A -> ok
run B -> error
deploy A X B C
run B #2 -> ok
run C -> ok
output -> ok
end success
"""


def write(folder: Path, text: str) -> str:
    (folder / "x.scenario").write_text(text, encoding="utf-8")
    return "x.scenario"


def test_all_places_agree(folder: Path, cli: Cli) -> None:
    answer = cli("scenario", write(folder, GOOD), "--on", "all")
    assert answer.code == Exit.OK
    assert answer.out == "".join(f"all good: 1 scenario on {place}\n" for place in ("core", "memory", "sqlite"))
    found = cli("scenario", "x.scenario", "--on", "sqlite", "--json").json()
    assert found == {"on": "sqlite", "scenarios": 1, "difference": None}


@pytest.mark.parametrize("place", ["core", "memory", "sqlite"])
def test_the_first_difference_is_shown(folder: Path, cli: Cli, place: str) -> None:
    name = write(folder, GOOD.replace("run B #2 -> ok", "run X -> ok"))
    answer = cli("scenario", name, "--on", place)
    assert answer.code == Exit.FINDING
    head, *rows = answer.out.splitlines()
    assert head.startswith("x.scenario:6: ")
    assert [row.split(maxsplit=1)[0] for row in rows] == ["scenario", "line", "expected", "chosen"]
    assert "run X" in rows[2]
    assert "run B" in rows[3]
    found = cli("scenario", name, "--on", place, "--json").json()
    difference = record(found["difference"])
    assert set(difference) == {"file", "scenario", "line", "text", "expected", "chosen"}
    assert difference["line"] == 6


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (GOOD.replace("run C -> ok", "run C => ok"), "x.scenario:7: expected "),
        ("deploy A\n", "x.scenario:1: expected 'scenario NAME' first"),
        ("scenario x\nrun A -> ok\n", "x.scenario:2: expected 'deploy STEP...'"),
    ],
)
def test_a_malformed_line_is_named_with_what_was_expected(folder: Path, cli: Cli, text: str, said: str) -> None:
    answer = cli("scenario", write(folder, text))
    assert (answer.code, answer.out) == (Exit.USAGE, "")
    assert said in answer.err


def test_the_url_of_a_store_names_where_one_is_made_and_removed(
    folder: Path, cli: Cli, postgres: PostgresServer
) -> None:
    """In SQLite beside the file, in PostgreSQL in another schema; what is there is left alone, the difference shown."""
    write(folder, GOOD)
    (folder / "kept.db").write_text("mine")
    for url in ("sqlite:///kept.db", postgres.url(schema="kept")):
        kind = url.partition(":")[0]
        answer = cli("scenario", "x.scenario", "--on", url)
        assert (answer.code, answer.out) == (Exit.OK, f"all good: 1 scenario on {kind}\n"), answer.err
        assert cli("scenario", "x.scenario", "--on", url, "--json").json()["on"] == kind
    write(folder, GOOD.replace("run B #2 -> ok", "run X -> ok"))
    for url in ("sqlite:///kept.db", postgres.url(schema="kept")):
        assert cli("scenario", "x.scenario", "--on", url).code == Exit.FINDING
    assert sorted(path.name for path in folder.iterdir()) == ["kept.db", "x.scenario"]
    assert postgres.sql("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'kept%'") == ""


def test_wrong_files_and_places(folder: Path, cli: Cli) -> None:
    (folder / "latin1").write_bytes(b"\xe9")
    (folder / "empty").write_text("# nothing\n")
    (folder / "good").write_text(GOOD)
    for arguments, said in (
        (("missing",), "missing cannot be read: No such file"),
        (("x" * 300,), "cannot be read: File name too long"),
        ((".",), ". is a folder"),
        (("latin1",), "not UTF-8"),
        (("empty",), "no scenario in empty"),
        (("empty", "--on", "paper"), "'paper' is not one of core, memory, sqlite, all, and no URL"),
        (("good", "--on", "paper://x"), "no store is called 'paper://x'"),
        (("good", "--on", "memory://x"), "scenarios run on core, on memory, and on URLs of"),
        (("good", "--on", "sqlite:///nowhere/x.db"), "no file can be made beside nowhere/x.db: No such file"),
        (("good", "--on", "postgresql://a:secret@/x?host=/nowhere"), "x at /nowhere (schema perdure_"),
        ((), "FILE"),
    ):
        answer = cli("scenario", *arguments)
        assert answer.code in (Exit.USAGE, Exit.STORE)
        assert said in answer.err
        assert "secret" not in answer.err
