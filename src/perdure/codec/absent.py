"""Fields that an encoded dataclass lacks: msgspec leaves their plain defaults on the class, here the object gets them.

Without that, what was decoded and what was constructed would be equal and yet encode differently, and an input would
change with its class [P-3, M-2].
"""

from __future__ import annotations

from typing import Any

from msgspec import NODEFAULT, inspect

_SCALARS = frozenset({str, int, float, bool, bytes, type(None)})


def leaves_defaults(info: inspect.DataclassType) -> bool:
    """Whether reading such a dataclass may leave a default on the class."""
    return any(field.default is not NODEFAULT for field in info.fields)


def complete(decoded: object) -> None:
    """Give every dataclass object inside what was just decoded the fields that it lacks."""
    value: Any = decoded
    kind: Any = value.__class__
    if kind in _SCALARS:
        return
    if kind in (list, tuple, set, frozenset):
        for item in value:
            complete(item)
    elif kind is dict:
        for key, item in value.items():
            complete(key)
            complete(item)
    else:
        _complete_object(kind, value)


def _complete_object(kind: Any, value: Any) -> None:
    fields = getattr(kind, "__dataclass_fields__", None)
    if fields is not None:
        there = getattr(value, "__dict__", None)
        for name in fields:
            if there is not None and name not in there and hasattr(kind, name):
                object.__setattr__(value, name, getattr(kind, name))
            complete(getattr(value, name, None))
    elif hasattr(kind, "__struct_fields__"):
        for name in kind.__struct_fields__:
            complete(getattr(value, name, None))
    elif issubclass(kind, tuple):  # a NamedTuple
        for item in value:
            complete(item)
