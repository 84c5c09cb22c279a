"""A field that is absent is read as its default, in the object itself [P-3, M-2, J-4]."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
import pytest

from perdure.codec.json import AnyCodec, codec_for


@dataclass(frozen=True)
class Part:
    name: str
    count: int = 1


@dataclass
class Job:
    name: str
    parts: list[Part] = field(default_factory=list[Part])
    by_name: dict[str, Part] | None = None
    first: Part = Part("first")
    note: str = "none"


class Pair(NamedTuple):
    left: Part
    right: tuple[Part, ...] = ()


class Box(msgspec.Struct):
    part: Part
    pair: Pair | None = None


CASES: list[tuple[type, bytes, object]] = [
    (Part, b'{"name":"a"}', Part("a")),
    (Job, b'{"name":"a"}', Job("a")),
    (Job, b'{"name":"a","parts":[{"name":"b"}]}', Job("a", [Part("b")])),
    (Job, b'{"name":"a","by_name":{"x":{"name":"b"}},"first":{"name":"c"}}', Job("a", [], {"x": Part("b")}, Part("c"))),
    (Box, b'{"part":{"name":"a"},"pair":[{"name":"b"},[{"name":"c"}]]}', Box(Part("a"), Pair(Part("b"), (Part("c"),)))),
]


@pytest.mark.parametrize(("kind", "data", "value"), CASES)
def test_what_lacks_a_field_is_the_same_as_what_was_made_without_it(kind: type, data: bytes, value: object) -> None:
    codec: AnyCodec = codec_for(kind)
    back = codec.decode(data)
    assert back == value
    assert codec.encode(back) == codec.encode(value)
    assert codec.digest(back) == codec.digest(value) == codec.digest_of(data)
