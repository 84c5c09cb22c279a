"""What a declared type asks of a value, compiled once per type: the part of exactness that msgspec leaves open [P-1].

msgspec writes what it is given: it does not compare a value with its declared type, writes NaN as null, and forgets
that a value was a subclass or, where nothing is declared, a tuple. A `Shape` refuses these, naming the path [P-2]. It
is built to cost little: a class of fields that their type decides is checked by looking up one tuple of types.
"""

from __future__ import annotations

import datetime
import enum
import math
import operator
import uuid
from collections.abc import Callable
from decimal import Decimal
from typing import Any, TypeAlias, get_origin

import msgspec
from msgspec import inspect

from perdure.codec.zoned import Misfit, kind_of, needs_zoned_form

Check: TypeAlias = Callable[[Any], bool | None]
"""Raises `Misfit`; true if a datetime inside needs the form of `zoned.py`."""

NONE: frozenset[type] = frozenset()
_NOT_SET = object()
_ACCEPTED_AT_MOST = 64
_KEY_TYPES = (
    inspect.StrType,
    inspect.IntType,
    inspect.FloatType,
    inspect.BytesType,
    inspect.DateTimeType,
    inspect.DateType,
    inspect.TimeType,
    inspect.TimeDeltaType,
    inspect.UUIDType,
    inspect.DecimalType,
    inspect.EnumType,
    inspect.LiteralType,
    inspect.AnyType,
)
_CONSTRAINTS = ("gt", "ge", "lt", "le", "multiple_of", "pattern", "min_length", "max_length", "tz")


class UnsupportedType(TypeError):
    """The type cannot be a payload; the message says which part of it."""


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


def check_plain(value: Any) -> None:
    """Where nothing is declared only what JSON itself can tell apart is exact."""
    kind = kind_of(value)
    if kind is str or kind is int or kind is bool or value is None:
        return
    if kind is float:
        check_float(value)
    elif kind is list:
        for index, item in enumerate(value):
            try:
                check_plain(item)
            except Misfit as misfit:
                raise misfit.within(f"[{index}]") from None
    elif kind is dict:
        for key, item in value.items():
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


_SCALARS: dict[type, Shape] = {
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


class Compiler:
    """Compiles one type, and notes what else its codec has to care for.

    Attributes:
        datetimes: a datetime may stand inside.
        floats: a float may stand inside, so that an int given for it comes back as a float.
        by_decoding: reading may refuse or change what writing accepts (constraints, `__post_init__`).
    """

    def __init__(self) -> None:
        self.datetimes = False
        self.floats = False
        self.by_decoding = False
        self._known: dict[int, Shape] = {}

    def compile(self, info: inspect.Type) -> Shape:
        """The shape of a type; recursive types refer to themselves.

        Raises:
            UnsupportedType: some part of it cannot be a payload.
        """
        known = self._known.get(id(info))
        if known is not None:
            return known
        if isinstance(info, inspect.Metadata):
            return self.compile(info.type)
        self.by_decoding |= any(getattr(info, name, None) is not None for name in _CONSTRAINTS)
        self.datetimes |= isinstance(info, inspect.DateTimeType)
        self.floats |= isinstance(info, inspect.FloatType)
        scalar = _SCALARS.get(type(info))
        return scalar if scalar is not None else self._compile_other(info)

    def _compile_other(self, info: inspect.Type) -> Shape:
        match info:
            case inspect.CustomType(cls=cls) if cls is object:
                return _SCALARS[inspect.AnyType]
            case inspect.EnumType():
                return exact(info.cls)
            case inspect.LiteralType():
                return _literal(info.values)
            case inspect.ListType():
                return self._collection(list, info.item_type)
            case inspect.SetType():
                return self._collection(set, info.item_type)
            case inspect.FrozenSetType():
                return self._collection(frozenset, info.item_type)
            case inspect.VarTupleType():
                return self._collection(tuple, info.item_type)
            case inspect.TupleType():
                return _fixed_tuple(tuple(self.compile(item) for item in info.item_types))
            case inspect.DictType():
                return self._dict(info)
            case inspect.UnionType():
                return _union(tuple(self.compile(member) for member in info.types))
            case inspect.TypedDictType():
                return self._typed_dict(info)
            case inspect.NamedTupleType() | inspect.DataclassType() | inspect.StructType():
                return self._object(info)
            case inspect.CustomType():
                raise UnsupportedType(f"type {info.cls.__qualname__!r} is not supported")
            case _:
                raise UnsupportedType(f"{type(info).__name__} is not supported")

    def _collection(self, kind: type, item_type: inspect.Type) -> Shape:
        item_shape = self.compile(item_type)
        item_exact = item_shape.exact
        ordered = kind in (list, tuple)

        def check(value: Any) -> bool:
            found = kind_of(value)
            if found is not kind:
                raise expected(kind.__name__, value)
            if item_exact and item_exact.issuperset(map(type, value)):
                return False
            special = False
            for index, item in enumerate(value):
                try:
                    if item_shape.check(item):
                        if not ordered:
                            raise Misfit("a datetime with ZoneInfo or fold cannot stand in a set")
                        special = True
                except Misfit as misfit:
                    raise misfit.within(f"[{index}]") from None
            return special

        return Shape(check, (kind,))

    def _dict(self, info: inspect.DictType) -> Shape:
        key_type = info.key_type
        if not isinstance(key_type, _KEY_TYPES):
            raise UnsupportedType(f"a dict cannot have keys of this type: {_name(key_type)}")
        if isinstance(key_type, inspect.LiteralType) and len({type(value) for value in key_type.values}) > 1:
            raise UnsupportedType("a dict cannot have keys of mixed literals")
        key = exact(str) if isinstance(key_type, inspect.AnyType) else self.compile(key_type)
        item = self.compile(info.value_type)

        def check(value: Any) -> bool:
            found = kind_of(value)
            if found is not dict:
                raise expected("dict", value)
            special = False
            for name, each in value.items():
                try:
                    if type(name) not in key.exact and key.check(name):
                        raise Misfit("a datetime with ZoneInfo or fold cannot be a key")
                except Misfit as misfit:
                    raise Misfit(f"key {name!r}: {misfit.problem}") from None
                if type(each) not in item.exact:
                    try:
                        special |= bool(item.check(each))
                    except Misfit as misfit:
                        raise misfit.within(field_path(name)) from None
            return special

        return Shape(check, (dict,))

    def _typed_dict(self, info: inspect.TypedDictType) -> Shape:
        shape = self._known[id(info)] = Shape(check_plain, (dict,))
        fields = {field.name: self._field(info.cls, field) for field in info.fields}
        required = frozenset(field.name for field in info.fields if field.required)

        def check(value: Any) -> bool:
            found = kind_of(value)
            if found is not dict:
                raise expected("dict", value)
            if not required <= value.keys():
                raise Misfit(f"the key {min(required - value.keys())!r} is missing")
            special = False
            for name, item in value.items():
                field = fields.get(name)
                if field is None:
                    raise Misfit(f"{name!r} is no key of {info.cls.__name__}; it would be lost")
                if type(item) not in field.exact:
                    try:
                        special |= bool(field.check(item))
                    except Misfit as misfit:
                        raise misfit.within(field_path(name)) from None
            return special

        shape.check = check
        return shape

    def _object(self, info: inspect.NamedTupleType | inspect.DataclassType | inspect.StructType) -> Shape:
        cls: type[Any] = get_origin(info.cls) or info.cls
        shape = self._known[id(info)] = Shape(check_plain, (cls,))
        self.by_decoding |= hasattr(cls, "__post_init__") or hasattr(cls, "__attrs_attrs__")
        names = tuple(field.name for field in info.fields)
        shapes = tuple(self._field(cls, field) for field in info.fields)
        may_be_unset = tuple(
            not f.required and f.default is msgspec.NODEFAULT and f.default_factory is msgspec.NODEFAULT
            for f in info.fields
        )
        accepted: set[tuple[type, ...]] = set()  # types of fields, seen to need no further look
        if not names:
            read: Callable[[Any], Any] = lambda value: ()  # noqa: E731
        elif len(names) == 1:
            read_one = operator.attrgetter(names[0])
            read = lambda value: (read_one(value),)  # noqa: E731
        else:
            read = operator.attrgetter(*names)
        fields = tuple(zip(names, shapes, may_be_unset, strict=True))

        def check(value: Any) -> bool:
            found = kind_of(value)
            if found is not cls:
                if isinstance(value, cls):
                    raise Misfit(f"{type(value).__name__} would come back as {cls.__name__}; declare a tagged union")
                raise expected(cls.__name__, value)
            try:
                items = read(value)
            except AttributeError:
                items = tuple(getattr(value, name, _NOT_SET) for name in names)
            types = (*map(type, items),)
            if types in accepted:
                return False
            special, decided = False, True
            for (name, field, unset), item in zip(fields, items, strict=True):
                if type(item) in field.exact or (unset and item is msgspec.UNSET):
                    continue
                if item is _NOT_SET:
                    raise Misfit("the field is not set").within(field_path(name))
                decided = False
                try:
                    special |= bool(field.check(item))
                except Misfit as misfit:
                    raise misfit.within(field_path(name)) from None
            if decided and len(accepted) < _ACCEPTED_AT_MOST:
                accepted.add(types)
            return special

        shape.check = check
        return shape

    def _field(self, cls: type, field: inspect.Field) -> Shape:
        try:
            return self.compile(field.type)
        except UnsupportedType as error:
            raise UnsupportedType(f"field {field.name!r} of {cls.__name__}: {error}") from None


def _literal(values: tuple[object, ...]) -> Shape:
    known = {(type(value), value) for value in values}

    def check(value: object) -> None:
        if type(value) not in (str, int, type(None)) or (type(value), value) not in known:
            raise Misfit(f"expected one of {', '.join(map(repr, values))}")

    return Shape(check, tuple({type(value) for value in values}))


def _fixed_tuple(items: tuple[Shape, ...]) -> Shape:
    def check(value: Any) -> bool:
        found = kind_of(value)
        if found is not tuple:
            raise expected("tuple", value)
        if len(value) != len(items):
            raise Misfit(f"expected a tuple of {len(items)}, got {len(value)}")
        special = False
        for index, (item, shape) in enumerate(zip(value, items, strict=True)):
            if type(item) not in shape.exact:
                try:
                    special |= bool(shape.check(item))
                except Misfit as misfit:
                    raise misfit.within(f"[{index}]") from None
        return special

    return Shape(check, (tuple,))


def _union(members: tuple[Shape, ...]) -> Shape:
    if any(member.types is None for member in members):
        return _SCALARS[inspect.AnyType]
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


def _name(info: inspect.Type) -> str:
    return type(info).__name__.removesuffix("Type").lower()
