"""Arrays for `unnest`, packed by hand: psycopg's own dumper of lists costs more than all the rest of an append."""

from __future__ import annotations

import struct
from collections.abc import Iterable

from psycopg.adapt import AdaptersMap, Dumper
from psycopg.pq import Format
from psycopg.types.numeric import Int8BinaryDumper

_HEAD = struct.Struct("!iiiii")
_LENGTH = struct.Struct("!i")
_INT8 = struct.Struct("!iq")
_NULL = _LENGTH.pack(-1)


class Packed:
    """An array in the form in which it travels. NULL is None.

    Attributes:
        data: the array.
        element: number of the type of its elements, for the server.
        array: number of its own type.
        name: of the type of its elements, in SQL.
    """

    __slots__ = ("data",)
    element = 0
    array = 0
    name = ""

    def __init__(self, parts: list[bytes], has_null: bool) -> None:
        head = (
            _HEAD.pack(1, has_null, self.element, len(parts), 1) if parts else struct.pack("!iii", 0, 0, self.element)
        )
        self.data = head + b"".join(parts)


class Int8s(Packed):
    """`bigint[]`."""

    __slots__ = ()
    element = 20
    array = 1016
    name = "bigint"

    def __init__(self, values: Iterable[int | None]) -> None:
        parts = [_NULL if value is None else _INT8.pack(8, value) for value in values]
        super().__init__(parts, _NULL in parts)


class Byteas(Packed):
    """`bytea[]`."""

    __slots__ = ()
    element = 17
    array = 1001
    name = "bytea"

    def __init__(self, values: Iterable[bytes | None]) -> None:
        parts = [_NULL if value is None else _LENGTH.pack(len(value)) + value for value in values]
        super().__init__(parts, _NULL in parts)


class Texts(Packed):
    """`text[]`; text comes as it is or in UTF-8."""

    __slots__ = ()
    element = 25
    array = 1009
    name = "text"

    def __init__(self, values: Iterable[str | bytes | None]) -> None:
        encoded = [value.encode() if isinstance(value, str) else value for value in values]
        parts = [_NULL if value is None else _LENGTH.pack(len(value)) + value for value in encoded]
        super().__init__(parts, _NULL in parts)


class Bools(Packed):
    """`boolean[]`."""

    __slots__ = ()
    element = 16
    array = 1000
    name = "boolean"

    def __init__(self, values: Iterable[bool | None]) -> None:
        parts = [_NULL if value is None else b"\0\0\0\1" + (b"\1" if value else b"\0") for value in values]
        super().__init__(parts, _NULL in parts)


KINDS: tuple[type[Packed], ...] = (Int8s, Byteas, Texts, Bools)
"""All of them."""


class _PackedDumper(Dumper):
    format = Format.BINARY

    def dump(self, obj: Packed) -> bytes:
        return obj.data


class _Int8sDumper(_PackedDumper):
    oid = Int8s.array


class _ByteasDumper(_PackedDumper):
    oid = Byteas.array


class _TextsDumper(_PackedDumper):
    oid = Texts.array


class _BoolsDumper(_PackedDumper):
    oid = Bools.array


def register(adapters: AdaptersMap) -> None:
    """Teach a connection packed arrays; and one type for every int, so that a statement is prepared once."""
    adapters.register_dumper(Int8s, _Int8sDumper)
    adapters.register_dumper(Byteas, _ByteasDumper)
    adapters.register_dumper(Texts, _TextsDumper)
    adapters.register_dumper(Bools, _BoolsDumper)
    adapters.register_dumper(int, Int8BinaryDumper)


__all__ = ["KINDS", "Bools", "Byteas", "Int8s", "Packed", "Texts", "register"]
