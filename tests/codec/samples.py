"""The rows of docs/reference/payload-types.md, as values: what comes back exactly, and what is refused [P-1, P-2]."""

from __future__ import annotations

import collections
import datetime
import enum
import math
import threading
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from datetime import date, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, NamedTuple, NotRequired, TypedDict, TypeVar
from zoneinfo import ZoneInfo

import msgspec

T = TypeVar("T")
BERLIN = ZoneInfo("Europe/Berlin")


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1


class Tone(str, enum.Enum):  # noqa: UP042  # the older spelling is an own case
    DARK = "dark"


class Right(enum.Flag):
    READ = 1
    WRITE = 2


class Mixed(enum.Enum):
    A = 1
    B = "b"


class Text(str):
    """A str that is a bit more."""


class Point(NamedTuple):
    x: int
    y: int = 0


class Extra(TypedDict):
    note: str
    count: NotRequired[int]


@dataclass
class Money:
    amount: Decimal
    currency: str = "EUR"


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    id: str
    items: list[Money] = field(default_factory=list[Money])
    _private: int = 0


@dataclass
class Gift(Money):
    to: str = ""


@dataclass
class Tree:
    value: int
    children: list[Tree] = field(default_factory=list["Tree"])


@dataclass
class Box(Generic[T]):
    content: T


@dataclass
class Late:
    a: int
    b: int = field(init=False)


@dataclass
class Checked:
    a: int

    def __post_init__(self) -> None:
        if self.a < 0:
            raise ValueError("negative")


@dataclass
class Doubling:
    a: int

    def __post_init__(self) -> None:
        self.a *= 2


@dataclass
class WithInitVar:
    a: InitVar[int]


@dataclass
class Loose:
    a: list[Any]


class Cat(msgspec.Struct, tag="cat"):
    lives: int


class Dog(msgspec.Struct, tag="dog"):
    born: datetime.datetime


class Row(msgspec.Struct, array_like=True, omit_defaults=True):
    row_id: int
    at: datetime.datetime | None = None


class Patch(msgspec.Struct, rename="camel"):
    row_id: int
    new_note: str | msgspec.UnsetType | None = msgspec.UNSET


class Case(NamedTuple):
    """One declared type of a row.

    Attributes:
        type: the declared type.
        exact: values that come back as they were.
        refused: values that are refused, with a part of the message.
    """

    type: Any
    exact: tuple[object, ...] = ()
    refused: tuple[tuple[object, str], ...] = ()


at = datetime.datetime


RECURSIVE: list[object] = []
RECURSIVE.append(RECURSIVE)

ROWS: dict[str, tuple[Case, ...]] = {
    "`None`": (Case(None, (None,), ((0, "expected NoneType, got int"),)),),
    "`bool`": (Case(bool, (True, False), ((1, "expected bool, got int"),)),),
    "`int`": (
        Case(
            int,
            (0, -1, 2**53 + 1, 2**63, -(2**64), 10**400),
            ((True, "bool would come back as int"), (Level.LOW, "Level would come back as int"), (1.0, "got float")),
        ),
        Case(int, (), ((10**5000, "4300 digits"),)),
    ),
    "`float`": (
        Case(
            float,
            (0.0, -0.0, 0.1, 1e308, 5e-324, 2.0**60),
            (
                (math.nan, "nan has no JSON form"),
                (math.inf, "inf has no JSON form"),
                (-math.inf, "-inf has no JSON form"),
                (2**60 + 1, "no float is equal to this int"),
                (10**400, "no float is equal to this int"),
                (True, "expected float, got bool"),
            ),
        ),
        Case(int | float, (1, 1.0, 2**60 + 1), ((True, "expected int or float"),)),
    ),
    "`str`": (
        Case(
            str,
            ("", "a\x00b", "ü💶", "\u2028", "x" * 100_000),
            (
                ("a\ud800", "$: holds a lone surrogate"),
                (Text("a"), "Text would come back as str"),
                (Tone.DARK, "Tone would come back as str"),
                (b"a", "expected str, got bytes"),
            ),
        ),
    ),
    "`bytes`, `bytearray`": (
        Case(bytes, (b"", b"\x00\xff"), (("a", "expected bytes"), (bytearray(b"a"), "expected bytes"))),
        Case(bytearray, (bytearray(b"\x00"),), ((b"a", "expected bytearray"),)),
    ),
    "`Decimal`": (
        Case(
            Decimal,
            tuple(map(Decimal, ("0", "-0", "1.00", "1E+3", "0E-10", "NaN", "sNaN", "NaN12", "-Infinity", "9" * 60))),
            ((1, "expected Decimal, got int"), (1.5, "expected Decimal, got float")),
        ),
    ),
    "`UUID`": (Case(uuid.UUID, (uuid.UUID(int=7),), (("7", "expected UUID"),)),),
    "`date`": (Case(date, (date.min, date.max), ((at(2024, 1, 1), "datetime would come back as date"),)),),
    "`datetime`": (
        Case(
            datetime.datetime,
            (
                at(1, 1, 1),
                at(9999, 12, 31, 23, 59, 59, 999_999),
                at(2024, 1, 1, tzinfo=datetime.UTC),
                at(2024, 1, 1, tzinfo=timezone(timedelta(hours=-9, minutes=-30))),
                at(2024, 10, 27, 2, 30, tzinfo=BERLIN),
                at(2024, 10, 27, 2, 30, tzinfo=BERLIN, fold=1),
                at(2024, 3, 31, 2, 30, tzinfo=BERLIN),
                at(2024, 1, 1, tzinfo=ZoneInfo("UTC")),
                at(2024, 10, 27, 2, 30, fold=1),
                at(2024, 1, 1, tzinfo=datetime.UTC, fold=1),
            ),
            (
                (at(2024, 1, 1, tzinfo=timezone(timedelta(seconds=30))), "offset with seconds"),
                (at(2024, 1, 1, tzinfo=timezone(timedelta(hours=1), "CET")), "name of a fixed offset"),
                (date(2024, 1, 1), "expected datetime, got date"),
            ),
        ),
    ),
    "`time`": (
        Case(
            time,
            (time(1, 2, 3, 4), time(1, tzinfo=datetime.UTC)),
            ((time(1, fold=1), "fold of a time"), (time(1, tzinfo=BERLIN), "only offsets of whole minutes")),
        ),
    ),
    "`timedelta`": (
        Case(timedelta, (timedelta.min, timedelta.max, timedelta(microseconds=-1)), ((1, "expected timedelta"),)),
    ),
    "`Enum`, `IntEnum`, `StrEnum`, `Flag`": (
        Case(Color, (Color.RED,), (("red", "expected Color, got str"),)),
        Case(Level, (Level.LOW,), ((1, "expected Level, got int"),)),
        Case(Tone, (Tone.DARK,)),
        Case(Right, (Right.READ | Right.WRITE,)),
    ),
    "`Literal`": (
        Case(Literal["a", 1], ("a", 1), (("b", "expected one of"), (True, "expected one of"))),
        Case(Literal["a"] | Literal["b", "c"] | None, ("a", "b", "c", None), (("d", "expected one of"),)),
    ),
    "`list`, `Sequence`": (
        Case(list[int], ([], [1, 2]), (((1,), "expected list, got tuple"), ([1, "2"], "$[1]: expected int, got str"))),
        Case(Sequence[str], (["a"],), ((("a",), "expected list, got tuple"),)),
    ),
    "`tuple`, `NamedTuple`": (
        Case(tuple[int, str], ((1, "a"),), (((1,), "a tuple of 2, got 1"), ([1, "a"], "expected tuple, got list"))),
        Case(tuple[int, ...], ((), (1, 2, 3)), (((1, None), "$[1]: expected int"),)),
        Case(Point, (Point(1), Point(1, 2)), (((1, 2), "expected Point, got tuple"),)),
        Case(tuple[int, int], (), ((Point(1, 2), "expected tuple, got Point"),)),
    ),
    "`set`, `frozenset`": (
        Case(set[int], (set(), {1, 2}), (([1], "expected set, got list"),)),
        Case(frozenset[tuple[int, ...]], (frozenset({(1,), (2, 3)}),)),
        Case(set[datetime.datetime], ({at(2024, 1, 1)},), (({at(2024, 1, 1, fold=1)}, "cannot stand in a set"),)),
    ),
    "`dict`, `Mapping`": (
        Case(
            dict[str, int],
            ({}, {"a": 1, "": 2}),
            (
                ({1: 1}, "key 1: expected str"),
                ({"a": "b"}, "$.a: expected int, got str"),
                ({"a b": "b"}, "$['a b']: expected int, got str"),
                ({"\ud800": 1}, "holds a lone surrogate"),
                (collections.OrderedDict(a=1), "expected dict, got OrderedDict"),
            ),
        ),
        Case(Mapping[int, int], ({1: 1, 2**70: 2},), (({True: 1}, "key True: bool would come back as int"),)),
        Case(dict[float, int], ({1.5: 1},), (({math.nan: 1}, "key nan: nan has no JSON form"),)),
        Case(dict[uuid.UUID, int], ({uuid.UUID(int=1): 1},)),
        Case(dict[Decimal, int], ({Decimal("1.0"): 1},)),
        Case(dict[Color, int], ({Color.RED: 1},)),
        Case(dict[Level, int], ({Level.LOW: 1},)),
        Case(dict[bytes, int], ({b"\x00": 1},)),
        Case(dict[date, int], ({date.min: 1},)),
        Case(dict[datetime.datetime, int], ({at(2024, 1, 1): 1},), (({at(2024, 1, 1, fold=1): 1}, "cannot be a key"),)),
    ),
    "`TypedDict`": (
        Case(
            Extra,
            ({"note": "n"}, {"note": "n", "count": 1}),
            (
                ({"count": 1}, "the key 'note' is missing"),
                ({"note": "n", "more": 1}, "'more' is no key of Extra"),
                ({"note": 1}, "$.note: expected str, got int"),
            ),
        ),
    ),
    "dataclass": (
        Case(
            Order,
            (Order(id="1"), Order(id="1", items=[Money(Decimal("1.50"))], _private=7)),
            (
                (Order(id=1), "$.id: expected str, got int"),  # type: ignore[arg-type]  # the mistake
                (Order(id="1", items=[Gift(Decimal(1))]), "$.items[0]: Gift would come back as Money"),
                ({"id": "1"}, "expected Order, got dict"),
                (None, "expected Order, got NoneType"),
            ),
        ),
        Case(Tree, (Tree(1, [Tree(2, [Tree(3)])]),), ((Tree(1, [Tree("2")]), "$.children[0].value"),)),  # type: ignore[arg-type]  # the mistake
        Case(Box[int], (Box(1),), ((Box("1"), "$.content: expected int"),)),
        Case(Checked, (Checked(1),)),
        Case(Doubling, (), ((Doubling(1), "its class changes it"),)),
        Case(Late, (), ((Late(1), "$.b: the field is not set"),)),
    ),
    "msgspec `Struct`": (
        Case(
            Row,
            (Row(1), Row(1, at(2024, 10, 27, 2, 30, tzinfo=BERLIN, fold=1))),
            ((Row("1"), "$.row_id: expected int"),),  # type: ignore[arg-type]  # the mistake
        ),
        Case(Patch, (Patch(1), Patch(1, None), Patch(1, "n"))),
        Case(Cat, (Cat(9),)),
        Case(Annotated[int, msgspec.Meta(gt=0)], (1,), ((0, "could not be read back"),)),
    ),
    "unions": (
        Case(int | None, (1, None), (("1", "expected int or None, got str"),)),
        Case(Money | None, (None, Money(Decimal(1))), ((Gift(Decimal(1)), "Gift would come back as Money"),)),
        Case(Cat | Dog, (Cat(1), Dog(at(2024, 1, 1)), Dog(at(2024, 10, 27, 2, 30, tzinfo=BERLIN, fold=1)))),
        Case(
            list[int] | dict[str, int] | str, ([1], {"a": 1}, "a"), (((1,), "expected str or list or dict, got tuple"),)
        ),
    ),
    "`object`, `Any`, bare `list` and `dict`": (
        Case(
            object,
            (None, 1, 2**70, "a", 1.5, [1, [True, None]], {"a": {"b": []}}),
            (
                ((1,), "tuple is not plain JSON"),
                ({1: 2}, "a key of type int would come back as str"),
                ({1}, "set is not plain JSON"),
                (Money(Decimal(1)), "Money is not plain JSON"),
                ({"a": [at(2024, 1, 1)]}, "$.a[0]: datetime is not plain JSON"),
                ([math.nan], "$[0]: nan has no JSON form"),
                (RECURSIVE, "nested too deeply, or containing itself"),
            ),
        ),
        Case(Loose, (Loose([1]),), ((Loose([threading.Lock()]), "$.a[0]: lock is not plain JSON"),)),
        Case(list, ([1, "a"],), (([b""], "$[0]: bytes is not plain JSON"),)),
        Case(dict, ({"a": 1},), (({1: 1}, "key 1: expected str"),)),
    ),
}

UNSUPPORTED: tuple[Any, ...] = (
    complex,
    threading.Thread,
    Path,
    type,
    Iterable[int],
    memoryview,
    msgspec.Raw,
    Mixed,
    WithInitVar,
    Money | Order,
    str | datetime.datetime,
    dict[bool, int],
    dict[tuple[int, int], int],
    dict[int | str, int],
    list[Path],
    "Money",
)
