"""From whatever a handler raised to a `Failure` that can always be stored and read [M-10].

Nothing here trusts the exception: its `__str__` may raise, its text may be megabytes, hold NUL or lone surrogates, its
notes may be anything, its causes may form a circle.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast, get_args

from perdure.core.facts import Failure, FailureKind, Phase
from perdure.define.signals import Fail, FailureDetail

MESSAGE_LIMIT_BYTES = 4_096
CUT_MARK = "… [cut]"

_LABEL_LIMIT_BYTES = 128
_CHAIN_LIMIT = 32
_GROUP_LIMIT = 8
_KINDS: frozenset[str] = frozenset(get_args(FailureKind))


def failure_of(
    error: BaseException,
    *,
    step: str,
    phase: Phase,
    attempt: int,
    at_us: int,
    reason: str | None = None,
    limit_bytes: int = MESSAGE_LIMIT_BYTES,
) -> Failure:
    """The failure that `error` is; never raises.

    Kind and reason are those given to `Fail`, else those of the nearest `FailureDetail` in the cause chain, each on
    its own, else `system` and `error` (of a `Fail`: `failed`).

    Args:
        error: what the handler raised.
        step: the step, with `phase`, `attempt` and `at_us` as in `Failure`.
        reason: the engine's own word, such as `attempt-timeout`; used where the exception gives none.
        limit_bytes: the message is cut to so many bytes, at a character boundary, and marked.
    """
    kind, found = _detail(error)
    default = reason or ("failed" if isinstance(error, Fail) else "error")
    return Failure(
        step=step,
        message=bounded(describe(error, limit_bytes), limit_bytes),
        phase=phase,
        attempt=attempt,
        at_us=at_us,
        kind=kind or "system",
        reason=found or default,
        error="" if type(error) is Fail else _type_name(error),
    )


def describe(error: BaseException, limit: int = MESSAGE_LIMIT_BYTES) -> str:
    """The exception for people, without its type: its text, notes, members of a group, and the explicit cause.

    At most about `limit` characters of any one text are looked at.
    """
    parts = [_text(error, limit) or _type_name(error)]
    parts += [f"note: {note}" for note in _notes(error, limit)]
    members = _members(error)
    parts += [f"- {_named_text(member, limit)}" for member in members[:_GROUP_LIMIT]]
    if len(members) > _GROUP_LIMIT:
        parts.append(f"- and {len(members) - _GROUP_LIMIT} more")
    cause = _exception(error, "__cause__")
    if cause is not None and cause is not error:
        parts.append(f"caused by {_named_text(cause, limit)}")
    return "\n".join(parts)


def bounded(text: str, limit_bytes: int) -> str:
    """`text` fit to be stored and shown: no NUL, no lone surrogates, at most `limit_bytes` of UTF-8."""
    head = text[: limit_bytes + 1]
    head = head.replace("\x00", "\\x00").encode("utf-8", "backslashreplace").decode()
    data = head.encode()
    if len(data) <= limit_bytes and len(text) <= limit_bytes:
        return head
    mark = CUT_MARK if limit_bytes >= 2 * len(CUT_MARK.encode()) else ""
    return data[: limit_bytes - len(mark.encode())].decode("utf-8", "ignore") + mark


def _named_text(error: BaseException, limit: int) -> str:
    """`ValueError: a`, or `ValueError` where it says nothing."""
    text = _text(error, limit)
    return f"{_type_name(error)}: {text}" if text else _type_name(error)


def _text(value: object, limit: int) -> str:
    """The beginning of `str(value)`, whatever that does."""
    try:
        return str(value)[: limit + 1]
    except BaseException as broken:
        if isinstance(broken, KeyboardInterrupt):
            raise
        return f"(its text cannot be made: __str__ raised {_type_name(broken)})"


def _type_name(value: object) -> str:
    return bounded(str(type(value).__name__), _LABEL_LIMIT_BYTES)


def _members(error: BaseException) -> Sequence[BaseException]:
    if not isinstance(error, BaseExceptionGroup):
        return ()
    members = _attribute(cast(object, error), "exceptions")
    return cast("Sequence[BaseException]", members) if isinstance(members, tuple) else ()


def _notes(error: BaseException, limit: int) -> list[str]:
    notes = _attribute(error, "__notes__")
    if not isinstance(notes, (list, tuple)):  # nothing promises that it is one
        return []
    return [_text(note, limit) for note in cast("Sequence[object]", notes)[:_GROUP_LIMIT]]


def _chain(error: BaseException) -> Iterator[BaseException]:
    """`error` and its causes, as a traceback would show them."""
    seen: set[int] = set()
    at: BaseException | None = error
    while at is not None and id(at) not in seen and len(seen) < _CHAIN_LIMIT:
        yield at
        seen.add(id(at))
        cause = _exception(at, "__cause__")
        at = cause if cause is not None or at.__suppress_context__ else _exception(at, "__context__")


def _detail(error: BaseException) -> tuple[FailureKind | None, str | None]:
    kind: FailureKind | None = None
    reason: str | None = None
    for at in _chain(error):
        if isinstance(at, (Fail, FailureDetail)):
            kind = kind or _kind(at)
            reason = reason or _reason(at)
    return kind, reason


def _kind(carrier: object) -> FailureKind | None:
    kind = _attribute(carrier, "kind")
    return cast(FailureKind, kind) if isinstance(kind, str) and kind in _KINDS else None


def _reason(carrier: object) -> str | None:
    reason = _attribute(carrier, "reason")
    return bounded(reason, _LABEL_LIMIT_BYTES) or None if isinstance(reason, str) else None


def _exception(error: BaseException, name: str) -> BaseException | None:
    found = _attribute(error, name)
    return found if isinstance(found, BaseException) else None


def _attribute(carrier: object, name: str) -> object:
    try:
        return getattr(carrier, name, None)
    except BaseException as broken:  # a property of somebody else's
        if isinstance(broken, KeyboardInterrupt):
            raise
        return None
