"""Where a scenario and what was chosen part ways, and how an end reads in the grammar."""

from __future__ import annotations

from perdure.core.facts import RunFailed, RunSucceeded
from perdure.testing.scenario.model import Entry, Scenario


class Difference(Exception):
    """The first line of a scenario at which something else was chosen."""

    def __init__(self, scenario: Scenario, entry: Entry, expected: str, chosen: str) -> None:
        super().__init__(
            f"{scenario.file}:{entry.number}: scenario {scenario.name!r}: at {entry.text!r} expected {expected}, "
            f"chosen {chosen}"
        )
        self.scenario, self.entry, self.expected, self.chosen = scenario, entry, expected, chosen


def describe_end(ended: RunSucceeded | RunFailed) -> str:
    """The `end` line that a terminal fact amounts to."""
    if isinstance(ended, RunSucceeded):
        words = ["end success"]
        lists: tuple[tuple[str, tuple[str, ...]], ...] = (("in-doubt", ended.in_doubt),)
    else:
        kind = ended.failure.kind
        words = [f"end {kind if kind in ('canceled', 'abandoned') else 'failure'}"]
        if ended.failure.step:  # a run that is given up between two steps has none
            words.append(f"at {ended.failure.step}")
        lists = (
            ("in-doubt", ended.in_doubt),
            ("half-unwound", ended.half_unwound),
            ("uncompensated", ended.uncompensated),
            ("unavailable", ended.unavailable),
        )
    words += [f"{name} {' '.join(steps)}" for name, steps in lists if steps]
    return " ".join(words)
