"""The runs of the frozen corpus, and the command that writes them down, once per release:

    python -m tests.core.corpus_lives 0.1

What is there is never written again: journals of old releases must stay readable as they are [J-13].
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from perdure.core import facts as f
from perdure.core.facts import Failure
from perdure.core.outcomes import Declined, Raised, Refused
from perdure.core.plan import Opening, RunEnd, Terms
from perdure.core.retry import Retry
from tests.core.build import RUN, Life
from tests.core.rows import chained, folded, plain, write

CORPUS = Path(__file__).parent / "corpus"
LATER = Retry(initial=1, cap=10, jitter=0, max_attempts=3)
STARTED_US = 1_767_225_600_000_000  # 2026-01-01


def _life(text: str, policy: Retry = LATER, *, deadline_us: int = 0, priority: int = 0) -> Life:
    submission = f.RunSubmitted(
        RUN,
        "flight-refunds",
        msgspec.Raw('{"carrier":"UA","day":"2013-01-02","note":"späte Flüge ✈"}'.encode()),
        "c0ffee" * 10 + "beef",
        "UA/2013-01-02",
        tenant="acme",
        slot="once",
        deadline_us=deadline_us,
        actor="cron",
        annotations={"ticket": "T-1"},
        priority=priority,
    )
    life = Life(text, policy, submission=submission)
    life.now_us = STARTED_US
    return life


def clean() -> Life:
    """Success with states, a false condition, a condition that holds."""
    life = _life("load filter& price& pay")
    life.author.false.add("filter")
    life.claim()
    life.ok(b'{"flights":[1,2,3]}')
    life.ok(b"null")
    life.ok(b'"4711.00"')
    return life


def unwound() -> Life:
    """Memos, every cause of a retry, passed and crossed steps, an unwind that fails, all lists of the end."""
    life = _life("load* reserve*? price* hold* pay")
    life.claim()
    life.memo("page", b"[1,2]")
    life.ok(b"1")
    life.raises()
    life.now_us += 5_000_000
    life.claim()
    life.is_lost()
    life.now_us += 5_000_000
    life.claim()
    life.resolve("skip", "reserve")
    life.deploy("x~ load* reserve*? y~ price* hold* pay")
    life.goes_on()
    life.may_start = False
    life.is_interrupted()
    life.may_start = True
    life.claim()
    life.ok(b"2")
    life.ok(b"3")
    life.times_out()
    life.now_us += 5_000_000
    life.claim()
    declined = Failure(
        "pay", "account closed", "forward", life.attempt.attempt, life.now_us, "user", "closed", "Closed"
    )
    life.ends(Declined(declined))
    life.deploy("load reserve*? price* pay")
    life.claim()
    life.fails()
    life.raises()
    life.deploy("load price* pay")
    life.now_us += 60_000_000
    life.claim()
    return life


def canceled() -> Life:
    """A cancel while a handler runs."""
    life = _life("load* pay")
    life.claim()
    life.ok(b"1")
    life.cancel("changed my mind")
    life.raises()
    life.ok()
    return life


def late() -> Life:
    """A deadline while the run waits."""
    life = _life("load pay", deadline_us=STARTED_US + 3_000_000)
    life.claim()
    life.raises()
    life.now_us += 3_000_000
    life.claim()
    return life


def operated() -> Life:
    """Holds and releases by hand and by policy, and every kind of resolution."""
    life = _life("a* b* c* d*")
    life.hold()
    life.release()
    life.claim()
    for _ in range(3):
        life.raises()
        life.now_us += 60_000_000
        if life.p.held is None:
            life.claim()
    life.release()
    life.claim()
    life.ends(Refused(Failure("a", "9 MB, at most 1", reason="payload-too-large")))
    life.resolve("value", "a", b'{"given":true}')
    life.claim()
    life.ok(b"2")
    life.resolve("skip", "c")
    life.resolve("fail", "d")
    life.claim()
    life.resolve("fail", "b")
    life.resolve("value", "a")
    life.claim()
    return life


def unfinished() -> Life:
    """A handler runs, and remembers something; others wait for their worker."""
    life = _life("a b* c")
    life.claim()
    life.ok(b"1")
    life.raises()
    life.now_us += 60_000_000
    life.claim()
    life.memo("key", b'"k-1"')
    return life


def abandoned() -> Life:
    """Given up while a step is unresolved."""
    life = _life("a* b* c")
    life.claim()
    life.ok(b"1")
    life.raises()
    life.deploy("a* c")
    life.abandon("nobody needs it any more")
    return life


def slept() -> Life:
    """A sleep that is over, one that a policy of the pipeline skipped, and one that is open."""
    life = _life("a nap% b never%& night% c")
    life.author.false.add("never")
    life.claim()
    life.ok(b"1")
    life.deploy("x~ a nap% b y~ never%& night% c")
    life.wakes()
    life.ok(b"2")
    life.hold()
    life.release()
    return life


def prioritized() -> Life:
    """Submitted with a priority, which operators change before and after it started."""
    life = _life("a b", priority=-9)
    life.prioritize(9)
    life.claim()
    life.ok(b"1")
    life.raises()
    life.prioritize(3)
    return life


def waited() -> Life:
    """Messages early and late, with and without keys, runs, and waits that last too long."""
    life = _life("a ask@ b more@ many# soon@ c")
    life.author.openings |= {
        "ask": Opening(awaits=("go",)),
        "more": Opening(awaits=("go",)),
        "many": Opening(5_000_000, ("run-2", "run-3"), 2),
        "soon": Opening(2_000_000, ("never",)),
    }
    life.author.timeouts["soon"] = b'{"granted":false}'
    life.send("go", b'{"granted":true}', "k-1")
    life.claim()
    life.ok(b"1")
    life.ok(b"2")
    life.send("go", b'"second"')
    life.claim()
    life.ends_of |= {"run-2": RunEnd("succeeded", b"[1]"), "run-3": RunEnd("failed", failure=Failure("x", "no"))}
    life.claim()
    life.now_us += 3_000_000
    life.claim()
    return life


def itemized() -> Life:
    """Items that succeed, are tried again, are lost and fail; a loop; what fails the step leaves it in doubt."""
    life = _life("load+ page$ pay+*?", Retry(initial=1, cap=10, jitter=0, max_attempts=2, then="fail"))
    life.author.openings |= {
        "load": Opening(items=(b"1", b"2", b"3")),
        "page": Opening(items=(b'"first"',)),
        "pay": Opening(items=(b"10", b"20", b"30")),
    }
    life.author.terms_of |= {"load": Terms(2, collect=True), "page": Terms(1), "pay": Terms(2)}
    life.claim()
    life.item_memo(0, "key", b'"k-0"')
    life.items_end(life.item(0, b'{"done":1}'), running=True)
    life.items_end(life.item(2, Declined(life.item_failure(2))), running=True)
    life.is_lost()
    life.items_end(life.item(1, b'{"done":2}'))
    life.items_end(life.item(0, b'"second"', more=True))
    life.items_end(life.item(1, b'{"pages":2}'))
    life.items_end(life.item(0, b"true"), running=True)
    life.items_end(life.item(1, Raised(life.item_failure(1, "error"))), running=True)
    life.items_end(life.item(2, Declined(life.item_failure(2))))
    return life


def parent() -> Life:
    """Child runs, one and many, of which one was refused and one failed."""
    life = _life("one^ many^")
    life.author.openings |= {
        "one": Opening(items=(b'{"n":1}',), pipeline="leg"),
        "many": Opening(items=(b"1", b"2", b"3"), pipeline="leg"),
    }
    life.author.terms_of["many"] = Terms(2)
    life.claim()
    life.dispatched()
    life.ends_of[life.child(0)] = RunEnd("succeeded", b'"flown"')
    life.claim()
    life.dispatched({1: Failure("many", "slot taken", reason="child-refused")})
    life.ends_of[life.child(0)] = RunEnd("failed", failure=Failure("fly", "no crew"), in_doubt=True)
    life.claim()
    return life


LIVES: tuple[Callable[[], Life], ...] = (
    clean,
    unwound,
    canceled,
    late,
    operated,
    unfinished,
    abandoned,
    slept,
    prioritized,
    waited,
    itemized,
    parent,
)


def main(release: str) -> None:
    folder = CORPUS / release
    folder.mkdir(parents=True)  # fails if it is there: a release is written once
    for make in LIVES:
        rows = chained(make().rows)
        write(folder / f"{make.__name__}.jsonl", rows)
        expected = msgspec.json.format(msgspec.json.encode(plain(folded(rows))), indent=2)
        (folder / f"{make.__name__}.folded.json").write_bytes(expected + b"\n")


if __name__ == "__main__":
    main(sys.argv[1])
