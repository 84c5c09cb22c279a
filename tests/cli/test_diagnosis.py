"""What `doctor` says about a machine and a store."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from perdure.cli import diagnosis
from perdure.cli.examine import check_owner, is_alive
from perdure.cli.exits import Exit
from perdure.storage.sqlite.owner import Holder, Ownership
from tests.cli.harness import Cli

MOUNTS = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:40 / /tmp rw shared:2 - tmpfs tmpfs rw
31 22 0:41 / /mnt/my\\040files rw shared:3 - nfs4 server:/x rw
32 31 8:2 / /mnt/my\\040files/local rw shared:4 - xfs /dev/sdb rw
rubbish
"""


@pytest.mark.parametrize(
    ("path", "kind", "verdict"),
    [
        ("/home/x.db", "ext4", "ok"),
        ("/tmpx/x.db", "ext4", "ok"),
        ("/tmp/x.db", "tmpfs", "warn"),
        ("/mnt/my files/x.db", "nfs4", "fail"),
        ("/mnt/my files/local/x.db", "xfs", "ok"),
    ],
)
def test_the_file_system_under_a_store(path: str, kind: str, verdict: str) -> None:
    assert diagnosis.file_system(Path(path), MOUNTS) == kind
    assert diagnosis.check_file_system(Path(path), MOUNTS).verdict == verdict


def test_a_system_that_does_not_tell_its_mounts() -> None:
    assert diagnosis.check_file_system(Path("/x.db"), "").verdict == "ok"


@pytest.mark.parametrize(("ms", "verdict"), [(0.2, "ok"), (40.0, "warn"), (0.001, "warn")])
def test_how_fast_the_disk_syncs(ms: float, verdict: str) -> None:
    assert diagnosis.check_sync([ms] * 3 + [900.0]).verdict == verdict


def test_syncing_leaves_nothing_behind(tmp_path: Path) -> None:
    assert len(diagnosis.sync_times_ms(tmp_path)) == diagnosis.SYNCS
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("info", "verdicts"),
    [
        ({"journal_mode": "wal", "synchronous": "FULL"}, ["ok", "ok"]),
        ({"journal_mode": "delete", "synchronous": "1"}, ["fail", "fail"]),
        ({}, []),
    ],
)
def test_durability_settings(info: dict[str, str | int], verdicts: list[str]) -> None:
    assert [check.verdict for check in diagnosis.check_settings(info)] == verdicts


def test_runs_that_wait_for_somebody() -> None:
    counts = {"ready": 3, "held": 2, "invalid": 1, "corrupt": 1}
    found = {check.name: check for check in diagnosis.check_runs(counts, 3, alive=False)}
    assert {name: check.verdict for name, check in found.items()} == {
        "runs": "ok",
        "held runs": "warn",
        "invalid runs": "warn",
        "corrupt runs": "fail",
        "overdue runs": "warn",
    }
    assert "no engine is running" in found["overdue runs"].advice
    assert [check.found for check in diagnosis.check_runs({}, 0, alive=True)] == ["none yet"]


def test_an_engine_that_died_is_told_from_one_that_runs() -> None:
    host = socket.gethostname()
    mine = Holder("w", os.getpid(), host, "2027-01-01T00:00:00Z")
    gone = Holder("w", 2**22 + 1, host, "2027-01-01T00:00:00Z")  # above every process number
    far = Holder("w", 2**22 + 1, host + "x", "2027-01-01T00:00:00Z")
    assert [is_alive(mine), is_alive(gone), is_alive(far)] == [True, False, True]
    assert check_owner(None, alive=False).verdict == "ok"
    assert check_owner(mine, alive=True).verdict == "ok"
    assert "died" in check_owner(gone, alive=False).found


def verdicts(cli: Cli, *arguments: str) -> dict[str, str]:
    """Verdicts by check."""
    return {str(line["check"]): str(line["verdict"]) for line in cli("doctor", *arguments, "--json").json_lines()}


def test_doctor_on_a_machine_without_a_project(cli: Cli) -> None:
    answer = cli("doctor")
    assert answer.code == Exit.OK
    assert "-> name it with --app" in answer.out
    found = verdicts(cli)
    assert found["application"] == found["store"] == "warn"


def test_doctor_on_a_project(shop: Path, cli: Cli) -> None:
    found = verdicts(cli)
    expected = {"application": "ok", "store": "ok", "journal mode": "ok", "synchronous": "ok", "engine": "ok"}
    assert found.items() >= {**expected, "held runs": "warn", "invalid runs": "warn"}.items()
    assert set(cli("doctor", "--json").json_lines()[0]) == {"check", "verdict", "found", "advice"}
    assert "job" in cli("doctor").out


def test_doctor_makes_no_store(project: Path, cli: Cli) -> None:
    assert verdicts(cli)["store"] == "warn"
    assert not (project / "shop.db").exists()


@pytest.mark.parametrize("content", [b"no database", b"x" * 5000])
def test_advice_for_a_store_that_cannot_be_used_does_not_send_back_to_doctor(
    folder: Path, cli: Cli, content: bytes
) -> None:
    (folder / "text.db").write_bytes(content)
    store = next(
        c for c in cli("doctor", "--store", "sqlite:///text.db", "--json").json_lines() if c["check"] == "store"
    )
    assert store["verdict"] == "fail"
    assert "perdure doctor" not in str(store["advice"])
    assert "backup" in str(store["advice"])


def test_advice_for_a_server_does_not_speak_of_files(folder: Path, cli: Cli) -> None:
    answer = cli("doctor", "--store", "postgresql://me@/x?host=/nowhere&bogus=1", "--json")
    store = next(c for c in answer.json_lines() if c["check"] == "store")
    assert store["verdict"] == "fail"
    assert "file" not in str(store["advice"])


def test_doctor_names_the_engine(shop: Path, cli: Cli) -> None:
    ownership = Ownership.take(shop / "shop.db", "w-here")
    try:
        assert "w-here" in cli("doctor").out
    finally:
        ownership.release()


def test_doctor_fails_on_what_does_not_work(shop: Path, cli: Cli) -> None:
    (shop / "text.db").write_text("this is not a database, however long one looks at it\n" * 30)
    (shop / "shop.py").write_text("def f(:\n")
    answer = cli("doctor", "--store", "sqlite:///text.db")
    assert answer.code == Exit.FINDING
    assert "2 of " in answer.out.splitlines()[-1]
    assert verdicts(cli, "--store", "sqlite:///text.db")["store"] == "fail"
    assert verdicts(cli, "--store", "sqlite:///no/folder.db")["store"] == "fail"
