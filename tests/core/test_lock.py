"""D-6: the lock file says the same on every machine, and an edit is judged from two of them."""

from __future__ import annotations

import pytest

from perdure.core.lock import (
    Lock,
    LockChange,
    LockedPipeline,
    LockedStep,
    LockedType,
    compare_locks,
    decode_lock,
    encode_lock,
)
from perdure.core.topology import Topology
from perdure.errors import DefinitionError, InvalidArgument
from tests.core.build import topology

INT, TEXT = LockedType("int", "1" * 12), LockedType("str", "2" * 12)


def lock(text: str, needs: str = "", states: dict[str, LockedType] | None = None, input: LockedType = TEXT) -> Lock:
    """Steps as in `topology`; needs as `B:A C:A? A!`: B needs A, C can do without, A has a substitute."""
    wanted: dict[str, list[str]] = {}
    for word in needs.split():
        step, _, need = word.partition(":")
        wanted.setdefault(step.rstrip("!"), []).append(need)
    steps = tuple(
        LockedStep(
            spec.id,
            (states or {}).get(spec.id, INT),
            spec.unwind,
            spec.in_doubt,
            spec.retired,
            spec.conditional,
            spec.settle,
            tuple(n for n in wanted.get(spec.id, []) if n and not n.endswith("?")),
            tuple(n.rstrip("?") for n in wanted.get(spec.id, []) if n.endswith("?")),
            f"{spec.id}!" in needs.split(),
        )
        for spec in topology(text).steps
    )
    return Lock({"p": LockedPipeline(input, steps)})


def change(former: Lock, new: Lock) -> LockChange:
    (found,) = compare_locks(former, new)
    return found


ADVICE = "give N an if_skipped, or make the need optional(N)"


@pytest.mark.parametrize(
    ("former", "new", "warned"),
    [
        (lock("A B"), lock("A B"), []),
        (lock("A B"), lock("A"), ["B is removed without retiring"]),
        (lock("A B~"), lock("A"), []),
        (lock("A B"), lock("A B~"), []),
        (lock("A"), lock("A", states={"A": TEXT}), ["the state type of A changed under the same id (int to str)"]),
        (lock("A"), lock("A", states={"A": LockedType("int", "3" * 12)}), ["changed under the same id (int)"]),
        (lock("A"), lock("A", states={"A": LockedType("Renamed", INT.shape)}), []),
        (lock("A"), lock("A", input=INT), ["the input type changed (str to int)"]),
        (lock("A*"), lock("A"), ["A declares no unwind any more"]),
        (lock("A B"), lock("A N B", "B:N"), [f"B needs N, which runs under way may have passed: {ADVICE}"]),
        (lock("A N B C", "C:N"), lock("N A B C", "C:N"), ["C needs N, which runs under way may have passed"]),
        (lock("A B"), lock("A N B", "B:N N!"), []),
        (lock("A B"), lock("A N B", "B:N?"), []),
        (lock("N B", "B:N"), lock("N~ B", "B:N"), ["B needs N, which is retired and which new runs never start"]),
        (lock("A B"), Lock({}), ["removed: its live runs become invalid"]),
        (Lock({}), lock("A B"), []),
    ],
)
def test_what_a_reviewer_is_warned_of(former: Lock, new: Lock, warned: list[str]) -> None:
    """D-6, M-14, P-3."""
    found = change(former, new)
    assert len(found.warnings) == len(warned)
    assert all(said in warning for said, warning in zip(warned, found.warnings, strict=True)), found.warnings
    assert found.empty is (former == new or (former.pipelines.keys() == new.pipelines.keys() and _same(former, new)))


def _same(former: Lock, new: Lock) -> bool:
    """Only the name of a type differs."""
    return encode_lock(former).replace(b'"int"', b"?") == encode_lock(new).replace(b'"Renamed"', b"?")


def test_the_file_is_stable_and_comes_back() -> None:
    one, other = lock("A* B"), lock("C")
    first = Lock({"a": one.pipelines["p"], "b": other.pipelines["p"]})
    second = Lock({"b": other.pipelines["p"], "a": one.pipelines["p"]})
    assert encode_lock(first) == encode_lock(second)
    assert decode_lock(encode_lock(first)) == first
    assert encode_lock(one).endswith(b"}\n")
    assert max(len(line) for line in encode_lock(first).splitlines()) < 80, "one field a line: a diff reads well"


def test_a_lock_gives_the_topology_back() -> None:
    text = "A*?! B~ C& D*"
    candidate = lock(text, "D:A D:C?").candidates()["p"]
    assert candidate.topology.digest == Topology(topology(text).steps).digest
    assert (candidate.reads["D"].needs, candidate.reads["D"].optional) == (("A",), ("C",))


@pytest.mark.parametrize("data", [b"", b"\xff", b"[]", b"{}", b'{"pipelines":{"p":{}}}', b'{"pipelines":7}'])
def test_other_files_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidArgument, match="no lock file"):
        decode_lock(data)


def test_a_newer_lock_file_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="a lock file of version 2"):
        decode_lock(b'{"pipelines":{},"perdure_lock":2}')


@pytest.mark.parametrize(("text", "problem"), [("A A", "twice"), ("", "no steps")])
def test_a_lock_that_no_pipeline_can_have(text: str, problem: str) -> None:
    """An empty pipeline and a duplicated id are refused by name."""
    steps = tuple(LockedStep(step, INT) for step in text.split())
    with pytest.raises(DefinitionError, match=rf"pipeline 'p': .*{problem}"):
        Lock({"p": LockedPipeline(TEXT, steps)}).candidates()
