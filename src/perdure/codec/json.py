"""Payloads as JSON text, by their declared types: exact, or refused with the path [P-1, P-2, P-3]."""

from __future__ import annotations

import datetime
import functools
import hashlib
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar, cast

import msgspec
from msgspec import inspect

from perdure.codec.absent import complete
from perdure.codec.checks import field_path
from perdure.codec.shape import Compiler, UnsupportedType
from perdure.codec.zoned import Misfit, kind_of, revive, zoned_tree
from perdure.errors import DefinitionError, PayloadError

if TYPE_CHECKING:
    from typing_extensions import TypeForm

T = TypeVar("T")
Encoded: TypeAlias = bytes | msgspec.Raw
"""A payload as it stands in a fact."""

_encode = msgspec.json.Encoder().encode
_encode_sorted = msgspec.json.Encoder(order="sorted").encode
_MISSING = re.compile(r"missing required field `(.*)`")
_KEY_PATH = re.compile(r"`key` in `(.*)`")


class Codec(Generic[T]):
    """Encodes and decodes values of one declared type. Get one from `codec_for`.

    Encoding checks the value against the type, because a value that does not fit would be stored and be unreadable for
    ever. What the check costs depends on the type; a class of exact scalars is compared in about 0.2 µs.
    """

    __slots__ = ("_check", "_decode", "_defaults", "_exact", "_info", "_verify", "datetimes", "floats", "type")

    def __init__(self, type: TypeForm[T]) -> None:
        self.type = type
        wire_type = _wire_type(type)
        compiler = Compiler()
        try:
            self._info = inspect.type_info(wire_type)
            shape = compiler.compile(self._info)
            self._decode = msgspec.json.Decoder(wire_type).decode
        except UnsupportedType as error:
            raise DefinitionError(f"{type_name(type)} cannot be a payload: {error}") from None
        except (TypeError, NameError, AttributeError, ValueError, RecursionError) as error:
            raise DefinitionError(f"{type_name(type)} cannot be a payload: {error}") from error
        self._exact = shape.exact
        self._check = shape.check
        self._verify = compiler.by_decoding
        self.datetimes = compiler.datetimes
        self.floats = compiler.floats
        self._defaults = compiler.defaults

    def encode(self, value: T) -> bytes:
        """`value` as JSON text, UTF-8.

        Raises:
            PayloadError: the value does not fit its declared type, or would not come back exactly; names the path.
        """
        try:
            special = type(value) not in self._exact and self._check(value)
            data = _encode(zoned_tree(value)) if special else _encode(value)
        except Misfit as misfit:
            raise PayloadError(misfit.path, misfit.problem) from None
        except Exception as error:
            raise _located(value, error) from error
        if self._verify:
            self._check_back(value, data)
        return data

    def decode(self, data: Encoded) -> T:
        """The value that was encoded: a fresh object each time, owned by the caller [M-7].

        Fields that the type does not know are ignored; missing ones take their default [P-3].

        Raises:
            PayloadError: the data is not such a value; names the path.
        """
        try:
            value = self._read(data)
            if self._defaults:
                complete(value)
            return cast(T, value)
        except Misfit as misfit:
            raise PayloadError(misfit.path, misfit.problem) from None
        except msgspec.MsgspecError as error:
            raise PayloadError(*_path_and_problem(str(error))) from None
        except (ValueError, TypeError, RecursionError, OverflowError) as error:
            raise PayloadError("$", f"{type(error).__name__}: {error}") from error

    def _read(self, data: Encoded) -> Any:
        if self.datetimes and b']"' in bytes(data):
            tree = revive(self._info, msgspec.json.decode(data))
            return msgspec.convert(tree, cast(Any, self.type), builtin_types=_DATETIME, str_keys=True)
        return self._decode(data)

    def digest(self, value: T) -> bytes:
        """SHA-256 of the canonical encoding; equality of payloads is equality of these [J-4, R-5].

        The order of the keys of a dict, of the elements of a set and of the fields of a class does not count.

        Raises:
            PayloadError: as `encode`.
        """
        data = self.encode(value)
        return hashlib.sha256(self._canonical(self.decode(data) if self.floats else value)).digest()

    def digest_of(self, data: Encoded) -> bytes:
        """The digest of an encoded value, read as the type is today: new fields have their defaults.

        Raises:
            PayloadError: as `decode`.
        """
        return hashlib.sha256(self._canonical(self.decode(data))).digest()

    def _canonical(self, value: T) -> bytes:
        try:
            return _encode_sorted(zoned_tree(value, order="sorted") if self.datetimes else value)
        except TypeError as error:  # sorting {1, "a"}, or datetimes with and without time zone
            raise PayloadError("$", f"the elements of a set have no common order: {error}") from None

    def _check_back(self, value: T, data: bytes) -> None:
        """What the class itself says about its values is only known by making one."""
        try:
            back = self.decode(data)
        except PayloadError as error:
            raise PayloadError(error.path, f"could not be read back: {error.problem}") from None
        if self._canonical(back) != self._canonical(value):
            raise PayloadError("$", "does not come back as the same value: its class changes it on the way in")


AnyCodec: TypeAlias = Codec[Any]
"""A codec whose type was found at run time."""

_DATETIME = (datetime.datetime,)


def codec_for(type: TypeForm[T]) -> Codec[T]:
    """The codec of a type, built once.

    Raises:
        DefinitionError: values of this type cannot be payloads; names the part that cannot.
    """
    return codec_of(type)


def codec_of(type: object) -> AnyCodec:
    """As `codec_for`, of a type that was found at run time, in an annotation."""
    found: Any = type
    try:
        return _cached(found, _fingerprint(found))
    except TypeError:  # a type form that cannot be hashed
        return Codec(found)


@functools.lru_cache(maxsize=4096)
def _cached(type: Any, fingerprint: str) -> Codec[Any]:
    return Codec(type)


def _fingerprint(type: object) -> str:
    """`list[int]` equals `List[int]`, which is fine, but `Literal[1]` equals `Literal[True]` to a careless cache."""
    return "" if isinstance(type, _PLAIN_CLASS) else repr(type)


_PLAIN_CLASS = type


def _wire_type(type: object) -> Any:
    return Any if type is object else type


def type_name(type: object) -> str:
    """A type as an author would write it."""
    if isinstance(type, _PLAIN_CLASS) and not hasattr(type, "__origin__"):
        return f"type {type.__qualname__!r}"
    return f"type {str(type)!r}"


def _path_and_problem(message: str) -> tuple[str, str]:
    """Takes msgspec's message apart: `Expected int, got str - at $.x`."""
    problem, _, path = message.rpartition(" - at ")
    if not problem:
        problem, path = message, "`$`"
    in_key = _KEY_PATH.fullmatch(path)
    if in_key is not None:
        return in_key[1], f"a key: {problem}"
    path = path.strip("`")
    missing = _MISSING.search(problem)
    return (path + field_path(missing[1]) if missing else path), problem


def _located(value: object, error: Exception) -> PayloadError:
    """Where in `value` msgspec stumbled: the innermost part that cannot be encoded by itself."""
    if isinstance(error, RecursionError):
        return PayloadError("$", "nested too deeply, or containing itself")
    path = "$"
    while True:
        for part, child in _children(value):
            try:
                _encode(child)
            except Exception as inner:
                path, value, error = path + part, child, inner
                break
        else:
            break
    if isinstance(error, UnicodeEncodeError):
        return PayloadError(path, "holds a lone surrogate, which is no Unicode text")
    return PayloadError(path, str(error))


def _children(value: Any) -> Iterable[tuple[str, object]]:
    kind = kind_of(value)
    if kind is dict:
        for key, item in value.items():
            yield field_path(key), item
            yield field_path(key), key
    elif kind in (list, tuple, set, frozenset):
        for index, item in enumerate(value):
            yield f"[{index}]", item
    elif hasattr(kind, "__dataclass_fields__") or hasattr(kind, "__struct_fields__"):
        for name in getattr(kind, "__struct_fields__", None) or value.__dataclass_fields__:
            yield field_path(name), getattr(value, name)
