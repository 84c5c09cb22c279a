"""Payloads come back exactly, or are refused with their path."""

from __future__ import annotations

import dataclasses
import datetime
import io
import json
import re
import struct
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.codec.json import Codec, codec_for, codec_of
from perdure.errors import DefinitionError, PayloadError
from tests.codec.samples import ROWS, UNSUPPORTED, Checked, Color, Dog, Extra, Loose, Money, Order, Point

DOCS = Path(__file__).parents[2] / "docs" / "reference" / "payload-types.md"

EXACT = [(case.type, value) for cases in ROWS.values() for case in cases for value in case.exact]
REFUSED = [(case.type, *refusal) for cases in ROWS.values() for case in cases for refusal in case.refused]


def same(a: object, b: object) -> bool:
    """Whether two values are the same to the last detail: types, NaN, signs of zero, zones, folds."""
    if isinstance(a, datetime.datetime) and isinstance(b, datetime.datetime):
        return (repr(a), a.tzinfo) == (repr(b), b.tzinfo) and type(a.tzinfo) is type(b.tzinfo)
    if type(a) in (set, frozenset, dict):
        return type(a) is type(b) and a == b
    return type(a) is type(b) and repr(a) == repr(b)


@pytest.mark.parametrize(("kind", "value"), EXACT, ids=map(str, range(len(EXACT))))
def test_values_come_back_exactly(kind: Any, value: object) -> None:  # P-1
    codec = codec_of(kind)
    data = codec.encode(value)
    json.loads(data)
    assert same(codec.decode(data), value)
    assert same(codec.decode(msgspec.Raw(data)), value)


@pytest.mark.parametrize(("kind", "value", "message"), REFUSED, ids=map(str, range(len(REFUSED))))
def test_what_would_not_come_back_is_refused_with_its_path(kind: Any, value: object, message: str) -> None:  # P-2
    with pytest.raises(PayloadError, match=re.escape(message)) as caught:
        codec_of(kind).encode(value)
    assert caught.value.path.startswith("$")


@pytest.mark.parametrize("kind", UNSUPPORTED, ids=str)
def test_types_that_cannot_be_payloads_are_refused_when_the_codec_is_built(kind: Any) -> None:  # P-1
    with pytest.raises(DefinitionError, match="cannot be a payload"):
        codec_of(kind)


def test_a_type_that_cannot_be_a_payload_is_named_with_its_field() -> None:
    @dataclasses.dataclass
    class Holder:
        path: Path

    with pytest.raises(DefinitionError, match=r"Holder.*field 'path' of Holder: type 'Path' is not supported"):
        codec_for(Holder)


def test_the_table_in_the_docs_has_the_rows_that_are_tested() -> None:  # P-1
    cells = re.findall(r"^\| ([^|]+?) +\|", DOCS.read_text(), re.MULTILINE)
    assert [cell for cell in cells if cell in ROWS] == list(ROWS)


def test_paths_lead_to_the_place() -> None:  # P-2
    order = Order(id="1", items=[Money(Decimal(1)), Money(Decimal(2), currency=3)])  # type: ignore[arg-type]  # the mistake
    with pytest.raises(PayloadError) as caught:
        codec_for(Order).encode(order)
    assert (caught.value.path, caught.value.problem) == ("$.items[1].currency", "expected str, got int")


def test_a_surrogate_deep_inside_is_found() -> None:  # P-2
    order = Order(id="1", items=[Money(Decimal(1)), Money(Decimal(2), currency="\ud800")])
    with pytest.raises(PayloadError, match=re.escape("$.items[1].currency: holds a lone surrogate")):
        codec_for(Order).encode(order)


def test_what_is_decoded_belongs_to_the_reader() -> None:  # M-7
    codec = codec_for(list[list[int]])
    data = codec.encode([[1]])
    first = codec.decode(data)
    first[0].append(2)
    assert codec.decode(data) == [[1]]


# --- evolution


@dataclasses.dataclass
class Old:
    id: str
    gone: int


@dataclasses.dataclass
class New:
    id: str
    added: list[int] = dataclasses.field(default_factory=list[int])


@dataclasses.dataclass
class Stricter:
    id: str
    wanted: int


def test_old_data_is_read_by_a_new_type() -> None:  # P-3
    assert codec_for(New).decode(codec_for(Old).encode(Old("a", 1))) == New("a", [])


@pytest.mark.parametrize(
    ("kind", "data", "path"),
    [
        (Stricter, b'{"id":"a"}', "$.wanted"),
        (Stricter, b'{"id":"a","wanted":"1"}', "$.wanted"),
        (list[Stricter], b'[{"id":"a","wanted":1},{"id":"b"}]', "$[1].wanted"),
        (dict[str, Stricter], b'{"x":{"id":1,"wanted":1}}', "$[...].id"),
        (dict[int, int], b'{"x":1}', "$"),
        (Checked, b'{"a":-1}', "$"),
        (Dog, b'{"type":"dog","born":"2024-01-01T00:00:00+01:00[Mars/Base]"}', "$.born"),
        (list[Dog], b'[{"type":"dog","born":"2024-01-01[Europe/Berlin]"}]', "$[0].born"),
        (int, b"[", "$"),
        (int, b"1 2", "$"),
        (str, b'"\xff"', "$"),
        (object, b"[" * 100_000 + b"]" * 100_000, "$"),
    ],
    ids=str,
)
def test_what_the_type_cannot_read_is_an_error_with_its_path(kind: Any, data: bytes, path: str) -> None:  # P-3
    with pytest.raises(PayloadError) as caught:
        codec_of(kind).decode(data)
    assert caught.value.path == path


# --- equality


@dataclasses.dataclass
class Input:
    id: str
    tags: set[str] = dataclasses.field(default_factory=set[str])
    extra: dict[str, float] = dataclasses.field(default_factory=dict[str, float])


def test_digests_ignore_what_is_not_the_value() -> None:  # J-4, R-5
    codec = codec_for(Input)
    names = [f"tag-{n}" for n in range(50)]
    one = Input("a", {*names}, {"x": 1, "y": 2.5})
    other = Input("a", {*names[::-1]}, {"y": 2.5, "x": 1.0})
    assert codec.digest(one) == codec.digest(other)
    assert codec.digest(one) != codec.digest(Input("a", {*names}, {"x": 1, "y": 2.6}))
    assert len(codec.digest(one)) == 32


def test_the_digest_of_stored_data_is_that_of_the_value_it_is_today() -> None:  # J-4
    stored = b'{"id":"a"}'
    assert codec_for(Input).digest_of(stored) == codec_for(Input).digest(Input("a"))


def test_digests_do_not_depend_on_the_order_of_fields() -> None:  # J-4
    @dataclasses.dataclass
    class Swapped:
        extra: dict[str, float]
        id: str
        tags: set[str]

    assert codec_for(Swapped).digest(Swapped({}, "a", {"t"})) == codec_for(Input).digest(Input("a", {"t"}))


def test_digests_of_datetimes_tell_zones_apart() -> None:
    codec = codec_for(Dog)
    instant = datetime.datetime(2024, 10, 27, 1, 30, tzinfo=datetime.UTC)
    berlin = instant.astimezone(ZoneInfo("Europe/Berlin"))
    assert codec.digest(Dog(instant)) != codec.digest(Dog(berlin))
    assert codec.digest(Dog(berlin)) == codec.digest_of(codec.encode(Dog(berlin)))


def test_a_set_without_an_order_has_no_digest() -> None:
    with pytest.raises(PayloadError, match="no common order"):
        codec_for(set[int | str]).digest({1, "a"})


# --- Hypothesis

zones = st.sampled_from([None, datetime.UTC, ZoneInfo("Europe/Berlin"), ZoneInfo("America/New_York"), ZoneInfo("UTC")])
offsets = st.integers(-1439, 1439).map(lambda minutes: datetime.timezone(datetime.timedelta(minutes=minutes)))


def folded(moment: datetime.datetime, fold: int) -> datetime.datetime:
    return moment.replace(fold=fold)


moments = st.builds(folded, st.datetimes(timezones=zones | offsets, allow_imaginary=True), st.integers(0, 1))
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


@dataclasses.dataclass
class Everything:
    moment: datetime.datetime
    moments: dict[str, list[datetime.datetime | None]]
    span: datetime.timedelta
    price: Decimal
    ratio: float
    number: int
    raw: bytes
    text: str
    names: frozenset[str]
    pair: tuple[int, datetime.datetime]
    color: Color
    point: Point
    free: object
    extra: Extra
    dog: Dog | None
    by_number: dict[int, str]


everything = st.builds(
    Everything,
    moment=moments,
    moments=st.dictionaries(st.text(), st.lists(moments | st.none(), max_size=3), max_size=3),
    span=st.timedeltas(),
    price=st.decimals(),
    ratio=st.floats(allow_nan=False, allow_infinity=False),
    number=st.integers(),
    raw=st.binary(),
    text=st.text() | st.just('ends like a zone]"'),
    names=st.frozensets(st.text(), max_size=3),
    pair=st.tuples(st.integers(), moments),
    color=st.sampled_from(Color),
    point=st.builds(Point, st.integers(), st.integers()),
    free=plain,
    extra=st.fixed_dictionaries({"note": st.text()}, optional={"count": st.integers()}),
    dog=st.none() | st.builds(Dog, moments),
    by_number=st.dictionaries(st.integers(), st.text(), max_size=3),
)


@given(everything)
@settings(max_examples=200, deadline=None)
def test_everything_comes_back(value: Everything) -> None:  # P-1
    codec = codec_for(Everything)
    data = codec.encode(value)
    back = codec.decode(data)
    for field in dataclasses.fields(Everything):
        mine, theirs = getattr(value, field.name), getattr(back, field.name)
        assert same(theirs, mine), field.name
    assert codec.digest(back) == codec.digest(value) == codec.digest_of(data)


@given(plain)
@settings(max_examples=200, deadline=None)
def test_plain_values_come_back(value: object) -> None:  # P-1
    codec = codec_for(object)
    assert same(codec.decode(codec.encode(value)), value)


# --- odds and ends


def test_a_codec_is_built_once_for_each_type() -> None:
    build: Callable[[Any], Codec[Any]] = codec_for
    assert build(list[int]) is build(list[int])
    assert codec_for(Order) is codec_for(Order)


def test_an_error_inside_the_type_of_a_memoised_class_is_not_forgotten() -> None:
    codec = codec_for(Loose)
    codec.encode(Loose([1]))
    with pytest.raises(PayloadError):
        codec.encode(Loose([{1}]))


def test_a_zone_that_cannot_be_found_again_is_refused() -> None:  # P-2
    file = b"TZif" + bytes(16) + struct.pack(">6l", 0, 0, 0, 0, 1, 4) + bytes(6) + b"UTC\x00"
    nameless = ZoneInfo.from_file(io.BytesIO(file))
    with pytest.raises(PayloadError, match="cannot be found again"):
        codec_for(datetime.datetime).encode(datetime.datetime(2024, 1, 1, tzinfo=nameless))
