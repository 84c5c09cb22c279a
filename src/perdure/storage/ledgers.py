"""Counting live runs by ledger, where that of most is in an index and the others are few: what the stores share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from perdure.ports.store import LedgerCount

Counted: TypeAlias = "tuple[str, bytes, bytes, int, str, int, int]"
"""Runs of a pipeline with one ledger: signature and ledger, both empty where it is not known; how many; id, time of
submission and number of the first of them."""


def merged(rows: Iterable[Counted]) -> list[LedgerCount]:
    """One entry for each pipeline and ledger, and one for each run whose ledger is not known, in the port's order."""
    found: dict[tuple[str, bytes, str], Counted] = {}
    for row in rows:
        pipeline, signature, ledger, count, run_id, at_us, n = row
        key = pipeline, signature, "" if signature else run_id
        known = found.get(key)
        if known is not None:
            at_us, n, run_id = min((at_us, n, run_id), (known[5], known[6], known[4]))
            row = (pipeline, signature, ledger, count + known[3], run_id, at_us, n)
        found[key] = row
    return sorted(
        (LedgerCount(*row[:6]) for row in found.values()),
        key=lambda entry: (entry.pipeline, entry.signature, entry.example_run),
    )
