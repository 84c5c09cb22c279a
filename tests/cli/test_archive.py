"""`perdure archive`, `gc --archive` and `restore` [R-9, I-2]."""

from __future__ import annotations

import asyncio
from pathlib import Path

from perdure.cli.exits import Exit
from perdure.runtime.retention import Archiver
from perdure.storage.archives.folder import FolderArchive
from perdure.storage.memory import MemoryStore
from tests.cli.harness import Cli, record, records
from tests.runtime.archives import ended_runs, fill


def ids(folder: Path) -> list[str]:
    """What is in an archive, by its lists."""
    return [run for path in sorted(folder.glob("*.ids")) for run in path.read_text().splitlines()]


def test_archive_list_and_restore(shop: Path, cli: Cli) -> None:
    """The way there and back, as people see it; the counts are those of the runs that have ended."""
    assert (
        cli("archive", "--older-than", "0", "--to", "old", "--dry-run").out == "3 runs would be archived and removed\n"
    )
    assert not (shop / "old").exists()
    answer = cli("archive", "--older-than", "0", "--to", "old", "--limit", "1")
    assert answer.code == Exit.OK
    assert answer.out.startswith("1 run archived in 1 part, 1 run removed, ")
    assert answer.out.endswith("2 runs more are old enough\n")
    assert cli("gc", "--older-than", "0", "--archive", "old").out.startswith(
        "2 runs archived in 1 part, 2 runs removed"
    )
    assert cli("list", "--json").json()["counts"] == {"ready": 1, "held": 1, "invalid": 1}
    listed = cli("archive", "--list", "old").out.splitlines()
    assert listed[0].split() == ["PART", "STORE", "FIRST", "ENDED", "LAST", "ENDED", "RUNS"]
    assert listed[-1] == "2 parts, 3 runs"
    run = ids(shop / "old")[0]
    answer = cli("restore", "old", "--run", run)
    assert answer.out.splitlines()[0].startswith("1 run restored of 1 run, ")
    assert answer.out.splitlines()[1] == "look at them with --store sqlite:///restored.db"
    assert cli("restore", "old", "--run", run[:-1], "--dry-run").out.startswith("all good: 1 run, ")
    shown = cli("show", run, "--store", "sqlite:///restored.db", "--json").json()
    assert (shown["run_id"], shown["pipeline"]) == (run, "job")
    assert cli("journal", run, "--store", "sqlite:///restored.db", "--json").json_lines()[0]["fact"] == "RunSubmitted"
    assert cli("explain", run, "--store", "sqlite:///restored.db", "--app", "shop:app").code == Exit.OK
    assert "restored-2.db" in cli("restore", "old", "--all").out
    assert cli("verify", "--store", "sqlite:///restored-2.db").out.startswith("all good: 3 runs")
    assert "3 runs known" in cli("restore", "old", "--all", "--to", "sqlite:///restored-2.db").out
    assert cli("restore", "old", "--all", "--dry-run").out.startswith("all good: 3 runs, ")
    assert cli("restore", "old", "--since", "1h", "--dry-run").out.startswith("all good: 3 runs, ")
    assert cli("restore", "old", "--until", "1h", "--dry-run").out == "all good: 0 runs, 0 facts in 0 parts\n"


def test_json(shop: Path, cli: Cli) -> None:
    """The keys that the help names."""
    found = cli("archive", "--older-than", "0", "--to", "old", "--label", "my-shop", "--json").json()
    assert (found["removed"], found["archived"], found["remaining"], found["dry_run"]) == (3, 3, 0, False)
    assert found["findings"] == []
    (part,) = cli("archive", "--list", "old", "--json").json_lines()
    assert (part["store"], part["runs"]) == ("my-shop", 3)
    assert found["parts"] == [part["name"]]
    assert str(part["from"]) < str(part["to"])
    found = cli("restore", "old", "--all", "--json").json()
    assert {**found, "facts": 0} == {
        "parts": 1, "runs": 3, "facts": 0, "restored": 3, "known": 0, "store": "sqlite:///restored.db", "findings": [],
        "dry_run": False,
    }  # fmt: skip
    assert cli("restore", "old", "--all", "--dry-run", "--json").json()["store"] is None


def test_damage_is_named_and_makes_the_exit_code_one(shop: Path, cli: Cli) -> None:
    """Exit code 1 and the part's name; what could be read is restored."""
    assert cli("archive", "--older-than", "0", "--to", "old").code == Exit.OK
    (part,) = (shop / "old").glob("*.gz")
    part.write_bytes(part.read_bytes()[:-4])
    answer = cli("restore", "old", "--all", "--dry-run")
    assert answer.code == Exit.FINDING
    assert "it is truncated; 3 of 3 runs could be read" in answer.out
    assert part.name in answer.out
    answer = cli("restore", "old", "--all", "--json")
    assert answer.code == Exit.FINDING
    assert record(records(answer.json()["findings"])[0])["run_id"] is None
    assert answer.json()["restored"] == 3


def test_wrong_uses_say_what_to_do(shop: Path, cli: Cli) -> None:
    """One line each, with the exit code of its kind; no store is made for nothing."""
    cases = {
        ("archive", "--older-than", "1d"): (Exit.USAGE, "missing option"),
        ("archive", "--to", "old"): (Exit.USAGE, "missing option"),
        ("archive", "--list", "old", "--to", "old"): (Exit.USAGE, "--list shows an archive"),
        ("archive", "--list", "nowhere"): (Exit.STORE, "the archive nowhere: cannot be used: No such file"),
        ("archive", "--older-than", "0", "--to", "ftp://x/y"): (Exit.USAGE, "no archive is called 'ftp://x/y'"),
        ("archive", "--older-than", "0", "--to", "ftp://x/y", "--dry-run"): (Exit.USAGE, "no archive is called"),
        ("archive", "--older-than", "0", "--to", "a/b"): (Exit.STORE, "No such file"),
        ("archive", "--older-than", "0", "--to", "a", "--label", "My Shop"): (Exit.USAGE, "label must be"),
        ("gc", "--older-than", "0", "--archive", "c/d"): (Exit.STORE, "nothing was removed that is not archived"),
        ("restore", "nowhere", "--all"): (Exit.STORE, "the archive nowhere"),
        ("restore", "."): (Exit.USAGE, "--run RUN, --all, or --since"),
        ("restore", ".", "--all", "--run", "x"): (Exit.USAGE, "--run RUN, --all, or --since"),
        ("restore", ".", "--run", "nobody"): (Exit.NOT_FOUND, "has no run 'nobody', in 0 parts"),
        ("restore", ".", "--all", "--dry-run", "--to", "sqlite:///x.db"): (Exit.USAGE, "--dry-run writes nothing"),
        ("restore", ".", "--all", "--to", "x.db"): (Exit.USAGE, "--to: 'x.db' is not the URL of a store"),
        ("restore", ".", "--all", "--to", "memory://"): (Exit.USAGE, "lives inside of one process"),
    }
    for arguments, (code, words) in cases.items():
        answer = cli(*arguments)
        assert answer.code == code, (arguments, answer)
        assert words in answer.err, arguments
        assert answer.out == ""
    assert not list(shop.glob("restored*"))


def test_a_run_is_named_by_its_beginning(folder: Path, cli: Cli) -> None:
    """As everywhere: six characters are enough where they fit one run alone."""
    runs = ended_runs()

    async def archived() -> None:
        store = MemoryStore()
        await store.open(owner=None)
        await fill(store)
        archive = FolderArchive(folder / "old")
        await archive.open(create=True)
        async for _ in Archiver(store, archive, "shop").parts(10**18, 3):
            pass

    asyncio.run(archived())
    found = ids(folder / "old")
    assert sorted(found) == sorted(run.row.run.run_id for run in runs[:3])
    assert len({run_id[:6] for run_id in found}) == 1
    answer = cli("restore", "old", "--run", found[0][:6])
    assert (answer.code, found[1] in answer.err) == (Exit.USAGE, True)
    assert "more than one run begins with" in answer.err
    assert cli("restore", "old", "--run", found[0][:5]).code == Exit.NOT_FOUND
    assert cli("restore", "old", "--run", found[0][:-1]).out.startswith("1 run restored of 1 run, ")
