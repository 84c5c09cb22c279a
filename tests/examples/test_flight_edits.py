"""The edits of the main example: what each does to a run in each state, and what the demo reads from the journals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from examples.flight_refunds.audit import Audit
from examples.flight_refunds.bank_client import BankClient, Payment
from examples.flight_refunds.edits import EditTold, Fate, Foretold, Life, Stand, came_true, fate_of, problems, stand_of
from examples.flight_refunds.edits import told as told_of
from examples.flight_refunds.flights import CarrierDay, Flight
from examples.flight_refunds.pipeline import (
    Deps,
    find_failed_flights,
    fraud_screen,
    load_day,
    pay_refunds,
    pay_refunds_v2,
    price_refunds,
    reserve_budget,
    write_report_of_either,
)
from examples.flight_refunds.pricing import Refund
from examples.flight_refunds.stores import Archive, Report, Reports
from examples.flight_refunds.summary import Summary, Tally
from examples.flight_refunds.versions import CARELESS, EDITS, PIPELINE, V1, V2, V3, VERSIONS, Edit, state_of, version
from perdure import AnyStep, Pipeline, retired
from perdure.core.facts import OperationReserved, SegmentAttemptStarted
from perdure.core.topology import encode_steps
from perdure.ports.store import Deployment
from perdure.runtime.info import RecordedFact
from perdure.testing.evolve import Evolution, Moment, evolve

Refunds = Pipeline[CarrierDay, Deps, Report]

DAY = CarrierDay("UA", date(2013, 1, 5))
CANCELED = Flight(2, "EWR", "ORD", 700, canceled=True, arrival_delay_min=None)
ON_TIME = Flight(1, "EWR", "ORD", 700, canceled=False, arrival_delay_min=3)
INSERTED, REPLACED, MOVED = EDITS
SWITCH_US = 10
"""When the edit is deployed, in the journals of these tests."""


class KeyBank(BankClient):
    """Knows the keys under which it paid; moves money once for each."""

    def __init__(self) -> None:
        super().__init__(Path("nowhere"), 0.1)
        self.paid: dict[str, set[str]] = {}

    def reserve(self, key: str, run: str, cents: int) -> str:
        return "hold-1"

    def pay(self, key: str, run: str, hold: str, refunds: Sequence[Refund]) -> Payment:
        self.paid.setdefault(run, set()).add(key)
        return Payment(sum(refund.cents for refund in refunds), settled=True)

    def release(self, key: str, run: str, hold: str) -> None: ...


def play(
    old: Refunds,
    new: Refunds,
    at: AnyStep[CarrierDay, Deps] | None,
    moment: Moment,
    folder: Path,
    bank: BankClient,
    *,
    owed: bool = True,
    via: Sequence[Refunds] = (),
) -> Evolution[Report]:
    """A run that is brought to a point under `old`, and goes on under `new`."""
    archive = Archive({DAY: [CANCELED if owed else ON_TIME]}, 0.0)
    deps = Deps({}, archive, bank, Reports(folder, 0.0), settle_s=2.0)
    return evolve(old, new, at=at, moment=moment, input=DAY, deps=deps, via=via)


def life_of(story: Evolution[Report]) -> Life:
    """Its journal, as if everything of the first version had happened at 0, and of the second at 10."""
    facts: list[RecordedFact] = []
    at_us = 0
    for seq, fact in enumerate(story.facts, 1):
        if isinstance(fact, SegmentAttemptStarted) and fact.generation > 1:
            at_us = SWITCH_US
        facts.append(RecordedFact(seq, at_us, fact))
    return Life(story.run_id, DAY.name, facts)


def deployed(version: str, at_us: int = SWITCH_US, generation: int = 2) -> Deployment:
    topology = VERSIONS[version].topology
    return Deployment(PIPELINE, generation, topology.digest, encode_steps(topology.steps), at_us, "worker")


# --- what the edits do ------------------------------------------------------------------------------------------------

IN_EVERY_STATE: list[tuple[Edit, AnyStep[CarrierDay, Deps] | None, Moment, Stand, Fate]] = [
    (INSERTED, None, "delayed", "not started", "ran"),
    (INSERTED, load_day, "after", "between steps", "ran"),
    (INSERTED, reserve_budget, "running", "in mid-step", "ran"),
    (INSERTED, reserve_budget, "retrying", "retrying", "ran"),
    (INSERTED, pay_refunds, "before", "between steps", "ran"),
    (INSERTED, pay_refunds, "running", "in mid-step", "passed"),
    (INSERTED, pay_refunds, "retrying", "retrying", "passed"),
    (INSERTED, pay_refunds, "after", "between steps", "passed"),
    (REPLACED, None, "delayed", "not started", "ran"),
    (REPLACED, pay_refunds, "before", "between steps", "ran"),
    (REPLACED, pay_refunds, "running", "in mid-step", "finished old"),
    (REPLACED, pay_refunds, "retrying", "retrying", "finished old"),
    (REPLACED, pay_refunds, "after", "between steps", "passed"),
    (MOVED, load_day, "running", "in mid-step", "ran"),
    (MOVED, reserve_budget, "running", "in mid-step", "passed"),
    (MOVED, reserve_budget, "after", "between steps", "passed"),
    (MOVED, fraud_screen, "running", "in mid-step", "had done"),
    (MOVED, pay_refunds_v2, "retrying", "retrying", "had done"),
]
BEFORE = {"v2": V1, "v3": V2, "v4": V3}


@pytest.mark.parametrize(("edit", "at", "moment", "stand", "fate"), IN_EVERY_STATE)
def test_every_edit_in_every_state_pays_once(
    edit: Edit,
    at: AnyStep[CarrierDay, Deps] | None,
    moment: Moment,
    stand: Stand,
    fate: Fate,
    tmp_path: Path,
) -> None:
    """E-2, E-7, E-9: and what the demo says of the run is what happened to it."""
    bank = KeyBank()
    story = play(BEFORE[edit.name], VERSIONS[edit.name], at, moment, tmp_path, bank)
    assert story.succeeded, story
    life = life_of(story)
    assert (stand_of(life, SWITCH_US), fate_of(life, edit, SWITCH_US)) == (stand, fate)
    assert len(bank.paid[DAY.name]) == 1
    assert problems([life], [deployed(edit.name)], bank.paid) == []


def test_a_run_that_owes_nothing_skips_the_new_payment(tmp_path: Path) -> None:
    story = play(V2, V3, load_day, "after", tmp_path, bank := KeyBank(), owed=False)
    assert fate_of(life_of(story), REPLACED, SWITCH_US) == "skipped"
    assert problems([life_of(story)], [], bank.paid) == []


@pytest.mark.parametrize(("moment", "stranded"), [("before", False), ("running", True), ("retrying", True)])
def test_without_retired_a_run_that_has_begun_to_pay_is_stranded(
    moment: Moment, stranded: bool, tmp_path: Path
) -> None:
    """E-3: and the version that keeps the step as retired gets it going again."""
    story = play(V2, CARELESS, pay_refunds, moment, tmp_path, KeyBank())
    assert story.invalid == ("step-missing" if stranded else None)
    mended = play(V2, V3, pay_refunds, moment, tmp_path, bank := KeyBank(), via=(CARELESS,))
    assert mended.succeeded
    assert len(bank.paid[DAY.name]) == 1


# --- what must not be, planted ----------------------------------------------------------------------------------------


def test_a_payment_under_a_second_key_is_found(tmp_path: Path) -> None:
    story = play(V2, V3, pay_refunds, "running", tmp_path, bank := KeyBank())
    bank.pay(f"{story.run_id}/do/pay-refunds/v2", DAY.name, "hold-1", [])
    (found,) = problems([life_of(story)], [], bank.paid)
    assert "by its journal, under" in found


def test_the_new_payment_behind_the_old_one_pays_twice_and_is_found(tmp_path: Path) -> None:
    """What the recipe is for. The README invites to try it."""
    steps = (load_day, find_failed_flights, price_refunds, reserve_budget, fraud_screen)
    behind = version(
        *steps, retired(pay_refunds), pay_refunds_v2, write_report_of_either, output=state_of(write_report_of_either)
    )
    story = play(V2, behind, pay_refunds, "running", tmp_path, bank := KeyBank())
    assert len(bank.paid[DAY.name]) == 2
    assert problems([life_of(story)], [], bank.paid) == [f"{DAY.name} ran both pay-refunds/v2 and pay-refunds/v1"]


def test_a_payment_that_the_bank_does_not_know_is_found(tmp_path: Path) -> None:
    story = play(V2, V3, pay_refunds, "running", tmp_path, KeyBank())
    (found,) = problems([life_of(story)], [], {})
    assert "under no key by the bank's file" in found
    (stranger,) = problems([], [], {"XX-2013-01-01": {"key"}})
    assert "of which there is no run" in stranger


def test_a_run_that_did_what_it_must_not_is_found(tmp_path: Path) -> None:
    """E-7: a passed step never runs."""
    story = play(V2, V3, pay_refunds, "running", tmp_path, bank := KeyBank())
    life = life_of(story)
    cut = replace(life, facts=life.facts[:-1])
    assert problems([cut], [], bank.paid) == [f"{DAY.name} did not end once"]
    facts = [*life.facts, RecordedFact(99, SWITCH_US, OperationReserved("pay-refunds/v2", 1))]
    both = replace(life, facts=facts)
    found = problems([both], [deployed("v3")], bank.paid)
    assert f"{DAY.name} ran pay-refunds/v2, which it had passed" in found
    assert f"{DAY.name} ran both pay-refunds/v2 and pay-refunds/v1" in found
    assert found[-1].startswith("pay-refunds/v1 was replaced by v2: 1 runs did none")
    twice = replace(
        life, facts=[*life.facts, *(r for r in life.facts if r.fact.__class__.__name__[-9:] == "Succeeded")]
    )
    assert f"{DAY.name} carried out write-report/v1 twice" in problems([twice], [], bank.paid)


def test_a_refused_version_that_was_deployed_is_found() -> None:
    careless = replace_digest(deployed("v3"), CARELESS.topology.digest)
    assert problems([], [careless], {}) == ["the version that `perdure check` refused was deployed"]


def replace_digest(deployment: Deployment, digest: str) -> Deployment:
    return Deployment(
        deployment.pipeline, deployment.generation, digest, deployment.steps, deployment.at_us, deployment.actor
    )


# --- what is told -----------------------------------------------------------------------------------------------------


def test_an_edit_is_told_from_the_runs_that_were_under_way(tmp_path: Path) -> None:
    stories = [
        play(V2, V3, pay_refunds, "running", tmp_path, KeyBank()),
        play(V2, V3, pay_refunds, "before", tmp_path, KeyBank()),
        play(V2, V3, None, "ended", tmp_path, KeyBank()),
    ]
    lives = [life_of(story) for story in stories]
    (told,) = told_of(lives, [deployed("v1", 0, 1), deployed("v3")])
    assert (told.edit, told.at_us, told.in_flight, told.stranded) == (REPLACED, SWITCH_US, 2, 1)
    assert told.fates == told.soon == {"finished old": 1, "ran": 1}
    assert told.stands == {"in mid-step": 1, "between steps": 1}
    assert told_of(lives, []) == []


def test_what_a_run_does_after_the_next_edit_is_not_the_first_ones_doing(tmp_path: Path) -> None:
    story = play(V1, V2, load_day, "after", tmp_path, KeyBank())
    (told, _) = told_of([life_of(story)], [deployed("v2", SWITCH_US), deployed("v3", SWITCH_US)])
    assert told.fates == {"ran": 1}
    assert told.soon == {"unclear": 1}


def edit_told(edit: Edit, in_flight: int, **soon: int) -> EditTold:
    fates: Counter[Fate] = Counter()
    for name, count in soon.items():
        match name.replace("_", " "):
            case "ran" | "passed" | "finished old" | "skipped" | "unclear" as fate:
                fates[fate] = count
            case _:
                raise ValueError(name)
    return EditTold(edit, SWITCH_US, in_flight, Counter(), fates, fates, 0)


@pytest.mark.parametrize(
    ("said", "became", "true"),
    [
        (Foretold(INSERTED, 5, 3, 2, 0), edit_told(INSERTED, 5, ran=3, passed=2), True),
        (Foretold(INSERTED, 5, 3, 2, 0), edit_told(INSERTED, 5, ran=2, passed=3), False),
        (Foretold(INSERTED, 5, 3, 2, 0), edit_told(INSERTED, 5, ran=2, passed=2, unclear=1), True),
        (Foretold(INSERTED, 5, 3, 2, 0), edit_told(INSERTED, 6, ran=3, passed=2), False),
        (Foretold(INSERTED, 5, 3, 2, 1), edit_told(INSERTED, 5, ran=3, passed=2), False),
        (Foretold(REPLACED, 4, 2, 2, 0), edit_told(REPLACED, 4, ran=1, skipped=1, passed=1, finished_old=1), True),
        (Foretold(MOVED, 4, 0, 1, 0), edit_told(MOVED, 4, ran=2, passed=2), True),
        (Foretold(MOVED, 4, 0, 2, 0), edit_told(MOVED, 4, ran=3, passed=1), False),
    ],
)
def test_whether_check_was_right(said: Foretold, became: EditTold, true: bool) -> None:
    """D-6"""
    assert came_true(said, became) is true


def test_the_table_says_what_became_of_the_runs() -> None:
    fates: Counter[Fate] = Counter({"ran": 9, "finished old": 3})
    stands: Counter[Stand] = Counter({"not started": 8, "waiting": 4})
    told = EditTold(REPLACED, SWITCH_US, 12, stands, fates, fates, 3)
    audit = Audit(paid=1, paid_cents=100, doubled=0, lost=0, refused_runs=0, requests=1, replays=0)
    good = Summary(Tally(1, 6, 0, 0, 0), audit, [told], {"pay-refunds/v1": 3}, [], 1.0)
    assert good.rows()[8:-1] == [
        ("with v1", "3", "runs were paid by pay-refunds/v1"),
        ("edit v3", "12", "runs were under way when pay-refunds/v1 was replaced by v2"),
        ("", "", "they stood: 8 not started, 4 waiting"),
        ("", "", "then: 9 ran it, 3 went on with the old one"),
        ("refused", "3", "runs would be stranded with pay-refunds/v1 removed"),
    ]
    assert good.sound
    assert not replace(good, problems=["something"]).sound
    assert not replace(good, audit=replace(audit, doubled=1)).sound
