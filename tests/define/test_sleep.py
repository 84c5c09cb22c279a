"""What a sleep keeps and refuses [B-15, B-20]."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from perdure import Sleep, retired, step
from perdure.core.topology import StepSpec, Topology
from perdure.define.locking import lock_of
from perdure.errors import DefinitionError
from tests.define.sample import Inv, build, is_large, reserve

make: Any = Sleep


def test_a_sleep_is_a_step_without_a_state() -> None:
    nap = Sleep("nap/v1", timedelta(minutes=2))
    assert nap.spec == StepSpec("nap/v1", shape="sleep")
    assert nap.lasts_us == 120_000_000
    assert nap.codec.encode(None) == b"null"
    assert retired(nap).spec == StepSpec("nap/v1", retired=True, shape="sleep")
    assert build((nap, reserve)).topology.ids == ("nap/v1", "reserve/v1")
    assert Sleep("nap/v1", 1.5).lasts_us == 1_500_000


def test_how_long_it_sleeps_is_no_part_of_the_topology() -> None:
    """B-20, D-4: another duration is no other deployment; a sleep instead of a handler is."""

    @step("nap/v1")
    async def handler(inv: Inv) -> None: ...

    short, long = build((Sleep("nap/v1", 1),)), build((Sleep("nap/v1", 2),))
    assert short.topology.digest == long.topology.digest != build((handler,)).topology.digest
    assert Topology([StepSpec("nap/v1")]).digest == build((handler,)).topology.digest


def test_it_may_have_a_condition() -> None:
    """E-12."""
    assert Sleep("nap/v1", 1, when=is_large).spec == StepSpec("nap/v1", conditional=True, shape="sleep")


def test_the_lock_file_knows_it() -> None:
    """D-6."""
    locked = lock_of((build((Sleep("nap/v1", 1),)),)).pipelines["p"].steps[0]
    assert locked.spec == StepSpec("nap/v1", shape="sleep")


@pytest.mark.parametrize("wrong", [0, -1, float("nan"), "5", None, timedelta(0), timedelta(days=-1)])
def test_a_duration_that_is_none_is_refused(wrong: Any) -> None:
    with pytest.raises(DefinitionError, match=r"step 'nap/v1': the duration of a sleep must"):
        make("nap/v1", wrong)


def test_what_else_is_wrong_is_refused_as_of_a_step() -> None:
    with pytest.raises(DefinitionError, match="must not be empty"):
        make("", 1)
    with pytest.raises(DefinitionError, match="expected a function"):
        make("nap/v1", 1, when=True)
