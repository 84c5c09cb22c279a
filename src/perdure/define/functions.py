"""What is asked of the functions an author hands over, and what their annotations say."""

from __future__ import annotations

import collections.abc
import functools
import inspect
import typing
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from perdure.errors import DefinitionError

AnyFunction = Callable[..., object]

_AWAITABLES = (
    collections.abc.Awaitable,
    collections.abc.Coroutine,
    collections.abc.AsyncIterator,
    collections.abc.AsyncGenerator,
    collections.abc.AsyncIterable,
    collections.abc.Generator,
    collections.abc.Iterator,
)


def check_handler(where: str, function: object, parameters: int) -> bool:
    """Checks a handler, `def` or `async def`.

    Args:
        where: for messages, such as "step 'a/v1': unwind".
        parameters: how many positional arguments it will be given.

    Returns:
        Whether it is async.

    Raises:
        DefinitionError: it cannot be such a handler.
    """
    inner = _innermost(where, function)
    if inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner):
        raise DefinitionError(f"{where}: {name_of(function)} is a generator; a handler returns its state")
    is_async = inspect.iscoroutinefunction(inner)
    if not is_async and any(inspect.iscoroutinefunction(each) for each in _wrapped(inner)):
        raise DefinitionError(
            f"{where}: {name_of(function)} is a plain function wrapped around an async one; make the wrapper async"
        )
    _check_arity(where, function, ("inv", "inv, state")[parameters - 1])
    return is_async


def check_pure(where: str, function: object, *, named: bool, takes: str = "inv") -> None:
    """Checks a pure function of one invocation: a condition, a substitute, an output function.

    Args:
        takes: what it is given, if not an invocation.

    Raises:
        DefinitionError: it is async, a generator, or a lambda where a name is wanted (`named`).
    """
    inner = _innermost(where, function)
    if inspect.iscoroutinefunction(inner) or inspect.isasyncgenfunction(inner):
        raise DefinitionError(f"{where}: {name_of(function)} is async; it must be a plain, pure function")
    if inspect.isgeneratorfunction(inner):
        raise DefinitionError(f"{where}: {name_of(function)} is a generator; it must return its value")
    if named and getattr(inner, "__name__", "") == "<lambda>":
        raise DefinitionError(f"{where}: give the lambda a name (`def`); it is shown to people, and types are checked")
    _check_arity(where, function, takes)


def return_type(where: str, function: AnyFunction) -> object:
    """The resolved return annotation; `inspect.Signature.empty` where there is none.

    Names are looked up in the function's module and in the variables it closes over.

    Raises:
        DefinitionError: the annotation cannot be resolved, or promises something to be awaited or iterated.
    """
    inner = _innermost(where, function)
    try:
        annotation = getattr(inner, "__annotations__", {}).get("return", inspect.Signature.empty)
        if annotation is inspect.Signature.empty:
            return annotation
        hints = typing.get_type_hints(
            SimpleNamespace(__annotations__={"return": annotation}),
            globalns=getattr(inspect.unwrap(inner), "__globals__", {}),
            localns=_closure(inspect.unwrap(inner)),
            include_extras=True,
        )
    except Exception as error:
        raise DefinitionError(
            f"{where}: the return annotation of {name_of(function)} cannot be resolved ({error}); define the type at "
            f"module level, where the engine can find it"
        ) from error
    found: object = hints["return"]
    origin = typing.get_origin(found) or found
    if isinstance(origin, type) and issubclass(origin, _AWAITABLES):
        raise DefinitionError(
            f"{where}: {name_of(function)} is annotated to return {origin.__name__}; annotate the state itself, and "
            f"write `async def` if it is to be awaited"
        )
    return found


def parameter_type(where: str, function: AnyFunction) -> object:
    """The resolved annotation of the first parameter; `inspect.Parameter.empty` where there is none.

    Raises:
        DefinitionError: the annotation cannot be resolved.
    """
    inner = inspect.unwrap(_innermost(where, function))
    bound = inspect.ismethod(function) or not inspect.isroutine(function)
    names = [name for name in inspect.signature(inner).parameters if not (bound and name == "self")]
    annotation = getattr(inner, "__annotations__", {}).get(names[0]) if names else None
    if annotation is None:
        return inspect.Parameter.empty
    try:
        return typing.get_type_hints(
            SimpleNamespace(__annotations__={"it": annotation}),
            globalns=getattr(inner, "__globals__", {}),
            localns=_closure(inner),
        )["it"]
    except Exception as error:
        raise DefinitionError(
            f"{where}: the annotation of {names[0]!r} of {name_of(function)} cannot be resolved ({error}); define the "
            f"type at module level, where the engine can find it"
        ) from error


def name_of(function: object) -> str:
    """A function as an author knows it."""
    name = getattr(function, "__qualname__", None) or getattr(function, "__name__", None)
    inner: object = getattr(function, "func", None)
    if name is None and inner is not None:
        name = f"partial of {name_of(inner)}"
    return str(name if name is not None else type(function).__qualname__).replace("<locals>.", "")


def _innermost(where: str, function: Any) -> Any:
    """The function that decides how a call behaves: that of a partial, of a method, of an object with `__call__`."""
    while isinstance(function, functools.partial):
        function = function.func
    if isinstance(function, type) or not callable(function):
        raise DefinitionError(f"{where}: expected a function, got {function!r}"[:300])
    if not hasattr(function, "__code__") and not hasattr(function, "__func__"):
        call = getattr(type(function), "__call__", None)  # noqa: B004  # its function is wanted
        return call if hasattr(call, "__code__") else function
    return getattr(function, "__func__", function)


def _wrapped(function: Any) -> list[object]:
    found: list[object] = []
    while (function := getattr(function, "__wrapped__", None)) is not None and len(found) < 50:
        found.append(function)
    return found


def _closure(function: Any) -> dict[str, object]:
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    found: dict[str, object] = {}
    for name, cell in zip(names, getattr(function, "__closure__", None) or (), strict=False):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    return found


def _check_arity(where: str, function: Any, takes: str) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*takes.split(", "))
    except TypeError:
        raise DefinitionError(f"{where}: {name_of(function)}{signature} must take ({takes})"[:500]) from None
