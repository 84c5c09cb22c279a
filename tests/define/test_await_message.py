"""What an await of a message keeps and refuses [B-8, B-20, B-24]."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from perdure import AwaitMessage, retired, step
from perdure.core.plan import Opening
from perdure.core.topology import StepSpec
from perdure.define.locking import lock_of
from perdure.errors import DefinitionError
from tests.define.sample import Hold, Inv, Transfer, build, is_large, reserve

make: Any = AwaitMessage
NONE: Any = None


def test_its_state_is_the_message() -> None:
    waits = AwaitMessage("wait/v1", name="hold", type=Hold, timeout=timedelta(minutes=2))
    assert waits.spec == StepSpec("wait/v1", shape="message")
    assert (waits.message, waits.timeout_us) == ("hold", 120_000_000)
    assert waits.codec.encode(Hold("h")) == b'{"hold_id":"h"}'
    assert waits.opening(NONE) == Opening(120_000_000, ("hold",))
    assert waits.timeout_state() is None
    assert AwaitMessage("wait/v1", name="hold", type=Hold).opening(NONE) == Opening(0, ("hold",))
    assert retired(waits).spec == StepSpec("wait/v1", retired=True, shape="message")
    assert repr(waits) == "<await 'wait/v1' of message 'hold'>"
    assert build((waits, reserve)).topology.ids == ("wait/v1", "reserve/v1")


def test_what_it_has_after_a_time_out() -> None:
    """B-8: `None` is a value like any, where the type has it."""
    assert AwaitMessage("w/v1", name="n", type=Hold, timeout=1, on_timeout=Hold("x")).timeout_state() == (
        b'{"hold_id":"x"}'
    )
    assert make("w/v1", name="n", type=Hold | None, timeout=1, on_timeout=None).timeout_state() == b"null"


def test_name_type_and_time_out_are_no_part_of_the_topology() -> None:
    """B-20, D-4: a handler instead of it is."""

    @step("wait/v1")
    async def handler(inv: Inv) -> Hold:
        return Hold("h")

    one = build((AwaitMessage("wait/v1", name="a", type=Hold),)).topology.digest
    other = build((AwaitMessage("wait/v1", name="b", type=Transfer, timeout=5),)).topology.digest
    assert one == other != build((handler,)).topology.digest


def test_it_may_have_a_condition() -> None:
    """E-12."""
    waits = AwaitMessage("w/v1", name="n", type=Hold, when=is_large)
    assert waits.spec == StepSpec("w/v1", conditional=True, shape="message")


def test_the_lock_file_knows_it() -> None:
    """D-6."""
    locked = lock_of((build((AwaitMessage("w/v1", name="n", type=Hold),)),)).pipelines["p"].steps[0]
    assert locked.spec == StepSpec("w/v1", shape="message")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"name": ""}, "step 'w/v1': the name of its message must not be empty"),
        ({"name": 7}, "the name of its message must be a str, not int"),
        ({"name": "a\ud800"}, "the name of its message must not hold a lone surrogate"),
        ({"name": "x" * 600}, "the name of its message must not be longer than 512 bytes"),
        ({"type": lambda: 1}, "step 'w/v1': its message of "),
        ({"type": complex}, "step 'w/v1': its message of type 'complex'"),
        ({"timeout": 0}, "step 'w/v1': timeout must"),
        ({"timeout": -1}, "step 'w/v1': timeout must"),
        ({"timeout": "5"}, "step 'w/v1': timeout must"),
        ({"timeout": float("nan")}, "step 'w/v1': timeout must"),
        ({"timeout": timedelta(0)}, "step 'w/v1': timeout must"),
        ({"on_timeout": Hold("h")}, "on_timeout without a timeout is never used"),
        ({"timeout": 1, "on_timeout": "no hold"}, "step 'w/v1': on_timeout is no "),
        ({"timeout": 1, "on_timeout": None}, "step 'w/v1': on_timeout is no "),
        ({"when": True}, "expected a function"),
        ({"needs": (7,)}, "needs"),
    ],
)
def test_what_could_not_work_is_refused_where_it_is_written(options: dict[str, Any], said: str) -> None:
    with pytest.raises(DefinitionError) as refused:
        build((make("w/v1", **{"name": "n", "type": Hold, **options}),))
    assert said in str(refused.value)
    assert len(str(refused.value)) < 500


def test_an_id_is_an_id() -> None:
    with pytest.raises(DefinitionError, match="the id of a step must not be empty"):
        make("", name="n", type=Hold)
