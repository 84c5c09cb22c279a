"""From any exception to two lines for the person at the keyboard, and an exit code [I-2]."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn, Protocol, cast

from perdure import errors
from perdure.cli.blame import user_line
from perdure.cli.exits import Exit


class Problem(Exception):
    """Something the user can act on.

    Args:
        message: what is wrong, one line.
        hint: what to do about it, one line; empty where the message says it.
        code: how the process ends.
    """

    def __init__(self, message: str, hint: str = "", code: Exit = Exit.USAGE) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.code = code


@dataclass(frozen=True)
class Report:
    """A problem, ready to be shown."""

    kind: str
    message: str
    hint: str
    code: Exit

    def lines(self) -> list[str]:
        """For people: one line, or two with what to do."""
        lines = [f"error: {one_line(self.message)}"]
        return [*lines, f"hint: {one_line(self.hint)}"] if self.hint else lines

    def json(self) -> dict[str, object]:
        """For programs."""
        return {"error": {"kind": self.kind, "message": self.message, "hint": self.hint, "exit": int(self.code)}}


# Most special first: the first class that fits decides.
_KINDS: tuple[tuple[type[BaseException], str, Exit, str], ...] = (
    (errors.ScheduleConflict, "schedule-conflict", Exit.CONFLICT, "`perdure show {run_id}` shows the run in the way"),
    (
        errors.QueueFull,
        "queue-full",
        Exit.CONFLICT,
        "nothing was submitted; `perdure limits` shows who is inside: try again when some have ended",
    ),
    (errors.NotAllowed, "not-allowed", Exit.CONFLICT, ""),
    (errors.ConflictError, "conflict", Exit.CONFLICT, ""),
    (errors.NotFound, "not-found", Exit.NOT_FOUND, "`perdure list` shows the runs there are"),
    (errors.PayloadError, "payload", Exit.USAGE, "the value has to fit the type that the pipeline declares"),
    (errors.InvalidArgument, "invalid-argument", Exit.USAGE, ""),
    (errors.DefinitionError, "definition", Exit.USAGE, "mend the definition of the pipeline, then try again"),
    (errors.StoreInUse, "store-in-use", Exit.STORE, "stop that engine first; reading and submitting work beside it"),
    (errors.StoreUnusable, "store-unusable", Exit.STORE, "`perdure doctor` says more"),
    (errors.StoreUnavailable, "store-unavailable", Exit.STORE, "nothing was lost; try again"),
    (errors.ArchiveUnavailable, "archive-unavailable", Exit.STORE, "nothing was removed that is not archived"),
    (
        errors.InvalidRun,
        "invalid-run",
        Exit.INVALID_RUN,
        "`perdure explain {run_id}` says why; deploy code that can continue it, then `perdure retry {run_id}`",
    ),
    (errors.CorruptJournal, "corrupt-journal", Exit.CORRUPT, "`perdure verify {run_id}` says what does not fit"),
    (errors.PerdureError, "refused", Exit.FINDING, ""),
)


def report(error: BaseException) -> Report | None:
    """How to show an error; None if nobody foresaw it, which makes it a bug."""
    from perdure.core.journal import NewerJournal

    if isinstance(error, Problem):
        return Report(error.code.name.lower().replace("_", "-"), error.message, error.hint, error.code)
    if isinstance(error, NewerJournal):
        return Report("newer-journal", str(error), "", Exit.STORE)
    for cls, kind, code, hint in _KINDS:
        if isinstance(error, cls):
            return Report(kind, str(error), hint.format(run_id=getattr(error, "run_id", "RUN")), code)
    if isinstance(error, TimeoutError):
        return Report("timeout", str(error) or "it took too long", "", Exit.FINDING)
    return usage_report(error) or application_report(error)


def application_report(error: BaseException) -> Report | None:
    """An exception that the user's own code raised while a command used it; None for anything else."""
    line = user_line(error)
    if not line:
        return None
    message = f"the application raised {type(error).__name__} ({line}): {error}"
    return Report("application", message, "PERDURE_DEBUG=1 shows the traceback", Exit.USAGE)


class _UsageError(Protocol):
    """What typer's own errors have in common; their class has moved between releases."""

    exit_code: int
    ctx: _Context | None

    def format_message(self) -> str: ...


class _Context(Protocol):
    @property
    def command_path(self) -> str: ...


def usage_report(error: BaseException) -> Report | None:
    """A wrong option or argument as typer saw it; None for anything else."""
    if not (hasattr(error, "format_message") and hasattr(error, "exit_code")):
        return None
    usage = cast(_UsageError, error)
    context: _Context | None = getattr(usage, "ctx", None)
    path = context.command_path if context is not None else "perdure"
    message = usage.format_message().strip()
    return Report("usage", message[:1].lower() + message[1:], f"`{path} --help` shows how it is used", Exit.USAGE)


def one_line(text: str) -> str:
    """The text without line breaks and control characters, which could move a cursor or hide what follows."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def refuse(message: str, hint: str = "", code: Exit = Exit.USAGE) -> NoReturn:
    """Stop the command with a message.

    Raises:
        Problem: always.
    """
    raise Problem(message, hint, code)
