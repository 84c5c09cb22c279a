"""Whatever a handler raises becomes a failure that can be stored and read [M-10]."""

from __future__ import annotations

import asyncio
import builtins
import itertools
import json
from collections.abc import Callable
from decimal import DecimalException
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure import Fail, FailureDetail
from perdure.core.facts import Failure
from perdure.define.failure import CUT_MARK, bounded, failure_of
from perdure.errors import PayloadError


def failure(error: BaseException, **changes: Any) -> Failure:
    arguments: dict[str, Any] = {"step": "s/v1", "phase": "forward", "attempt": 2, "at_us": 7}
    return failure_of(error, **(arguments | changes))


class TwoArguments(Exception):
    def __init__(self, code: int, *, hint: str) -> None:
        super().__init__(code)
        self.hint = hint


class NoSuper(Exception):
    def __init__(self, secret: object) -> None:
        self.secret = secret


class BrokenStr(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


class ExitingStr(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


class NoStr(Exception):
    def __str__(self) -> str:
        return 3  # type: ignore[return-value]  # noqa: PLE0307  # the point


class RecursiveStr(Exception):
    def __str__(self) -> str:
        return str(self)


class BrokenRepr(Exception):
    def __repr__(self) -> str:
        raise RuntimeError


class Falsy(Exception):
    def __bool__(self) -> bool:
        raise RuntimeError("no truth")


class Slotted(Exception):
    __slots__ = ("detail",)


class BrokenNotes(Exception):
    __notes__ = 3  # type: ignore[assignment]  # the point


class BrokenDetail(Exception, FailureDetail):
    @property
    def kind(self) -> Any:  # type: ignore[override]  # the point
        raise RuntimeError

    reason = 3  # type: ignore[assignment]  # the point


class BrokenCause(Exception):
    @property
    def __cause__(self) -> Any:  # type: ignore[override]  # the point
        raise RuntimeError

    @property
    def __context__(self) -> Any:  # type: ignore[override]  # the point
        raise RuntimeError


class NoCause(Exception):
    __cause__ = 3  # type: ignore[assignment]  # the point


class BrokenGroup(ExceptionGroup[Exception]):
    @property
    def exceptions(self) -> Any:
        raise RuntimeError


class Huge(Exception):
    def __str__(self) -> str:
        return "x" * 3_000_000


def with_notes(error: Exception, *notes: Any) -> Exception:
    error.__notes__ = list(notes)
    return error


def chained(*errors: Exception) -> Exception:
    for error, cause in itertools.pairwise(errors):
        error.__cause__ = cause
    return errors[0]


def circular() -> Exception:
    first, second = ValueError("a"), ValueError("b")
    first.__cause__, second.__cause__ = second, first
    return first


ODD: list[Callable[[], BaseException]] = [
    ValueError,
    BrokenCause,
    NoCause,
    lambda: BrokenGroup("all", [ValueError("a")]),
    lambda: ValueError("a", 1, object()),
    lambda: KeyError("missing"),
    lambda: OSError(2, "No such file", "/tmp/x"),
    lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
    lambda: SyntaxError("bad", ("file", 1, 1, "text")),
    lambda: StopIteration(3),
    StopAsyncIteration,
    lambda: SystemExit(3),
    GeneratorExit,
    asyncio.CancelledError,
    lambda: asyncio.IncompleteReadError(b"", 3),
    lambda: asyncio.InvalidStateError("x"),
    TimeoutError,
    MemoryError,
    lambda: RecursionError("deep"),
    lambda: DecimalException("d"),
    lambda: json.JSONDecodeError("bad", "doc", 0),
    lambda: msgspec.ValidationError("x"),
    lambda: PayloadError("$.a", "bad"),
    lambda: TwoArguments(3, hint="h"),
    lambda: NoSuper(object()),
    lambda: BrokenStr("x"),
    lambda: ExitingStr("x"),
    lambda: NoStr("x"),
    lambda: RecursiveStr("x"),
    lambda: BrokenRepr("x"),
    lambda: Falsy("x"),
    lambda: chained(ValueError("v"), Falsy("x"), KeyError("k")),
    lambda: Slotted("x"),
    lambda: BrokenNotes("x"),
    lambda: BrokenDetail("x"),
    lambda: Huge("x"),
    lambda: ValueError("a\x00b\ud800c"),
    lambda: ValueError("ü💶" * 100_000),
    lambda: ValueError(b"\xff" * 100_000),
    lambda: ExceptionGroup("group", [ValueError("a"), ExceptionGroup("inner", [KeyError("b")])]),
    lambda: BaseExceptionGroup("group", [SystemExit(1), BrokenStr("b")]),
    lambda: ExceptionGroup("many", [ValueError(str(n)) for n in range(10_000)]),
    lambda: with_notes(ValueError("a"), "seen on the 3rd", 3, BrokenStr("x"), "\x00" * 10_000),
    lambda: chained(ValueError("a"), BrokenStr("b"), Huge("c")),
    circular,
    lambda: type("N" * 10_000, (Exception,), {})("x"),
    Fail,
    lambda: Fail("a\x00", reason="r\x00\ud800" * 1_000, kind="user"),
    lambda: Fail(object(), reason=3, kind="customer"),  # type: ignore[arg-type]  # the point
]


@pytest.mark.parametrize("make", ODD, ids=map(str, range(len(ODD))))
def test_no_exception_breaks_recording_or_reading(make: Callable[[], BaseException]) -> None:  # M-10
    error = make()
    found = failure(error)
    assert msgspec.json.decode(msgspec.json.encode(found), type=Failure) == found
    for text in (found.message, found.reason, found.error):
        assert "\x00" not in text
        assert len(text.encode()) <= 4_096
    assert found.message
    assert len(found.error.encode()) <= 128
    assert len(found.reason.encode()) <= 128
    assert found.kind in ("system", "user", "canceled", "abandoned")


@pytest.mark.parametrize(
    "kind",
    [
        each
        for each in vars(builtins).values()
        if isinstance(each, type) and issubclass(each, Exception) and not issubclass(each, (Warning, UnicodeError))
        if each is not ExceptionGroup
    ],
    ids=lambda kind: kind.__name__,
)
def test_type_and_text_of_every_builtin_exception_are_kept(kind: type[Exception]) -> None:  # M-10
    found = failure(kind("a"))
    assert found.error == ("OSError" if kind in (IOError, EnvironmentError) else kind.__name__)
    assert found.message == ("'a'" if kind is KeyError else "a")


def test_a_failure_says_where_and_when() -> None:  # M-10
    found = failure(ValueError("a"), phase="unwind")
    assert found == Failure("s/v1", "a", "unwind", 2, 7, "system", "error", "ValueError")


def test_nul_and_surrogates_are_made_visible() -> None:  # M-10
    assert failure(ValueError("a\x00b\ud800")).message == "a\\x00b\\ud800"


def test_groups_notes_and_causes_are_told() -> None:  # M-10
    error = with_notes(ExceptionGroup("two", [ValueError("a"), KeyError("b")]), "a note")
    error.__cause__ = OSError("disk")
    assert failure(error).message == (
        "two (2 sub-exceptions)\nnote: a note\n- ValueError: a\n- KeyError: 'b'\ncaused by OSError: disk"
    )


# --- the limit


def test_a_long_message_is_cut_and_marked() -> None:  # M-10
    found = failure(ValueError("x" * 5_000))
    assert len(found.message.encode()) == 4_096
    assert found.message.endswith(CUT_MARK)
    assert failure(ValueError("x" * 4_096)).message == "x" * 4_096


def test_the_limit_can_be_configured() -> None:  # M-10
    assert failure(ValueError("x" * 100), limit_bytes=30).message == "x" * 21 + CUT_MARK


@given(st.text(st.characters(codec=None)), st.integers(0, 100))
def test_what_is_cut_is_whole_characters_within_the_limit(text: str, limit: int) -> None:  # M-10
    cut = bounded(text, limit)
    data = cut.encode()
    assert len(data) <= limit
    assert "\x00" not in cut
    shown = text.replace("\x00", "\\x00").encode("utf-8", "backslashreplace").decode()
    assert shown.startswith(cut.removesuffix(CUT_MARK))
    if len(shown.encode()) <= limit:
        assert cut == shown


# --- kind and reason


class Declined(Exception, FailureDetail):
    kind = "user"
    reason = "declined"


class OnlyReason(Exception, FailureDetail):
    reason = "known"


def caused(error: Exception, cause: BaseException | None, *, context: BaseException | None = None) -> Exception:
    error.__cause__, error.__context__ = cause, context
    error.__suppress_context__ = cause is not None
    return error


@pytest.mark.parametrize(
    ("error", "kind", "reason"),
    [
        (ValueError("x"), "system", "error"),
        (Fail("x"), "system", "failed"),
        (Fail("x", reason="r"), "system", "r"),
        (Fail("x", kind="user"), "user", "failed"),
        (Declined("x"), "user", "declined"),
        (caused(Fail("x"), Declined()), "user", "declined"),
        (caused(Fail("x", reason="mine"), Declined()), "user", "mine"),
        (caused(Fail("x", kind="abandoned"), Declined()), "abandoned", "declined"),
        (caused(ValueError("x"), Declined()), "user", "declined"),
        (caused(ValueError("x"), None, context=Declined()), "user", "declined"),
        (caused(ValueError("x"), KeyError(), context=Declined()), "system", "error"),
        (caused(ValueError("x"), caused(KeyError(), Declined())), "user", "declined"),
        (caused(OnlyReason(), Declined()), "user", "known"),
        (caused(Declined(), OnlyReason()), "user", "declined"),
    ],
    ids=map(str, range(14)),
)
def test_kind_and_reason_come_from_the_arguments_then_from_the_nearest_cause(
    error: Exception, kind: str, reason: str
) -> None:  # M-10
    found = failure(error)
    assert (found.kind, found.reason) == (kind, reason)


def test_the_word_of_the_engine_is_used_where_the_exception_has_none() -> None:
    assert failure(TimeoutError(), reason="attempt-timeout").reason == "attempt-timeout"
    assert failure(Declined(), reason="attempt-timeout").reason == "declined"


def test_a_fail_is_shown_without_its_type() -> None:
    class Refusal(Fail):
        pass

    assert failure(Fail("no")).error == ""
    assert failure(Refusal("no")).error == "Refusal"
