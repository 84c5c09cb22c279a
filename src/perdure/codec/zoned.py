"""Datetimes, exactly: zone and fold, which the plain form of a datetime forgets [P-1].

A datetime without time zone, in UTC, or with an offset of whole minutes is written as RFC 3339 has it. One with a
`ZoneInfo` or a fold is written as RFC 9557 extends that: `2024-10-27T02:30:00+02:00[Europe/Berlin]`, and `[_fold=1]`
behind. When it is read, wall clock, zone and fold count, not the offset, which is there for people.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable
from typing import Any, Literal
from zoneinfo import ZoneInfo

import msgspec
from msgspec import inspect

_ZONE = re.compile(r"[A-Za-z0-9_+\-/]+")
_FORM = re.compile(
    r"(?P<local>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,6})?)(?P<offset>Z|[+-]\d\d:\d\d)?"
    rf"(?:\[(?P<zone>{_ZONE.pattern})\])?(?P<fold>\[_fold=1\])?"
)

kind_of: Callable[[object], type[object]] = type
"""`type(value)`, without telling type checkers that they know more about `value` now."""


class Misfit(Exception):
    """A value does not fit; the path grows from the inside out while it is raised through the checks."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.parts: list[str] = []

    def within(self, part: str) -> Misfit:
        """This, found inside the field, item or key `part`."""
        self.parts.append(part)
        return self

    @property
    def path(self) -> str:
        """The path from the root, `$`."""
        return "$" + "".join(reversed(self.parts))


def needs_zoned_form(value: object) -> bool:
    """Whether the plain form of a datetime would lose something.

    Raises:
        Misfit: not a datetime, or one whose time zone has no exact form.
    """
    if type(value) is not datetime.datetime:
        if isinstance(value, datetime.datetime):
            raise Misfit(f"a {type(value).__name__} would come back as datetime")
        raise Misfit(f"expected datetime, got {type(value).__name__}")
    zone = value.tzinfo
    if zone is None or zone is datetime.UTC:
        return bool(value.fold)
    if type(zone) is ZoneInfo:
        if _ZONE.fullmatch(zone.key or "") is None:
            raise Misfit("a ZoneInfo without the key of a zone cannot be found again")
        return True
    if type(zone) is not datetime.timezone:
        raise Misfit(f"a time zone of type {type(zone).__name__} would be lost; use zoneinfo.ZoneInfo")
    offset = zone.utcoffset(None)
    if offset % datetime.timedelta(minutes=1):
        raise Misfit("an offset with seconds has no exact form")
    if zone != datetime.timezone(offset) or zone.tzname(None) != datetime.timezone(offset).tzname(None):
        raise Misfit("the name of a fixed offset would be lost; use zoneinfo.ZoneInfo")
    return bool(value.fold)


def zoned_text(value: datetime.datetime) -> str:
    """The form of a datetime that `needs_zoned_form` accepted."""
    plain = msgspec.json.encode(value.replace(fold=0) if value.tzinfo is None else value)[1:-1].decode()
    zone = value.tzinfo
    name = f"[{zone.key}]" if isinstance(zone, ZoneInfo) else ""
    return plain + name + ("[_fold=1]" if value.fold else "")


def zoned_tree(value: object, *, order: Literal["sorted"] | None = None) -> object:
    """`value` as plain JSON values, with every datetime in its exact form."""
    return _with_texts(msgspec.to_builtins(value, builtin_types=(datetime.datetime,), str_keys=True, order=order))


def _with_texts(tree: Any) -> Any:
    if isinstance(tree, datetime.datetime):
        return zoned_text(tree)
    kind = kind_of(tree)
    if kind is dict:
        return {key: _with_texts(item) for key, item in tree.items()}
    if kind in (list, tuple, set, frozenset):
        return [_with_texts(item) for item in tree]
    return tree


def revive(info: inspect.Type, raw: object) -> object:
    """The plain JSON values `raw` with the texts of zoned datetimes replaced by datetimes, wherever `info` has one.

    Raises:
        Misfit: a time zone is not known on this machine.
    """
    return _revive(info, raw)


def _revive(info: inspect.Type, raw: Any) -> object:
    kind = kind_of(raw)
    match info:
        case inspect.Metadata():
            return _revive(info.type, raw)
        case inspect.DateTimeType():
            return _datetime(raw) if isinstance(raw, str) else raw
        case inspect.UnionType():
            return _revive_union(info, raw)
        case inspect.DictType() if kind is dict:
            return {key: _inside(f"[{key!r}]", info.value_type, item) for key, item in raw.items()}
        case inspect.ListType() | inspect.SetType() | inspect.FrozenSetType() | inspect.VarTupleType() if kind is list:
            return [_inside(f"[{index}]", info.item_type, item) for index, item in enumerate(raw)]
        case inspect.TupleType() if kind is list:
            return _revive_row(info.item_types, raw)
        case inspect.NamedTupleType() if kind is list:
            return _revive_row(tuple(field.type for field in info.fields), raw)
        case inspect.StructType(array_like=True) if kind is list:
            tags = 0 if info.tag is None else 1
            return raw[:tags] + _revive_row(tuple(field.type for field in info.fields), raw[tags:])
        case inspect.StructType() | inspect.DataclassType() | inspect.TypedDictType() if kind is dict:
            types = {field.encode_name: field.type for field in info.fields}
            return {key: _inside(f".{key}", types[key], item) if key in types else item for key, item in raw.items()}
        case _:
            return raw


def _inside(part: str, info: inspect.Type, raw: object) -> object:
    try:
        return _revive(info, raw)
    except Misfit as misfit:
        raise misfit.within(part) from None


def _revive_row(types: tuple[inspect.Type, ...], raw: list[object]) -> list[object]:
    known = [_inside(f"[{index}]", kind, item) for index, (kind, item) in enumerate(zip(types, raw, strict=False))]
    return known + raw[len(known) :]


def _revive_union(info: inspect.UnionType, raw: Any) -> Any:
    """A union has at most one member of each JSON kind, or Structs told apart by their tag."""
    kind = kind_of(raw)
    for member in info.types:
        if isinstance(member, inspect.StructType) and member.tag is not None:
            tag: object = None
            if kind is dict:
                tag = raw.get(member.tag_field)
            elif kind is list and raw:
                tag = raw[0]
            if tag != member.tag:
                continue
        revived = _revive(member, raw)
        if revived is not raw:
            return revived
    return raw


def _datetime(text: str) -> datetime.datetime | str:
    found = _FORM.fullmatch(text) if text.endswith("]") else None
    if found is None:
        try:
            return msgspec.convert(text, datetime.datetime)
        except msgspec.ValidationError:
            return text
    value = datetime.datetime.fromisoformat(found["local"])
    if found["zone"] is not None:
        try:
            value = value.replace(tzinfo=ZoneInfo(found["zone"]))
        except Exception:
            raise Misfit(f"this machine does not know the time zone {found['zone']!r}") from None
    elif found["offset"] is not None:
        value = datetime.datetime.fromisoformat(found["local"] + found["offset"])
    return value.replace(fold=1) if found["fold"] else value
