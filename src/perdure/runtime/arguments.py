"""Arguments of clients, checked at the door [P-2]: names, durations, times."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import get_args

from perdure.core.durations import duration_us
from perdure.core.facts import PRIORITIES
from perdure.define.names import name_problem
from perdure.errors import InvalidArgument
from perdure.ports.store import RunStatus

ANNOTATIONS_LIMIT = 32

STATUSES: tuple[RunStatus, ...] = get_args(RunStatus)


def check_name(what: str, value: object) -> str:
    """`value`, fit to be an id. An empty or odd id is refused, never repaired.

    Raises:
        InvalidArgument: empty, blank, over 512 bytes, with NUL or lone surrogates, or not text.
    """
    problem = name_problem(value)
    if problem is not None:
        raise InvalidArgument(f"{what} {problem}: {ascii(value)[:80]}")
    return str(value)


def check_text(what: str, value: object, limit: int = 4096) -> str:
    """Free text such as a note: may be empty, must be storable.

    Raises:
        InvalidArgument: not text, with NUL or lone surrogates, or longer than `limit` bytes.
    """
    if not isinstance(value, str):
        raise InvalidArgument(f"{what} must be a str, not {type(value).__name__}")
    if "\x00" in value:
        raise InvalidArgument(f"{what} must not hold NUL")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise InvalidArgument(f"{what} must not hold a lone surrogate") from None
    if size > limit:
        raise InvalidArgument(f"{what} must not be longer than {limit:,} bytes, this has {size:,}")
    return value


def check_count(what: str, value: object, least: int, most: int) -> int:
    """A whole number within bounds.

    Raises:
        InvalidArgument: it is not.
    """
    if type(value) is not int or not least <= value <= most:
        raise InvalidArgument(f"{what} must be a whole number between {least} and {most:,}, not {ascii(value)[:80]}")
    return value


def check_statuses(value: RunStatus | Sequence[RunStatus]) -> tuple[RunStatus, ...]:
    """One status or several to look for; a word that is none would silently find nothing.

    Raises:
        InvalidArgument: not a status.
    """
    given = (value,) if isinstance(value, str) else value
    if not isinstance(given, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]  # what untyped code passes
        raise InvalidArgument(f"status must be a word or a sequence of words, not {type(given).__name__}")
    statuses = tuple(given)
    for status in statuses:
        if status not in STATUSES:
            raise InvalidArgument(f"there is no status {ascii(status)[:80]}; there are {', '.join(STATUSES)}")
    return statuses


def check_duration(what: str, value: object) -> int:
    """Microseconds of seconds or a `timedelta`.

    Raises:
        InvalidArgument: not a number, NaN, infinite, negative, or beyond a thousand years.
    """
    try:
        return duration_us(value)
    except ValueError as error:
        raise InvalidArgument(f"{what} {error}") from None


def check_time(what: str, value: object) -> int:
    """Microseconds since the epoch of an aware datetime.

    Raises:
        InvalidArgument: not a datetime, or a naive one.
    """
    if not isinstance(value, datetime):
        raise InvalidArgument(f"{what} must be a datetime, not {type(value).__name__}")
    if value.utcoffset() is None:
        raise InvalidArgument(f"{what} must have a time zone, {value.isoformat()} has none")
    return int((value - _EPOCH) / timedelta(microseconds=1))


def check_priority(value: object) -> int:
    """A priority of a run [R-1].

    Raises:
        InvalidArgument: not a whole number of `PRIORITIES`.
    """
    if type(value) is not int or value not in PRIORITIES:
        first, last = PRIORITIES[0], PRIORITIES[-1]
        raise InvalidArgument(f"priority must be a whole number from {first} to {last}, not {ascii(value)[:80]}")
    return value


def check_annotations(value: Mapping[str, str] | None) -> dict[str, str]:
    """Labels of a run.

    Raises:
        InvalidArgument: too many, or a key or value that cannot be stored.
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]  # what untyped code passes
        raise InvalidArgument(f"annotations must be a mapping, not {type(value).__name__}")
    if len(value) > ANNOTATIONS_LIMIT:
        raise InvalidArgument(f"a run takes at most {ANNOTATIONS_LIMIT} annotations, not {len(value)}")
    return {check_name("an annotation's key", k): check_text(f"annotation {k!r}", v, 1024) for k, v in value.items()}


_EPOCH = datetime.fromisoformat("1970-01-01T00:00:00+00:00")
