"""What a declared type asks of a value, compiled once per type: the part of exactness that msgspec leaves open [P-1].

msgspec writes what it is given: it does not compare a value with its declared type, writes NaN as null, and forgets
that a value was a subclass or, where nothing is declared, a tuple. A `Shape` refuses these, naming the path [P-2]. It
is built to cost little: a class of fields that their type decides is checked by looking up one tuple of types.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_origin

import msgspec
from msgspec import inspect

from perdure.codec.absent import leaves_defaults
from perdure.codec.checks import SCALARS, Shape, check_plain, exact, expected, field_path, fixed_tuple, literal, union
from perdure.codec.zoned import Misfit, kind_of

_PLANS_AT_MOST = 64
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


class Compiler:
    """Compiles one type, and notes what else its codec has to care for.

    Attributes:
        datetimes: a datetime may stand inside.
        floats: a float may stand inside, so that an int given for it comes back as a float.
        defaults: reading may leave a default on a class instead of its object, see `absent`.
        by_decoding: reading may refuse or change what writing accepts (constraints, `__post_init__`).
    """

    def __init__(self) -> None:
        self.datetimes = False
        self.floats = False
        self.by_decoding = False
        self.defaults = False
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
        scalar = SCALARS.get(type(info))
        return scalar if scalar is not None else self._compile_other(info)

    def _compile_other(self, info: inspect.Type) -> Shape:
        match info:
            case inspect.CustomType(cls=cls) if cls is object:
                return SCALARS[inspect.AnyType]
            case inspect.EnumType():
                return exact(info.cls)
            case inspect.LiteralType():
                return literal(info.values)
            case inspect.ListType():
                return self._collection(list, info.item_type)
            case inspect.SetType():
                return self._collection(set, info.item_type)
            case inspect.FrozenSetType():
                return self._collection(frozenset, info.item_type)
            case inspect.VarTupleType():
                return self._collection(tuple, info.item_type)
            case inspect.TupleType():
                return fixed_tuple(tuple(self.compile(item) for item in info.item_types))
            case inspect.DictType():
                return self._dict(info)
            case inspect.UnionType():
                return self._union(info)
            case inspect.TypedDictType():
                return self._typed_dict(info)
            case inspect.NamedTupleType() | inspect.DataclassType() | inspect.StructType():
                return self._object(info)
            case inspect.CustomType():
                raise UnsupportedType(f"type {info.cls.__qualname__!r} is not supported")
            case _:
                raise UnsupportedType(f"{type(info).__name__} is not supported")

    def _union(self, info: inspect.UnionType) -> Shape:
        """Literals are one member, however many `Literal` they were written as."""
        others = [member for member in info.types if not isinstance(member, inspect.LiteralType)]
        values = [value for member in info.types if isinstance(member, inspect.LiteralType) for value in member.values]
        members = [self.compile(member) for member in others]
        return union((*members, literal(tuple(values))) if values else tuple(members))

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
        self.defaults |= isinstance(info, inspect.DataclassType) and leaves_defaults(info)
        self.by_decoding |= hasattr(cls, "__post_init__") or hasattr(cls, "__attrs_attrs__")
        fields = tuple(
            _Field(field.name, self._field(cls, field), _may_be_unset(field), index)
            for index, field in enumerate(info.fields)
        )
        read = _reader(tuple(field.name for field in info.fields))
        plans: dict[tuple[type, ...], tuple[_Field, ...]] = {}  # by types of the fields: which need a closer look

        def check(value: Any) -> bool:
            found = kind_of(value)
            if found is not cls:
                if isinstance(value, cls):
                    raise Misfit(f"{type(value).__name__} would come back as {cls.__name__}; declare a tagged union")
                raise expected(cls.__name__, value)
            items = read(value)
            types = (*map(type, items),)
            plan = plans.get(types)
            if plan is None:
                plan = tuple(field for field, kind in zip(fields, types, strict=True) if not field.decides(kind))
                if len(plans) < _PLANS_AT_MOST:
                    plans[types] = plan
            special = False
            for field in plan:
                try:
                    special |= bool(field.shape.check(items[field.index]))
                except Misfit as misfit:
                    raise misfit.within(field_path(field.name)) from None
            return special

        shape.check = check
        return shape

    def _field(self, cls: type, field: inspect.Field) -> Shape:
        try:
            return self.compile(field.type)
        except UnsupportedType as error:
            raise UnsupportedType(f"field {field.name!r} of {cls.__name__}: {error}") from None


class _NotSet:
    """Stands for an attribute that is not there."""


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    shape: Shape
    may_be_unset: bool
    index: int

    def decides(self, kind: type) -> bool:
        """Whether every value of this type is fine.

        Raises:
            Misfit: no value is.
        """
        if kind is _NotSet:
            raise Misfit("the field is not set").within(field_path(self.name))
        return kind in self.shape.exact or (self.may_be_unset and kind is msgspec.UnsetType)


def _may_be_unset(field: inspect.Field) -> bool:
    return not field.required and field.default is msgspec.NODEFAULT and field.default_factory is msgspec.NODEFAULT


def _reader(names: tuple[str, ...]) -> Callable[[Any], tuple[object, ...]]:
    """Reads all fields of an object at once."""
    read: Callable[[Any], Any] = operator.attrgetter(*names) if names else lambda value: ()
    alone = len(names) == 1  # then an attrgetter gives no tuple

    def read_all(value: Any) -> tuple[object, ...]:
        try:
            return (read(value),) if alone else read(value)
        except AttributeError:
            return tuple(getattr(value, name, _NotSet()) for name in names)

    return read_all


def _name(info: inspect.Type) -> str:
    return type(info).__name__.removesuffix("Type").lower()
