"""J-11, J-13: stored rows are checked before they are believed, and journals of every release stay readable."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.chain import chain_hash
from perdure.core.explain import explain
from perdure.core.facts import Fact, OperationSucceeded
from perdure.core.journal import NewerJournal, decode_facts, encode_facts
from perdure.core.projection import Projection
from perdure.core.reconciler import reconcile
from perdure.errors import CorruptJournal
from tests.core.build import RUN, Life, content, submitted, topology
from tests.core.corpus_lives import CORPUS, LIVES
from tests.core.rows import Row, chained, fold, folded, plain, read
from tests.core.strategies import TOPOLOGIES, lives


def some_rows() -> list[Row]:
    life = Life("A B C")
    life.claim()
    life.ok()
    life.raises()
    life.ok()
    life.ok()
    return chained(life.rows)


# --- the chain --------------------------------------------------------------------------------------------------------


@given(lives())
def test_rows_fold_to_what_was_planned(life: Life) -> None:
    """J-8, J-11, J-13: through the stored text; the projection stands at the last row."""
    rows = chained(life.rows)
    p = folded(rows)
    assert content(p) == content(life.p)
    assert (p.row_seq, p.row_hash.hex()) == (rows[-1].first_seq, rows[-1].hash)


@given(lives(most=15), st.data())
def test_any_changed_byte_of_any_row_is_found(life: Life, data: st.DataObject) -> None:
    """J-11: whatever it is in: the facts, the time, the id, the hash itself."""
    rows = chained(life.rows)
    place = data.draw(st.integers(0, len(rows) - 1))
    row = rows[place]
    part = data.draw(st.sampled_from(["facts", "append_id", "hash", "at_us", "count", "first_seq"]))
    if part in ("append_id", "hash"):
        value = bytearray.fromhex(getattr(row, part))
        value[data.draw(st.integers(0, len(value) - 1))] ^= data.draw(st.integers(1, 255))
        changed = msgspec.structs.replace(row, **{part: value.hex()})
    elif part == "facts":
        at = data.draw(st.integers(0, len(row.facts) - 1))
        other = data.draw(st.characters(exclude_categories=["Cs"]).filter(lambda c: c != row.facts[at]))
        changed = msgspec.structs.replace(row, facts=row.facts[:at] + other + row.facts[at + 1 :])
    else:
        changed = msgspec.structs.replace(row, **{part: getattr(row, part) + data.draw(st.sampled_from([-1, 1]))})
    p = folded(rows[:place])
    with pytest.raises(CorruptJournal) as caught:
        fold(p, changed)
    assert caught.value.run_id == RUN
    assert caught.value.seq == row.first_seq


@pytest.mark.parametrize("place", range(5))
def test_a_missing_row_is_found(place: int) -> None:
    """J-2, J-11: wherever it is missing, and whatever it held."""
    rows = some_rows()
    assert len(rows) == 6
    with pytest.raises(CorruptJournal, match="a row is missing"):
        folded(rows[:place] + rows[place + 1 :])


def test_a_row_that_comes_twice_is_found() -> None:
    rows = some_rows()
    with pytest.raises(CorruptJournal, match="a row is missing"):
        folded([*rows[:3], rows[2]])


def test_a_row_of_another_past_is_found() -> None:
    """J-2, J-11: same sequence and valid in itself, but after another predecessor."""
    life = Life("A B C")
    life.claim()
    life.ok(b'"another state"')
    life.raises()
    other = chained(life.rows)
    rows = some_rows()
    assert other[3].first_seq == rows[3].first_seq
    with pytest.raises(CorruptJournal, match="does not match its hash"):
        folded([*rows[:3], other[3]])


def test_a_wrong_count_is_found_though_the_hash_covers_it() -> None:
    """J-11: a writer's own mistake."""
    text = encode_facts([submitted()])
    made = chain_hash(b"", 1, 2, 7, b"", text)
    with pytest.raises(CorruptJournal, match="the row says 2 facts and holds 1"):
        fold(Projection(RUN), Row(1, 2, 7, "", made.hex(), text.decode()))


def test_a_run_does_not_take_the_rows_of_another() -> None:
    """J-8: the chain begins with the submission, which names its run."""
    with pytest.raises(CorruptJournal, match="belongs to run run-1"):
        folded(some_rows(), "run-2")


# --- reading ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (b'[{"fact":"TerminalPublicationPrepared","name":"x"}]', "TerminalPublicationPrepared"),
        (b'[{"fact":"RunReleased","actor":"x"},{"fact":"InteractionTimedOut"}]', "InteractionTimedOut"),
        (b'[{"fact":"InteractionTimedOut"},{"fact":"Other"}]', "InteractionTimedOut, Other"),
        (b'[{"fact":"RunReleased","actor":"x","until":7}]', "RunReleased.until"),
        (b'[{"fact":"OperationReserved","step":"A","attempt":1,"item":0}]', "OperationReserved.item"),
    ],
)
def test_facts_of_a_newer_release_are_named_and_refused(text: bytes, name: str) -> None:
    """J-13: never skipped, never read by half; the message says which release reads them."""
    with pytest.raises(NewerJournal) as caught:
        decode_facts("run-9", 4, text)
    message = str(caught.value)
    assert f"({name} at fact 4 or after)" in message
    assert "run-9" in message
    assert "the release that wrote them, or a newer one, reads them" in message


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"null",
        b"{}",
        b"[1]",
        b"[{}]",
        b'[{"fact":1}]',
        b'[{"fact":"RunReleased"}]',
        b'[{"fact":"RunReleased","actor":1}]',
        b'[{"fact":"OperationReserved","step":"A","attempt":1.5}]',
        b'[{"fact":"OperationReserved","step":"A","attempt":1,"phase":"sideways"}]',
        b'[{"fact":"RunReleased","actor":"\xff"}]',
        b'[{"fact":"RunReleased","actor":"x"}',
        b'[{"fact":"OperationSucceeded","step":"A","attempt":1,"state":' + b"[" * 100_000 + b"]" * 100_000 + b"}]",
    ],
    ids=lambda text: repr(text[:40]),
)
def test_what_is_no_list_of_facts_is_corrupt(text: bytes) -> None:
    """J-8: and nothing but `CorruptJournal`."""
    with pytest.raises(CorruptJournal, match="not readable") as caught:
        decode_facts("run-9", 4, text)
    assert (caught.value.run_id, caught.value.seq) == ("run-9", 4)


@given(
    st.binary(max_size=80) | st.text(max_size=40).map(lambda text: f'[{{"fact":"{text}"}}]'.encode("utf-8", "replace"))
)
def test_no_text_raises_anything_else(text: bytes) -> None:
    with contextlib.suppress(CorruptJournal, NewerJournal):
        decode_facts("run-9", 1, text)


def test_payloads_are_kept_as_they_were_written() -> None:
    """M-2, J-11: bytes, order and spaces of what a codec wrote."""
    state = msgspec.Raw(b'{ "b": 1.50, "a": "\\u00fc" }')
    read_back = decode_facts("r", 1, encode_facts([OperationSucceeded("A", 1, state)]))[0]
    assert isinstance(read_back, OperationSucceeded)
    assert bytes(read_back.state) == bytes(state)


# --- the corpus -------------------------------------------------------------------------------------------------------

JOURNALS = sorted(CORPUS.glob("*/*.jsonl"))

# What a release wrote never changes. A new release adds a line; nobody edits one.
FROZEN = {
    "0.1": "e0496fe5c240cbf3b480b070260ed29deba6121761fb795d8b8fa7a377bb6a7e",
    "0.2-priorities": "a2feb949972aa069f40ff42eea2ce631ca0c729d80d434a0f90ee6bf251776d6",
    "0.2": "f60c33ad433b652a7118022bd63b60e16847485bfec047465185f661c82098fe",
}


def digest(folder: Path) -> str:
    """Of all files of a release, names included."""
    made = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        made.update(path.name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return made.hexdigest()


def test_the_corpus_is_as_it_was_written() -> None:
    """J-13."""
    assert {folder.name: digest(folder) for folder in CORPUS.iterdir() if folder.is_dir()} == FROZEN


@pytest.mark.parametrize("path", JOURNALS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_journal_of_a_former_release_folds_to_what_it_meant(path: Path) -> None:
    """J-13, J-8: every field recorded then has its value still; new ones may have come."""
    p = folded(read(path))
    expected = msgspec.json.decode(path.with_suffix(".folded.json").read_bytes(), type=dict[str, object])
    now = plain(p)
    assert {name: now.get(name) for name in expected} == expected
    for text in TOPOLOGIES:
        reconcile(p, topology(text))
        explain(p, topology(text))


@pytest.mark.parametrize("path", JOURNALS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_journal_of_a_former_release_is_written_again_as_it_was(path: Path) -> None:
    """J-13: what this release leaves out or adds when it writes would show here."""
    for row in read(path):
        assert encode_facts(decode_facts(RUN, row.first_seq, row.facts.encode())).decode() == row.facts


def test_the_corpus_has_every_fact() -> None:
    """J-13: with all of its fields set to something somewhere; a new fact type needs a journal of its release."""
    facts: list[Fact] = []
    for path in JOURNALS:
        for row in read(path):
            facts += decode_facts(RUN, row.first_seq, row.facts.encode())
    assert {type(fact) for fact in facts} == set(get_args(Fact))
    assert {path.stem for path in JOURNALS} >= {make.__name__ for make in LIVES}


@pytest.mark.parametrize("make", LIVES, ids=lambda make: make.__name__)
def test_the_lives_of_the_corpus_still_go_that_way(make: Callable[[], Life]) -> None:
    """What would be written for the next release folds as well; an unfinished run goes on."""
    life = make()
    assert content(folded(chained(life.rows))) == content(life.p)
    if life.p.ended is None:
        life.now_us = max(life.now_us, life.p.due_us)
        life.restart()
        assert life.claim().next is not None
