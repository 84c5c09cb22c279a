"""Exit codes: what a script may rely on."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """What the process answers to whoever started it."""

    OK = 0
    FINDING = 1
    USAGE = 2
    NOT_FOUND = 3
    CONFLICT = 4
    STORE = 5
    INVALID_RUN = 6
    CORRUPT = 7
    BUG = 70
    INTERRUPTED = 130


MEANINGS: dict[Exit, str] = {
    Exit.OK: "done",
    Exit.FINDING: "done, and the answer is bad: verify or check found something, a run failed or one of many refused",
    Exit.USAGE: "a wrong argument, setting, application or input",
    Exit.NOT_FOUND: "no such run, pipeline or step",
    Exit.CONFLICT: "what is recorded does not allow it: other input, already ended, not held",
    Exit.STORE: "the store, or the archive, does not answer or cannot be used",
    Exit.INVALID_RUN: "the deployed pipeline cannot continue the run",
    Exit.CORRUPT: "the journal contradicts itself",
    Exit.BUG: "a bug in perdure; please report it",
    Exit.INTERRUPTED: "interrupted from the keyboard",
}
