"""D-6: what makes the shape of a payload type another one, and what does not."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import GenericAlias

import msgspec
import pytest

from perdure.codec.digest import shape_digest, shape_name
from perdure.codec.json import codec_of


@dataclass
class Hold:
    """A hold."""

    key: str
    cents: int = 0


def renamed() -> type:
    @dataclass
    class Reservation:
        """Another comment."""

        key: str
        cents: int = 7

    return Reservation


def reordered() -> type:
    @dataclass
    class Hold:
        cents: int
        key: str

    return Hold


def grown() -> type:
    @dataclass
    class Hold:
        key: str
        cents: int = 0
        note: str = ""

    return Hold


def described_by_its_fields() -> type:
    @dataclass
    class Hold:
        key: str
        description: str = ""

    return Hold


@dataclass
class Tree:
    name: str
    children: list[Tree] = field(default_factory=list["Tree"])


class Tagged(msgspec.Struct, tag="t"):
    key: str


MADE = renamed()


def digest(type: object) -> str:
    return shape_digest(codec_of(type))


def test_comments_names_and_defaults_do_not_count() -> None:
    assert digest(Hold) == digest(MADE)
    assert digest(list[Hold]) == digest(GenericAlias(list, (MADE,)))


@pytest.mark.parametrize("other", [reordered(), grown(), described_by_its_fields(), Tagged, str, None, object])
def test_fields_count(other: object) -> None:
    assert digest(Hold) != digest(other)


def test_every_shape_is_its_own() -> None:
    types: list[object] = [int, str, float, bool, None, object, list[int], dict[str, int], Hold, Tree, int | None]
    assert len({digest(type) for type in types}) == len(types)
    assert all(len(digest(type)) == 12 for type in types)


def test_a_type_that_holds_itself_has_a_digest() -> None:
    assert digest(Tree) == digest(Tree)
    assert digest(dict[str, object]) != digest(dict[str, int])


@pytest.mark.parametrize(
    ("type", "name"),
    [(int, "int"), (Hold, "Hold"), (list[int], "list[int]"), (None, "None"), (MADE, "Reservation")],
)
def test_a_type_is_named_as_its_author_writes_it(type: object, name: str) -> None:
    assert shape_name(codec_of(type)) == name
