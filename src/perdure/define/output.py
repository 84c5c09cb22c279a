"""Output functions, and which type their value has [M-13]."""

from __future__ import annotations

import inspect
import typing
from typing import TYPE_CHECKING, Any, cast

from perdure.codec.json import AnyCodec, codec_of
from perdure.define.functions import AnyFunction, check_pure, name_of, return_type
from perdure.errors import DefinitionError

if TYPE_CHECKING:
    from perdure.define.invocation import Invocation
    from perdure.define.step import ErasedStep


def nothing(inv: Invocation[object, object]) -> None:
    """The output function of a pipeline without output; its success carries None [M-13]."""


def output_codec(where: str, function: AnyFunction, input_codec: AnyCodec) -> AnyCodec:
    """The codec of what an output function returns.

    Its return annotation says so. A function without one, such as a lambda, is called once with a probe, and is
    understood if it returns `inv[step]`, `inv.get(step)`, `inv.input` or None.

    Raises:
        DefinitionError: it is async, its type cannot be a payload, or it is not clear what it returns.
    """
    check_pure(where, function, named=False)
    found = return_type(where, function)
    if found is inspect.Signature.empty:
        return _probed(where, function, input_codec)
    try:
        return codec_of(found)
    except DefinitionError as error:
        raise DefinitionError(f"{where}: its {error}") from error


def _probed(where: str, function: AnyFunction, input_codec: AnyCodec) -> AnyCodec:
    probe = _Probe(input_codec)
    try:
        found = function(cast(Any, probe))
    except Exception:
        found = probe
    if found is None:
        return codec_of(None)
    if isinstance(found, _Token):
        return found.codec
    raise DefinitionError(
        f"{where}: {name_of(function)} has no return annotation, and is not simply `inv[step]`; the annotation says "
        f"how the output is stored, so write a function with one"
    )


class _Token:
    """Stands for a value of which only the codec is known; using it in any way raises."""

    __slots__ = ("codec",)

    def __init__(self, codec: AnyCodec) -> None:
        self.codec = codec


class _Probe:
    """An invocation that answers with tokens."""

    __slots__ = ("input",)

    def __init__(self, input_codec: AnyCodec) -> None:
        self.input = _Token(input_codec)

    def __getitem__(self, step: ErasedStep) -> _Token:
        return _Token(step.codec)

    def get(self, step: ErasedStep, default: object = None) -> object:
        if default is not None:
            return self
        return _Token(codec_of(typing.Union[step.codec.type, None]))  # noqa: UP007  # a type form may lack `|`
