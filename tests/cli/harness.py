"""What tests of commands share."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Protocol, cast


@dataclass(frozen=True)
class Answer:
    """What a command answered."""

    code: int
    out: str
    err: str

    def json(self) -> dict[str, object]:
        """The one JSON value on stdout."""
        value: dict[str, object] = json.loads(self.out)
        return value

    def json_lines(self) -> list[dict[str, object]]:
        """The JSON values on stdout, one a line."""
        return [json.loads(line) for line in self.out.splitlines()]


class Cli(Protocol):
    """Runs a command in the folder of the test."""

    def __call__(self, *arguments: str, stdin: bytes | None = None) -> Answer: ...


def records(value: object) -> list[dict[str, object]]:
    """A JSON array of objects."""
    assert isinstance(value, list)
    return cast("list[dict[str, object]]", value)


def record(value: object) -> dict[str, object]:
    """A JSON object."""
    assert isinstance(value, dict)
    return cast("dict[str, object]", value)
