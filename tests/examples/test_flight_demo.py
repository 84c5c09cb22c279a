"""The main example as a user runs it: whole processes, a real `kill -9`, and the bank's file as the only witness."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import TypedDict

import pytest

from examples.flight_refunds.audit import audit, owed
from examples.flight_refunds.bank import FROZEN
from examples.flight_refunds.versions import CARELESS, VERSIONS

ROOT = Path(__file__).parents[2]
OWED = owed()
PAID = sum(len(refunds) for run, refunds in OWED.items() if run not in FROZEN)
PAID_CENTS = sum(sum(refunds.values()) for run, refunds in OWED.items() if run not in FROZEN)
# Four steps in every run that gets through, two more where money is paid; in a refused one four, and one unwind.
STEPS = 4 * (460 - 6) + 2 * (183 - 6) + 6 * (4 + 1)


pytestmark = pytest.mark.long
needs_proc = pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc to look for stray processes")


def command(directory: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "examples.flight_refunds", "--dir", str(directory), "--speed", "fast", *options]


def run(directory: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(directory, *options), cwd=ROOT, capture_output=True, text=True, check=False)


class Told(TypedDict):
    """What `--json` says of one edit."""

    edit: str
    in_flight: int
    stood: dict[str, int]
    then: dict[str, int]
    stranded_without_retired: int


class Result(TypedDict):
    """What `--json` says."""

    runs: int
    steps: int
    resumed: int
    retried: int
    unwound: int
    paid: int
    paid_cents: int
    doubled: int
    lost: int
    paid_with: dict[str, int]
    edits: list[Told]
    problems: list[str]
    seconds: float


def summary(directory: Path, *options: str) -> Result:
    done = run(directory, "--json", *options)
    assert done.returncode == 0, done.stderr
    found: Result = json.loads(done.stdout)
    return found


def processes_of(directory: Path) -> dict[int, str]:
    """Command lines of all living processes that name the directory, by process id."""
    found: dict[int, str] = {}
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = entry.read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if str(directory) in line:
            found[int(entry.parent.name)] = line
    return found


def bank_calls(directory: Path) -> int:
    with closing(sqlite3.connect(directory / "bank.db")) as books:
        (calls,) = books.execute("SELECT count(*) FROM request").fetchone()
    return int(calls)


def deployed(directory: Path) -> list[str]:
    """Digests of the topologies that were ever current, in order."""
    with closing(sqlite3.connect(directory / "refunds.db")) as store:
        return [str(digest) for (digest,) in store.execute("SELECT digest FROM deployment ORDER BY generation")]


@needs_proc
def test_the_month_survives_a_kill_and_is_paid_once(tmp_path: Path) -> None:
    """M-3, M-8, R-7: what was in flight at the kill goes on in another process, with the same keys."""
    first = summary(tmp_path, "--no-edits")
    assert (first["edits"], first["problems"]) == ([], [])
    assert first["paid_with"] == {"pay-refunds/v1": 183 - 6}
    assert (first["runs"], first["steps"], first["unwound"]) == (460, STEPS, 6)
    assert (first["paid"], first["paid_cents"], first["doubled"], first["lost"]) == (PAID, PAID_CENTS, 0, 0)
    assert first["resumed"] > 0
    assert first["retried"] > 0
    assert processes_of(tmp_path) == {}
    reports = {path.name: json.loads(path.read_text()) for path in (tmp_path / "reports").iterdir()}
    assert len(reports) == 454
    assert sum(report["paid_cents"] for report in reports.values()) == PAID_CENTS


@pytest.mark.timeout(300)  # a whole month and eight processes, on machines that do other things as well
def test_three_edits_reach_runs_in_flight_and_every_refund_is_paid_once(tmp_path: Path) -> None:
    """E-2, E-7, E-9, D-6: a step inserted, replaced (over a kill) and moved while runs are under way."""
    done = run(tmp_path, "--plain")
    assert done.returncode == 0, done.stderr
    versions = ["v2", "careless", "v3", "v4"]
    lines = done.stdout.splitlines()
    checks = [line for line in lines if "$ perdure check" in line]
    assert [line.rpartition("app:")[2] for line in checks] == versions
    (refusal,) = [line for line in lines if "not deployed" in line]
    assert "exit code 1" in refusal
    assert (
        sum("would become invalid because their unresolved step pay-refunds/v1 is gone" in line for line in lines) == 1
    )
    assert deployed(tmp_path) == [each.topology.digest for each in VERSIONS.values()]
    assert CARELESS.topology.digest not in deployed(tmp_path)

    calls = bank_calls(tmp_path)
    again = summary(tmp_path)
    assert bank_calls(tmp_path) == calls
    table = {line.split()[0]: line.split()[1] for line in lines[-22:] if line[:1].isalpha()}
    for name, count in [("steps", again["steps"]), ("resumed", again["resumed"]), ("retried", again["retried"])]:
        assert table[name] == f"{count:,}"
    assert (again["paid"], again["paid_cents"], again["doubled"], again["lost"]) == (PAID, PAID_CENTS, 0, 0)
    assert set(again["paid_with"]) == {"pay-refunds/v1", "pay-refunds/v2"}
    assert sum(again["paid_with"].values()) == 183 - 6
    inserted, replaced, moved = again["edits"]
    for each in again["edits"]:
        assert each["in_flight"] == sum(each["stood"].values()) == sum(each["then"].values()) > 0
        assert "unclear" not in each["then"]
    assert inserted["then"]["ran"] > 0
    assert inserted["then"]["passed"] > 0
    assert replaced["then"]["finished old"] == replaced["stranded_without_retired"] > 0
    assert replaced["then"]["ran"] > 0
    assert "in mid-step" in replaced["stood"]
    assert moved["then"]["ran"] > 0

    with closing(sqlite3.connect(tmp_path / "bank.db")) as books, books:
        books.execute(
            "INSERT INTO transfer (key, run, refund, cents) SELECT 'again', run, refund, cents FROM transfer LIMIT 1"
        )
    doubled = run(tmp_path, "--plain")
    assert doubled.returncode == 1
    assert "by its journal, under" in doubled.stderr
    assert "doubled         1  paid more than once" in doubled.stdout
    assert f"460 have ended; to start over, delete {tmp_path}" in doubled.stdout


def test_a_key_of_ones_own_pays_twice_and_the_auditor_sees_it(tmp_path: Path) -> None:
    """Without this, `doubled` might be 0 whatever the pipeline does. The README invites to try it."""
    done = run_spoilt(
        tmp_path,
        "pipeline.py",
        "bank.pay(inv.idempotency_key,",
        'bank.pay(f"{inv.run_id} {inv.attempt}",',
        "--no-kill",
        "--no-edits",
    )
    assert done.returncode == 1, done.stderr
    assert json.loads(done.stdout)["doubled"] > 0


def test_an_edit_that_would_strand_runs_is_not_deployed(tmp_path: Path) -> None:
    """D-6: the demo asks `perdure check` of every edit, and does as it says."""
    done = run_spoilt(tmp_path, "versions.py", '"v3": V3', '"v3": CARELESS')
    assert done.returncode == 3
    assert "unresolved step pay-refunds/v1 is gone: keep it as retired" in done.stderr
    assert deployed(tmp_path / "demo") == [VERSIONS[name].topology.digest for name in ("v1", "v2")]


def run_spoilt(folder: Path, file: str, old: str, new: str, *options: str) -> subprocess.CompletedProcess[str]:
    """The demo in `folder / "demo"`, by a copy of the example in which something was changed."""
    shutil.copytree(ROOT / "examples", folder / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    path = folder / "examples" / "flight_refunds" / file
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")
    return subprocess.run(
        command(folder / "demo", "--json", *options),
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])},
        capture_output=True,
        text=True,
        check=False,
    )


@needs_proc
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_leaves_no_process_behind(how: signal.Signals, tmp_path: Path) -> None:
    with subprocess.Popen(
        command(tmp_path, "--plain", "--no-edits"), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert "of 460 runs ended" in process.stdout.readline()
        assert len(processes_of(tmp_path)) == 3
        process.send_signal(how)
        _, errors = process.communicate()
        assert process.returncode == 130, errors
    assert errors == "interrupted; the same command goes on from here\n"
    assert processes_of(tmp_path) == {}


@pytest.mark.timeout(300)  # likewise
def test_a_demo_killed_between_two_edits_takes_its_processes_with_it_and_goes_on_later(tmp_path: Path) -> None:
    """D-4: the next demo finds in the store which version is current, and deploys those that are left."""
    with subprocess.Popen(
        command(tmp_path, "--plain"), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert any("fraud-screen/v1 was inserted by a new worker" in line for line in process.stdout)
        process.kill()
    while (later := run(tmp_path, "--json")).returncode == 2:
        assert "just ending" in later.stderr
    assert later.returncode == 0, later.stderr
    found: Result = json.loads(later.stdout)
    assert (found["runs"], found["paid"], found["doubled"], found["lost"]) == (460, PAID, 0, 0)
    assert [each["in_flight"] > 0 for each in found["edits"]] == [True, True, True]
    assert deployed(tmp_path) == [each.topology.digest for each in VERSIONS.values()]
    assert audit(tmp_path / "bank.db").refused_runs == 6


def test_wrong_uses_are_told_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    foreign = run(tmp_path)
    assert (foreign.returncode, foreign.stderr.count("\n")) == (2, 1)
    assert "holds something else" in foreign.stderr
    not_a_folder = run(tmp_path / "thesis.txt")
    assert not_a_folder.returncode == 2
    assert "is not a directory" in not_a_folder.stderr
    assert run(tmp_path, "--speed", "warp").returncode == 2
    assert os.listdir(tmp_path) == ["thesis.txt"]


@needs_proc
def test_a_worker_that_somebody_else_kills_ends_the_demo_with_a_sentence(tmp_path: Path) -> None:
    with subprocess.Popen(
        command(tmp_path, "--plain", "--no-edits"), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert "of 460 runs ended" in process.stdout.readline()
        (worker,) = [pid for pid, line in processes_of(tmp_path).items() if "flight_refunds.worker" in line]
        os.kill(worker, signal.SIGKILL)
        _, errors = process.communicate()
    assert process.returncode == 3
    assert errors == f"the worker, process {worker}, ended with code -9\nthe same command goes on from here\n"
    assert processes_of(tmp_path) == {}
