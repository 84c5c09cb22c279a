"""What must be true when everything has ended, from journals and from the bank's books."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

import msgspec

from perdure import Client, RunInfo
from perdure.core.facts import RunFailed, RunSubmitted, RunSucceeded, SegmentAttemptStarted


class Verdict(msgspec.Struct):
    """What was found.

    Attributes:
        problems: what must not be; empty where all is well.
        outcomes: number of runs by status.
        claims: claims of all runs, more than one where a worker died, was replaced, or let go for a while.
    """

    problems: list[str]
    outcomes: dict[str, int]
    claims: int
    lost: int


def read_books(path: Path) -> dict[str, Counter[tuple[str, str]]]:
    """By run: what the bank did, under which key, and how often it was asked to."""
    books: dict[str, Counter[tuple[str, str]]] = defaultdict(Counter)
    for line in path.read_text().splitlines():
        kind, run, key = line.split()
        books[run][kind, key] += 1
    return books


def judge_books(run: RunInfo, done: Counter[tuple[str, str]]) -> list[str]:
    """What is wrong with what the bank did for a run."""
    problems: list[str] = []
    kinds = Counter(kind for kind, _ in done)
    if any(kinds[kind] > 1 for kind in ("reserve", "pay")):
        problems.append(f"run {run.run_id}: paid under two keys: {dict(done)}")
    if run.status == "succeeded" and (kinds["reserve"], kinds["pay"], kinds["release"], kinds["refund"]) != (
        1,
        1,
        0,
        0,
    ):
        problems.append(f"run {run.run_id} succeeded, and the books say {dict(done)}")
    if run.status != "succeeded":
        for begun, undone in (("reserve", "release"), ("pay", "refund")):
            if kinds[begun] and not kinds[undone]:
                problems.append(f"run {run.run_id} {run.status}, and {begun} was not undone: {dict(done)}")
    return problems


async def all_runs(client: Client) -> list[RunInfo]:
    """Every run."""
    page = await client.list(limit=500)
    found: list[RunInfo] = list(page)
    while page.next is not None:
        page = await client.list(limit=500, after=page.next)
        found += page
    return found


async def judge(client: Client, books: Path, inputs: Sequence[int]) -> Verdict:
    """Look at everything, once nothing happens any more."""
    runs = await all_runs(client)
    done = read_books(books)
    problems: list[str] = []
    claims = lost = 0
    seen: Counter[int] = Counter()
    for run in runs:
        if not run.ended:
            problems.append(f"run {run.run_id} has not ended: {run.status} {run.reason}")
            continue
        facts = [recorded.fact for recorded in await client.journal(run.run_id)]
        ends = [fact for fact in facts if isinstance(fact, (RunSucceeded, RunFailed))]
        if len(ends) != 1 or facts[-1] is not ends[0]:
            problems.append(f"run {run.run_id} has {len(ends)} ends")
        started = [fact for fact in facts if isinstance(fact, SegmentAttemptStarted)]
        claims += len(started)
        generations = [fact.generation for fact in started]
        if generations != sorted(generations):
            problems.append(f"run {run.run_id} moved back: generations {generations}")
        lost += sum(getattr(fact, "cause", "") == "lost" for fact in facts)
        seen.update(int(bytes(fact.input)) for fact in facts if isinstance(fact, RunSubmitted))
        problems += judge_books(run, done.get(run.run_id, Counter()))
    if seen != Counter(inputs):
        problems.append(f"submitted {len(inputs)}, found {seen.total()}; twice: {[n for n in seen if seen[n] > 1][:9]}")
    report = await client.verify()
    problems += [f"verify: run {finding.run_id} at {finding.seq}: {finding.problem}" for finding in report.findings]
    return Verdict(problems, dict(Counter(run.status for run in runs)), claims, lost)
