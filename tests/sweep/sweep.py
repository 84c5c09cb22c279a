"""Drive a reconciler through every small world and compare each of its decisions with the oracle's.

A `Judge` wraps whatever is being tested. It is asked about a ledger and a topology deployed after it. Ledgers come with
a history, so that a judge may fold real facts; consecutive questions often share one history object, or extend it.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

from tests.sweep.oracle import Known, decide_known, declare, learn
from tests.sweep.vocabulary import (
    Decision,
    EndCanceled,
    EndFailure,
    Event,
    Happened,
    Step,
    Topology,
    What,
    World,
)
from tests.sweep.worlds import (
    ALL_FLAGS,
    FOREIGN_FLAGS,
    SHAPED_FLAGS,
    CanonicalLedger,
    Reached,
    as_the_rules_see,
    canonical,
    declared_before,
    events_at_rest,
    open_steps,
    reachable,
    topologies,
)

Kind: TypeAlias = Literal["two", "three", "four-sample", "shaped", "shaped-sample"]
EACH = 12
"""One of so many ledgers is in a sample of those with waits and units."""

Judge: TypeAlias = Callable[[CanonicalLedger, Topology], Decision]


class Question(NamedTuple):
    """A ledger, a topology deployed after it, and what the rules answer."""

    ledger: CanonicalLedger
    topology: Topology
    expected: Decision


@dataclass(frozen=True, slots=True)
class Difference:
    question: Question
    chosen: Decision

    def __str__(self) -> str:
        past = [f"  [{_show(h.topology)}] {h.event}" for h in self.question.ledger.history]
        return "\n".join(
            [
                *past,
                f"  declared before: {sorted(self.question.ledger.ever_unwind)}, "
                f"in doubt {sorted(self.question.ledger.ever_in_doubt)}",
                f"  deploy {_show(self.question.topology)}",
                f"  the rules say {self.question.expected}",
                f"  chosen was    {self.chosen}",
            ]
        )


@dataclass(slots=True)
class Report:
    """How much was compared, and the first differences."""

    kind: Kind
    ledgers: int = 0
    questions: int = 0
    decisions: Counter[str] = field(default_factory=Counter[str])
    differences: list[Difference] = field(default_factory=list[Difference])

    def __str__(self) -> str:
        kinds = ", ".join(f"{name} {count:,}" for name, count in sorted(self.decisions.items()))
        return f"sweep {self.kind}: {self.ledgers:,} ledgers, {self.questions:,} decisions compared ({kinds})"


def _show(topology: Topology) -> str:
    return " ".join(map(str, topology)) or "(empty)"


def sweep(kind: Kind, judge: Judge, *, differences: int = 5, seed: int = 0, walks: int = 3_000) -> Report:
    """Compare `judge` with the oracle over all worlds of a kind; stop after some differences.

    `two`: two steps fully, and a foreign step that is inserted, moved and removed around them. `three`: three steps
    fully. `four-sample`: random histories of four steps and two foreign ones, chosen by `seed`. `shaped`: two steps,
    waits and units among them, fully; `shaped-sample`: every so many of those ledgers.
    """
    report = Report(kind)
    last: CanonicalLedger | None = None
    for question in questions(kind, seed=seed, walks=walks):
        if last is None or question.ledger.history is not last.history:
            report.ledgers += 1
        last = question.ledger
        report.questions += 1
        report.decisions[type(question.expected).__name__] += 1
        chosen = judge(question.ledger, question.topology)
        if chosen != question.expected:
            report.differences.append(Difference(question, chosen))
            if len(report.differences) >= differences:
                break
    return report


def questions(kind: Kind, *, seed: int = 0, walks: int = 3_000) -> Iterator[Question]:
    """All questions of a kind, small worlds first."""
    if kind == "two":
        after = topologies(("A", ALL_FLAGS), ("B", ALL_FLAGS), ("X", FOREIGN_FLAGS))
        yield from _full(reachable("AB", "X", fine=True), after, "ABX")
    elif kind == "three":
        after = topologies(*((step, ALL_FLAGS) for step in "ABC"))
        yield from _full(reachable("ABC", fine=False), after, "ABC")
    elif kind == "shaped" or kind == "shaped-sample":
        after = topologies(*((step, SHAPED_FLAGS) for step in "AB"))
        ledgers = reachable("AB", fine=True, shaped=True)
        yield from _full(ledgers if kind == "shaped" else ledgers[seed % EACH :: EACH], after, "AB")
    else:
        rng = random.Random(seed)
        for _ in range(walks):
            yield from _walk(rng)


def _full(ledgers: list[Reached], after: list[Topology], ids: str) -> Iterator[Question]:
    """Every ledger with every topology; the rules answer once for all topologies between which they see no difference.

    Whoever is judged is asked about each topology as it is: one that looks at a flag the rules do not look at differs.
    """
    forward = _seen_alike(after, unwinding=False)
    backward = _seen_alike(after, unwinding=True)
    for reached in ledgers:
        ledger = canonical(reached.known, reached.history)
        variants: dict[tuple[str, ...], list[tuple[CanonicalLedger, Known]]] = {}
        answers: dict[int, list[tuple[CanonicalLedger, Decision]]] = {}
        for topology, number, seen in forward if reached.known.failed_at is None else backward:
            if number not in answers:
                answers[number] = _answers(reached, ledger, seen, ids, variants)
            for variant, expected in answers[number]:
                yield Question(variant, topology, expected)


def _seen_alike(after: list[Topology], *, unwinding: bool) -> list[tuple[Topology, int, Topology]]:
    """Each topology with what the rules see of it, and a number for that."""
    numbers: dict[Topology, int] = {}
    found: list[tuple[Topology, int, Topology]] = []
    for topology in after:
        seen = as_the_rules_see(topology, unwinding=unwinding)
        found.append((topology, numbers.setdefault(seen, len(numbers)), seen))
    return found


def _answers(
    reached: Reached,
    ledger: CanonicalLedger,
    topology: Topology,
    ids: str,
    variants: dict[tuple[str, ...], list[tuple[CanonicalLedger, Known]]],
) -> list[tuple[CanonicalLedger, Decision]]:
    """What the rules say of a ledger: once, or once for each choice of what was declared before, where that shows."""
    known = reached.known
    expected = decide_known(known, topology)
    if not isinstance(expected, EndFailure | EndCanceled):
        return [(ledger, expected)]
    open_ = open_steps(known, topology)  # here earlier declarations show [U-9]
    if open_ not in variants:
        choices = declared_before(known, open_, ids)
        variants[open_] = [(canonical(choice, reached.history), choice) for choice in choices]
    return [(variant, decide_known(choice, topology)) for variant, choice in variants[open_]]


# Random histories -------------------------------------------------------------------------------------------------

ENDS = {
    What.RESERVED: (What.RETURNED,) * 9 + (What.RAISED, What.RAISED, What.LOST, What.LOST, What.FAILED, What.GAVE_UP),
    What.UNWIND_RESERVED: (What.UNWIND_RETURNED, What.UNWIND_RAISED, What.UNWIND_LOST, What.UNWIND_FAILED),
}


def _walk(rng: random.Random) -> Iterator[Question]:
    """One random life of a run, asked after every event under the current topology and two others."""
    known = Known()
    history: World = ()
    topology = _random_topology(rng, tuple(Step(i) for i in "ABCD"))
    for _ in range(rng.randint(4, 40)):
        if rng.random() < 0.3:
            topology = _random_topology(rng, topology)
        declare(known, topology)
        ledger = canonical(known, history)
        for after in (topology, _random_topology(rng, topology), _random_topology(rng, topology)):
            changed = known.copy()
            declare(changed, after)
            yield Question(ledger, after, decide_known(changed, after))
        event = _random_event(rng, known, topology)
        if event is None:
            if rng.random() < 0.2:
                return
            continue  # ended as things are, or invalid: another deployment may change that
        for happened in (event, *_random_end(rng, event)):
            learn(known, Happened(happened, topology))
            history = (*history, Happened(happened, topology))


def _random_event(rng: random.Random, known: Known, topology: Topology) -> Event | None:
    if not known.cancel_requested and rng.random() < 0.03:
        return Event(What.CANCEL_REQUESTED)
    choices = [e for e in events_at_rest(known, topology) if e.step]  # the output leads to no other ledger
    if not choices:
        return None
    return choices[0] if rng.random() < 0.8 else rng.choice(choices)  # the first is to go on by itself


def _random_end(rng: random.Random, event: Event) -> tuple[Event, ...]:
    """How a reserved attempt ends; now and then a cancel is requested while it runs [R-12]."""
    if event.what not in ENDS:
        return ()
    end = Event(rng.choice(ENDS[event.what]), event.step)
    return (Event(What.CANCEL_REQUESTED), end) if rng.random() < 0.03 else (end,)


def _random_topology(rng: random.Random, now: Topology) -> Topology:
    """A plausible next version: mostly the same steps in the same order, some moved, dropped, inserted, reflagged."""
    ids = [s.id for s in now if rng.random() < 0.9]
    for step in "ABCDXY":
        if step not in ids and rng.random() < (0.5 if step in "ABCD" else 0.1):
            ids.insert(rng.randint(0, len(ids)), step)
    if rng.random() < 0.2:
        rng.shuffle(ids)
    return tuple(Step(i, *rng.choices(ALL_FLAGS, weights=(6, 1, 6, 1, 6, 1))[0]) for i in ids)
