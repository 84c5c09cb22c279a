"""Words of the options by which commands choose runs, made into what they mean; each is refused with a hint."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from perdure.cli.problems import refuse

if TYPE_CHECKING:
    from perdure.ports.store import RunFilter, RunStatus, WaitsFor

STATUSES: tuple[RunStatus, ...] = ("ready", "running", "held", "invalid", "corrupt", "succeeded", "failed", "canceled")
WAITING: tuple[WaitsFor, ...] = ("slot", "run", "message", "time", "retry", "limit", "deployment")


StatusesOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--status", "-s", metavar="STATUS", help=f"Only runs that are: {', '.join(STATUSES)}. Repeatable."),
]
AtStepOption: TypeAlias = Annotated[
    str | None, typer.Option("--step", metavar="STEP", help="Only runs that stand at this step, or failed there.")
]
SinceOption: TypeAlias = Annotated[
    str | None,
    typer.Option("--since", metavar="TIME|DURATION", help="Only runs submitted then or later, or so long ago at most."),
]
BeforeOption: TypeAlias = Annotated[
    str | None, typer.Option("--before", metavar="TIME|DURATION", help="Only runs submitted earlier, or longer ago.")
]
EndedSinceOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--ended-since", metavar="TIME|DURATION", help="Only runs that ended then or later; the last to end first."
    ),
]
EndedBeforeOption: TypeAlias = Annotated[
    str | None,
    typer.Option("--ended-before", metavar="TIME|DURATION", help="Only runs that ended earlier; the last first."),
]


@dataclass(frozen=True)
class Asked:
    """Which runs are to be listed, as the options have it."""

    pipeline: str | None = None
    status: list[str] | None = None
    waiting: list[str] | None = None
    step: str | None = None
    tenant: str | None = None
    resource: str | None = None
    annotation: list[str] | None = None
    worker: str | None = None
    since: str | None = None
    before: str | None = None
    ended_since: str | None = None
    ended_before: str | None = None

    def where(self) -> RunFilter:
        """The filter.

        Raises:
            Problem: an option says nothing that can be.
        """
        from perdure.cli.times import now_us, parse_past_us
        from perdure.ports.store import RunFilter
        from perdure.runtime.arguments import check_text

        now = now_us()

        def past(text: str | None, name: str) -> int | None:
            return None if text is None else parse_past_us(text, name, now)

        def text(value: str | None, name: str) -> str | None:
            return None if value is None else check_text(name, value)

        return RunFilter(
            text(self.pipeline, "--pipeline"),
            text(self.tenant, "--tenant"),
            text(self.resource, "--resource"),
            tuple(checked_status(status) for status in self.status or ()),
            past(self.since, "--since"),
            past(self.before, "--before"),
            past(self.ended_since, "--ended-since"),
            past(self.ended_before, "--ended-before"),
            text(self.step, "--step"),
            text(self.worker, "--worker"),
            tuple(checked_waiting(kind) for kind in self.waiting or ()),
            tuple(sorted(annotations_of(self.annotation).items())),
        )

    def options(self) -> str:
        """The options again, for a command that goes on."""
        words: list[str] = []
        given: dict[str, str | list[str] | None] = vars(self)
        for name, value in given.items():
            for each in [value] if isinstance(value, str) else value or ():
                words += [f"--{name.replace('_', '-')}", each]
        return "".join(f" {shlex.quote(word)}" for word in words)


def checked_status(text: str) -> RunStatus:
    """A status by its name.

    Raises:
        Problem: there is no such status.
    """
    word = text.strip().lower()
    for status in STATUSES:
        if status == word:
            return status
    refuse(f"--status: there is no status {text!r}", _meant(word, STATUSES))


def checked_waiting(text: str) -> WaitsFor:
    """What runs wait for, by its name.

    Raises:
        Problem: nothing waits for that.
    """
    word = text.strip().lower()
    for kind in WAITING:
        if kind == word:
            return kind
    refuse(f"--waiting: no run waits for {text!r}", _meant(word, WAITING))


def _meant(word: str, words: Sequence[str]) -> str:
    near = difflib.get_close_matches(word, words, 1)
    meant = f"did you mean {near[0]!r}? " if near else ""
    return f"{meant}there are {', '.join(words)}"


def annotations_of(given: Sequence[str] | None) -> dict[str, str]:
    """Annotations as `KEY=VALUE`; all of them are to fit.

    Raises:
        Problem: one has no `=`, or no key, or two are of one key.
    """
    found: dict[str, str] = {}
    for text in given or ():
        key, equals, value = text.partition("=")
        if not equals or not key:
            refuse(f"--annotation: {text!r} is not KEY=VALUE", "give both, like --annotation team=payments")
        if found.get(key, value) != value:
            refuse(
                f"--annotation: {key!r} is given twice, with two values",
                "a run has one value of a key: no run fits both",
            )
        found[key] = value
    return found
