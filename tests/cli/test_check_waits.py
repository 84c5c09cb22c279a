"""`check`, `drain` and `ledgers` where runs are inside waits, items and child runs [D-6, B-20]."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from perdure.cli.exits import Exit
from tests.cli.harness import Answer, Cli, records
from tests.cli.waiting import WAITING

APPROVAL = 'approval = AwaitMessage("approval/v1", name="approval", type=Approval, timeout=timedelta(days=3))'
ITEMS = 'items = ForEach("items/v1", items=numbers, handler=work, '
ASKED = "deps=object, steps=(approval,), output=by)"


@pytest.fixture
def desk(folder: Path, cli: Cli) -> Cli:
    """Give a command line that imports the project anew each time, beside runs that wait."""
    (folder / "desk.py").write_text(WAITING, encoding="utf-8")
    (folder / "pyproject.toml").write_text('[tool.perdure]\napp = "desk:app"\n', encoding="utf-8")

    def run(*arguments: str, stdin: bytes | None = None) -> Answer:
        sys.modules.pop("desk", None)
        return cli(*arguments, stdin=stdin)

    for text in "xyz":
        assert run("submit", "asked", f'"{text}"').code == Exit.OK
    for pipeline in ("parent", "itemized"):
        assert run("submit", pipeline, '"x"').code == Exit.OK
    assert run("run", "--until-idle").code == Exit.OK
    return run


def edit(*changes: tuple[str, str]) -> None:
    text = WAITING
    for was, now in changes:
        assert was in text
        text = text.replace(was, now)
    Path("desk.py").write_text(text, encoding="utf-8")


SLEEP = (APPROVAL, 'approval = Sleep("approval/v1", 60)')
ONE_BY_ONE = (ITEMS, ITEMS.replace("items/v1", "items/v2"))
NO_TEXT = ("return inv[approval].by", "return inv.input")
IMPORT = ("import App, ", "import App, Sleep, retired, ")


def test_what_became_of_waits_and_items_is_told(desk: Cli) -> None:
    """Three runs and two child runs wait for a message, one has open items."""
    edit(SLEEP, ONE_BY_ONE, NO_TEXT, IMPORT)
    answer = desk("check")
    assert answer.code == Exit.FINDING
    assert (
        "5 runs would become invalid because they wait for a message in approval/v1, which is a sleep now: give that "
        "another id, and keep the old step as retired"
    ) in answer.out
    assert "1 run would become invalid because it has open items in items/v1, which is gone: keep it as retired" in (
        answer.out
    )
    assert "asked: flags approval/v1: message -> sleep; 5 live runs, 1 distinct ledger" in answer.out
    assert "approval/v1 waits for a message" in answer.out
    assert "legs/v1 waits for child runs" in answer.out


def test_an_export_tells_the_kinds_of_steps(desk: Cli) -> None:
    assert desk("ledgers", "export", "--output", "ledgers.json").code == Exit.OK
    edit(SLEEP, NO_TEXT, IMPORT)
    exported, looked = desk("check", "--ledgers", "ledgers.json"), desk("check")
    assert exported.code == Exit.FINDING
    assert exported.out.split("WHERE")[0] == looked.out.split("WHERE")[0]


def test_a_retired_wait_is_not_drained_while_a_run_is_in_it(desk: Cli) -> None:
    edit((ASKED, ASKED.replace("(approval,)", "(retired(approval),)")), NO_TEXT, IMPORT)
    assert desk("check").code == Exit.OK
    assert desk("deploy").code == Exit.OK
    (found,) = records(desk("drain", "--json").json()["steps"])
    assert (found["step"], found["drained"], found["runs"], found["why"]) == (
        "approval/v1", False, 5, "5 runs are at it"
    )  # fmt: skip


def test_a_lock_says_which_step_became_another_kind(desk: Cli) -> None:
    desk("check", "--write-lock")
    edit(SLEEP, NO_TEXT, IMPORT)
    answer = desk("check", "--lock", "perdure.lock", "--strict")
    assert answer.code == Exit.FINDING
    assert "warning: approval/v1 became a sleep, and was a wait for a message" in answer.out
    assert "warning: the state type of approval/v1 changed under the same id (Approval to NoneType)" in answer.out


def test_open_items_whose_type_changed_are_named(desk: Cli) -> None:
    """B-20: the items are in the journal, and the handler of today reads those that are left."""
    desk("check", "--write-lock")
    edit(
        ("-> list[int]:\n    return [1, 2, 3, 4]", '-> list[str]:\n    return ["1"]'),
        ("ItemInvocation[str, object, int]) -> int", "ItemInvocation[str, object, str]) -> int"),
        ('    if inv.item == 3:\n        raise OSError("no route")\n    return inv.item', "    return len(inv.item)"),
    )
    answer = desk("check")
    assert "1 run has open items in items/v1, and the type of these, or of what is made of them, changed" in answer.out
    assert "(int to str)" in answer.out
