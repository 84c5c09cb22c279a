"""Every error of ours has a message, a hint where one helps, and its exit code [I-2]."""

from __future__ import annotations

import pytest

from perdure import errors
from perdure.cli.exits import MEANINGS, Exit
from perdure.cli.problems import Problem, one_line, report
from perdure.core.journal import NewerJournal


@pytest.mark.parametrize(
    ("error", "code", "hint"),
    [
        (errors.DefinitionError("no"), Exit.USAGE, "definition"),
        (errors.InvalidArgument("no"), Exit.USAGE, ""),
        (errors.PayloadError("$.a", "no"), Exit.USAGE, "type"),
        (errors.NotFound("no"), Exit.NOT_FOUND, "perdure list"),
        (errors.ConflictError("no"), Exit.CONFLICT, ""),
        (errors.ScheduleConflict("no", "run7"), Exit.CONFLICT, "perdure show run7"),
        (errors.MutexConflict("no", "run7", "account", "payout"), Exit.CONFLICT, "perdure show run7"),
        (errors.QueueFull("no", "imports", ""), Exit.CONFLICT, "perdure limits"),
        (errors.KeyTaken("no", "terminal"), Exit.CONFLICT, ""),
        (errors.NotAllowed("no"), Exit.CONFLICT, ""),
        (errors.StoreUnavailable("no"), Exit.STORE, "try again"),
        (errors.StoreInUse("no"), Exit.STORE, "stop that engine"),
        (errors.StoreUnusable("no"), Exit.STORE, "doctor"),
        (errors.ArchiveUnavailable("no"), Exit.STORE, "archived"),
        (errors.InvalidRun("run7", "step-missing", "no"), Exit.INVALID_RUN, "perdure explain run7"),
        (errors.CorruptJournal("run7", 3, "no"), Exit.CORRUPT, "perdure verify run7"),
        (errors.PerdureError("no"), Exit.FINDING, ""),
        (NewerJournal("no"), Exit.STORE, ""),
        (Problem("no", "yes", Exit.NOT_FOUND), Exit.NOT_FOUND, "yes"),
        (TimeoutError("too long"), Exit.FINDING, ""),
    ],
)
def test_who_acts_next(error: Exception, code: Exit, hint: str) -> None:
    found = report(error)
    assert found is not None
    assert found.code == code
    assert hint in found.hint
    assert str(error) in found.message
    assert len(found.lines()) == (2 if found.hint else 1)


def test_every_error_class_is_known() -> None:
    """A new class in `errors` gets a decision here rather than the general answer."""
    known = {
        "PerdureError", "DefinitionError", "InvalidArgument", "PayloadError", "NotFound", "ConflictError",
        "ScheduleConflict", "KeyTaken", "NotAllowed", "StoreUnavailable", "StoreInUse", "StoreUnusable", "InvalidRun",
        "CorruptJournal", "MutexConflict", "QueueFull", "ArchiveUnavailable",
    }  # fmt: skip
    there = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.PerdureError)
    }
    assert there == known


def test_what_nobody_foresaw_is_a_bug() -> None:
    assert report(ZeroDivisionError()) is None


def test_every_exit_code_has_a_meaning() -> None:
    assert set(MEANINGS) == set(Exit)


def test_messages_take_one_line() -> None:
    assert one_line("a\n  b\x1b[0m\tc") == "a b [0m c"
    problem = report(Problem("line\nbreak", "hint\nbreak"))
    assert problem is not None
    assert problem.lines() == ["error: line break", "hint: hint break"]
