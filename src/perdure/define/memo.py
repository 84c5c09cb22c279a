"""How the values of memos are stored: as the function that makes them says [M-15]."""

from __future__ import annotations

import functools
import inspect

from perdure.codec.json import AnyCodec, codec_of
from perdure.define.functions import AnyFunction, name_of, return_type
from perdure.errors import DefinitionError

_codecs_by_code: dict[object, AnyCodec] = {}


def codec_of_function(function: AnyFunction) -> AnyCodec:
    """The codec of a memo function; nested functions are made anew each time, so their code is what is looked up.

    Raises:
        DefinitionError: it has no return annotation, or its type cannot be a payload.
    """
    inner = function.func if isinstance(function, functools.partial) else function
    code = getattr(inner, "__code__", inner)
    codec = _codecs_by_code.get(code)
    if codec is None:
        found = return_type("memo", inner)
        if found is inspect.Signature.empty:
            raise DefinitionError(f"{name_of(inner)} has no return annotation; pass `type=`, or annotate it")
        codec = _codecs_by_code[code] = codec_of(found)
    return codec
