"""An app that cannot work is refused when it is built, not by the runs that meet it [P-2, R-15]."""

from __future__ import annotations

from typing import Any

import pytest

from perdure import App, DefinitionError, Event, step
from tests.runtime.lab import Inv, line


@step("one/v1")
async def one(inv: Inv) -> None:
    """Do nothing."""


ONE = line(one)


async def told(event: Event) -> None:
    """Nobody would await it."""


class AlsoAsync:
    async def __call__(self, event: Event) -> None:
        """Nor this."""


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"retry": 3}, "retry=.*Retry, not int"),
        ({"retry": ""}, "retry=.*Retry, not str"),
        ({"middleware": "abc"}, "middleware=.*sequence of functions"),
        ({"middleware": [None]}, "middleware=.*a function, not None"),
        ({"middleware": 3}, "middleware=.*sequence of functions"),
        ({"observers": print}, "observers=.*sequence of functions"),
        ({"observers": ["log"]}, "observers=.*a function, not 'log'"),
        ({"observers": [told]}, "observers=.*plain `def`"),
        ({"observers": [AlsoAsync()]}, "observers=.*plain `def`"),
        ({"build": 3}, "build=.*must be a str, not int"),
        ({"build": "\ud800"}, "build=.*lone surrogate"),
        ({"build": "x" * 600}, "build=.*longer than 512 bytes"),
        ({"store": 3}, "store=.*a URL, not int"),
    ],
    ids=lambda value: str(value).partition(" at 0x")[0][:60],
)
def test_what_would_only_show_later_is_refused_at_once(options: dict[str, Any], said: str) -> None:
    """A build that is no text, for one, made facts that nobody could read [D-2, J-8]."""
    with pytest.raises(DefinitionError, match=said):
        App(ONE.bind(), **options)


def test_a_build_from_the_environment_is_no_less_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_BUILD", "x" * 600)
    with pytest.raises(DefinitionError, match="PERDURE_BUILD must not be longer"):
        assert App(ONE.bind()).build
    monkeypatch.setenv("PERDURE_BUILD", "")
    assert len(App(ONE.bind()).build) == 12
