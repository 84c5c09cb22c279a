"""A digest of what can be stored in a type, for the lock file [D-6, P-3]."""

from __future__ import annotations

import hashlib
from typing import Any, TypeAlias, cast

import msgspec

from perdure.codec.json import AnyCodec, type_name

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"

_IGNORED = frozenset({"title", "description", "examples", "default"})
"""Comments, and what an absent field becomes; that it may be absent is said by `required`."""
_DEFS = "#/$defs/"


def shape_digest(codec: AnyCodec) -> str:
    """Twelve hex digits over the JSON schema of a codec's type.

    Comments and the names of classes do not count; fields, their order, what is required, tags and constraints do.
    """
    wire_type: Any = Any if codec.type is object else codec.type
    schema = cast("dict[str, Json]", msgspec.json.schema(wire_type, schema_hook=_anything))
    text = msgspec.json.encode(_canonical(schema, _ordinals(schema)), order="sorted")
    return hashlib.sha256(text).hexdigest()[:12]


def shape_name(codec: AnyCodec) -> str:
    """The type as its author wrote it, without quotes and without where it was defined."""
    name = type_name(codec.type).removeprefix("type ").strip("'\"")
    return name.rpartition("<locals>.")[2]


def _anything(_type: type) -> dict[str, object]:
    """`object`, inside of another type; all else that msgspec cannot describe is no payload."""
    return {"type": "any"}


def _ordinals(schema: dict[str, Json]) -> dict[str, str]:
    """References to the classes in the schema, numbered in the order in which a reader meets them."""
    defs = schema.get("$defs")
    found: dict[str, str] = {}

    def meet(part: Json) -> None:
        if isinstance(part, dict):
            ref = part.get("$ref")
            if isinstance(ref, str) and ref not in found:
                found[ref] = f"#{len(found)}"
                meet(defs.get(ref.removeprefix(_DEFS)) if isinstance(defs, dict) else None)
            for key, value in part.items():
                if key != "$defs":
                    meet(value)
        elif isinstance(part, list):
            for item in part:
                meet(item)

    meet(schema)
    return found


def _canonical(part: Json, names: dict[str, str]) -> Json:
    if isinstance(part, list):
        return [_canonical(item, names) for item in part]
    if isinstance(part, str):
        return names.get(part, part)
    if not isinstance(part, dict):
        return part
    found: dict[str, Json] = {}
    for key, value in part.items():
        if key == "$defs" and isinstance(value, dict):
            found[key] = {names.get(_DEFS + name, name): _canonical(each, names) for name, each in value.items()}
        elif key == "properties" and isinstance(value, dict):  # names of fields, whatever they are
            found[key] = [[name, _canonical(each, names)] for name, each in value.items()]
        elif key not in _IGNORED:
            found[key] = _canonical(value, names)
    return found
