"""A clean run of N steps costs N + 1 durable commits in all, and no handler starts before its reservation [J-12, M-8].

Counted from outside: by the syncs that strace sees. Where strace is missing or may not trace, the commit marks in
SQLite's log are counted instead, and the test says so.
"""

from __future__ import annotations

import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

from benchmarks.commits import CommitCounter
from benchmarks.pipelines import app_of, trivial
from benchmarks.runs import measure_slice

ROOT = Path(__file__).resolve().parents[2]
RUNS, STEPS = 4, 5

CALL = re.compile(r"^(?P<pid>\d+) +(?P<call>fdatasync|fsync|write)\((?P<rest>.*)$")
RESUMED = re.compile(r"^(?P<pid>\d+) +<\.\.\. (?P<call>fdatasync|fsync) resumed>")
MARK = re.compile(r'marks>, "(?P<mark>[a-z]+( \d+)?)\\n"')


def events(trace: Sequence[str]) -> list[str]:
    """The marks, and `sync` for every sync of the log that has come back, in order."""
    found: list[str] = []
    unfinished: dict[str, str] = {}
    for line in trace:
        if call := CALL.match(line):
            rest = call["rest"]
            if call["call"] == "write":
                found += [mark["mark"] for mark in [MARK.search(rest)] if mark is not None]
            elif "unfinished" in rest:
                unfinished[call["pid"]] = rest
            elif "-wal>" in rest:
                found.append("sync")
        elif (resumed := RESUMED.match(line)) and "-wal>" in unfinished.pop(resumed["pid"], ""):
            found.append("sync")
    return found


def expected_run() -> list[str]:
    """One run: the submission with claim and first reservation, then one sync after each handler."""
    return ["sync", *(event for n in range(STEPS) for event in (f"handler {n}", "sync")), "end"]


def why_no_strace() -> str | None:
    """Why strace cannot be used here; None if it can."""
    if shutil.which("strace") is None:
        return "strace is not installed"
    tried = subprocess.run(["strace", "-f", "-o", "/dev/null", "true"], capture_output=True, text=True, check=False)
    return None if tried.returncode == 0 else f"strace may not trace here: {tried.stderr.strip()[-200:]}"


def test_syncs_of_a_clean_run(tmp_path: Path, note: Callable[[str], None]) -> None:
    """[J-12] N + 1 syncs, submission included; [M-8] the sync of a reservation is over before its handler starts."""
    reason = why_no_strace()
    if reason is not None:
        note(f"{reason}; the commit marks of the log were counted instead of syncs, see the next test")
        return
    trace = tmp_path / "trace"
    program = [sys.executable, "-m", "tests.benchmarks.traced_runs"]
    program += [str(tmp_path / "store.db"), str(tmp_path / "marks"), str(RUNS), str(STEPS)]
    tracer = ["strace", "-f", "-y", "-e", "trace=fdatasync,fsync,write", "-o", str(trace)]
    done = subprocess.run([*tracer, *program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = events(trace.read_text(encoding="utf-8", errors="replace").splitlines())
    measured = found[found.index("begin") + 1 :]
    assert measured[: RUNS * len(expected_run())] == expected_run() * RUNS
    note(f"{STEPS + 1} syncs for each of {RUNS} runs of {STEPS} steps, counted by strace")


async def test_commit_marks_of_a_clean_run(tmp_path: Path) -> None:
    """[J-12] The same number by the commit marks in the log, which the benchmarks go by."""
    pipeline = trivial(STEPS)
    path = tmp_path / "store.db"
    async with app_of(pipeline, f"sqlite:///{path}").engine() as engine:
        counter = CommitCounter(path)
        before = counter.count()
        await measure_slice(engine, pipeline, RUNS, concurrency=1)
        assert counter.count() - before == RUNS * (STEPS + 1)


async def test_commits_are_shared(tmp_path: Path) -> None:
    """Runs at the same time share commits: never more than one run alone would need, and far fewer at 32."""
    pipeline = trivial(STEPS)
    path = tmp_path / "store.db"
    async with app_of(pipeline, f"sqlite:///{path}").engine() as engine:
        counter = CommitCounter(path)
        before = counter.count()
        await measure_slice(engine, pipeline, 64, concurrency=32)
        assert counter.count() - before < 64 * (STEPS + 1) / 4


async def test_handlers_find_their_reservation(tmp_path: Path) -> None:
    """[M-8] What a handler reads through a connection of its own: the journal ends with its reservation."""
    path = tmp_path / "store.db"
    last: list[str] = []

    def on_step(position: int) -> None:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as con:
            fact, step, attempt = con.execute(
                "SELECT fact, json_extract(json, '$.step'), json_extract(json, '$.attempt') FROM facts "
                "ORDER BY n DESC, seq DESC LIMIT 1"
            ).fetchone()
        last.append(f"{position}: {fact} {step} {attempt}")

    pipeline = trivial(STEPS, on_step)
    async with app_of(pipeline, f"sqlite:///{path}").engine() as engine:
        await (await engine.submit(pipeline, 1)).result()
    assert last == [f"{n}: OperationReserved step-{n}/v1 1" for n in range(STEPS)]


def test_events_reads_interrupted_calls() -> None:
    """A sync counts when it has come back, also where strace shows it in two pieces."""
    trace = [
        '11 write(7</tmp/marks>, "begin\\n", 6) = 6',
        "12 fdatasync(5</tmp/store.db-wal> <unfinished ...>",
        '11 write(7</tmp/marks>, "handler 0\\n", 10 <unfinished ...>',
        "12 <... fdatasync resumed>)         = 0",
        "12 fdatasync(4</tmp/store.db>) = 0",
        "12 fsync(5</tmp/store.db-wal>) = 0",
    ]
    assert events(trace) == ["begin", "handler 0", "sync", "sync"]
