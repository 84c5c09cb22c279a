"""The checks of single values: scalars, tuples, unions, and what stands where nothing is declared [P-1].

A check compares a value with its declared type exactly, and refuses what would come back as something else.
"""

from __future__ import annotations

import datetime
import enum
import math
import uuid
from collections.abc import Callable
from decimal import Decimal
from typing import Any, TypeAlias, cast

from msgspec import inspect

from perdure.codec.zoned import Misfit, kind_of, needs_zoned_form

Check: TypeAlias = Callable[[Any], bool | None]
"""Raises `Misfit`; true if a datetime inside needs the form of `zoned.py`."""

NONE: frozenset[type] = frozenset()


class Shape:
    """The check of one type.

    Attributes:
        exact: a value of exactly one of these types needs no check; often empty.
        check: see `Check`.
        types: the types of the values it accepts; None: any.
    """

    __slots__ = ("check", "exact", "types")

    def __init__(self, check: Check, types: tuple[type, ...] | None, exact: frozenset[type] = NONE) -> None:
        self.check = check
        self.types = types
        self.exact = exact


def expected(what: str, value: object) -> Misfit:
    """`value` is not what its declared type says."""
    return Misfit(f"expected {what}, got {type(value).__name__}")


def exact(kind: type) -> Shape:
    """Values of exactly this type; an instance of a subclass would come back as another type."""

    def check(value: object) -> None:
        if type(value) is not kind:
            if isinstance(value, kind):
                raise Misfit(f"{type(value).__name__} would come back as {kind.__name__}")
            raise expected(kind.__name__, value)

    return Shape(check, (kind,), exact=frozenset((kind,)))


def check_float(value: object) -> None:
    """Finite floats, and ints that are equal to one; those come back as that float."""
    if type(value) is float:
        if not math.isfinite(value):
            raise Misfit(f"{value} has no JSON form; use Decimal or None")
    elif type(value) is int:
        try:
            same = int(float(value)) == value
        except OverflowError:
            same = False
        if not same:
            raise Misfit("no float is equal to this int")
    else:
        raise expected("float", value)


def check_time(value: object) -> None:
    if type(value) is not datetime.time:
        raise expected("time", value)
    zone = value.tzinfo
    if zone is not None and not (type(zone) is datetime.timezone and zone.utcoffset(None).seconds % 60 == 0):
        raise Misfit("a time keeps only offsets of whole minutes; use a datetime")
    if value.fold:
        raise Misfit("the fold of a time would be lost; use a datetime")


def check_plain(value: object) -> None:
    """Where nothing is declared only what JSON itself can tell apart is exact."""
    kind = kind_of(value)
    if kind is str or kind is int or kind is bool or value is None:
        return
    if kind is float:
        check_float(value)
    elif kind is list:
        for index, item in enumerate(cast("list[object]", value)):
            try:
                check_plain(item)
            except Misfit as misfit:
                raise misfit.within(f"[{index}]") from None
    elif kind is dict:
        for key, item in cast("dict[object, object]", value).items():
            if type(key) is not str:
                raise Misfit(f"a key of type {type(key).__name__} would come back as str; declare the dict's type")
            try:
                check_plain(item)
            except Misfit as misfit:
                raise misfit.within(field_path(key)) from None
    else:
        raise Misfit(f"{kind.__name__} is not plain JSON; no type is declared here that says how to keep it")


def field_path(name: object) -> str:
    """The step of a path into the field or key `name`."""
    return f".{name}" if isinstance(name, str) and name.isidentifier() else f"[{name!r}]"


SCALARS: dict[type, Shape] = {
    inspect.NoneType: exact(type(None)),
    inspect.BoolType: exact(bool),
    inspect.IntType: exact(int),
    inspect.StrType: exact(str),
    inspect.BytesType: exact(bytes),
    inspect.ByteArrayType: exact(bytearray),
    inspect.DateType: exact(datetime.date),
    inspect.TimeDeltaType: exact(datetime.timedelta),
    inspect.UUIDType: exact(uuid.UUID),
    inspect.DecimalType: exact(Decimal),
    inspect.FloatType: Shape(check_float, (float, int)),
    inspect.TimeType: Shape(check_time, (datetime.time,)),
    inspect.DateTimeType: Shape(needs_zoned_form, (datetime.datetime,)),
    inspect.AnyType: Shape(check_plain, None),
}


def literal(values: tuple[object, ...]) -> Shape:
    known = {(type(value), value) for value in values}

    def check(value: object) -> None:
        if type(value) not in (str, int, type(None)) or (type(value), value) not in known:
            raise Misfit(f"expected one of {', '.join(map(repr, values))}")

    return Shape(check, tuple({type(value) for value in values}))


def fixed_tuple(items: tuple[Shape, ...]) -> Shape:
    def check(value: object) -> bool:
        found = kind_of(value)
        if found is not tuple:
            raise expected("tuple", value)
        given = cast("tuple[object, ...]", value)
        if len(given) != len(items):
            raise Misfit(f"expected a tuple of {len(items)}, got {len(given)}")
        special = False
        for index, (item, shape) in enumerate(zip(given, items, strict=True)):
            if type(item) not in shape.exact:
                try:
                    special |= bool(shape.check(item))
                except Misfit as misfit:
                    raise misfit.within(f"[{index}]") from None
        return special

    return Shape(check, (tuple,))


def union(members: tuple[Shape, ...]) -> Shape:
    if any(member.types is None for member in members):
        return SCALARS[inspect.AnyType]
    by_type: dict[type, Shape] = {}
    for member in members:  # an int belongs to `int` before it belongs to `float`
        for kind in member.exact:
            by_type[kind] = member
    for member in members:
        for kind in member.types or ():
            by_type.setdefault(kind, member)
    names = " or ".join(kind.__name__ for kind in by_type)

    def check(value: object) -> bool | None:
        member = by_type.get(type(value))
        if member is not None:
            return member.check(value)
        for kind in by_type:
            if isinstance(value, kind) and not isinstance(value, (bool, enum.Enum)):
                raise Misfit(f"{type(value).__name__} would come back as {kind.__name__}")
        raise expected(names.replace("NoneType", "None"), value)

    return Shape(check, tuple(by_type), exact=frozenset[type]().union(*(member.exact for member in members)))
