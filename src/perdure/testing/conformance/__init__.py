"""The public suite that every store has to pass: one contract, one proof [I-7].

For a driver of your own, with pytest:

```python
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_contract(check: Check, tmp_path: Path) -> None:
    await run_check(check, lambda: MyStore(tmp_path / "data"))
```

The factory gives a new, unopened store at every call; all stores of one check stand on the same data, which is empty
when the check begins.
"""

from __future__ import annotations

from collections.abc import Callable

from perdure.ports.store import Store
from perdure.testing.conformance import (
    awaits,
    changes,
    entrances,
    index,
    journal,
    life,
    limits,
    listing,
    mutexes,
    picks,
    retention,
    schedules,
    submit,
    transactions,
    workers,
)
from perdure.testing.conformance.lab import Check, Draft, Lab

__all__ = ["CHECKS", "Check", "Draft", "Lab", "run_check"]

CHECKS: tuple[Check, ...] = (
    *journal.CHECKS,
    *index.CHECKS,
    *awaits.CHECKS,
    *picks.CHECKS,
    *life.CHECKS,
    *changes.CHECKS,
    *listing.CHECKS,
    *retention.CHECKS,
    *submit.CHECKS,
    *schedules.CHECKS,
    *limits.CHECKS,
    *mutexes.CHECKS,
    *entrances.CHECKS,
    *workers.CHECKS,
    *transactions.CHECKS,
)


async def run_check(check: Check, make: Callable[[], Store]) -> None:
    """Run one check on fresh data.

    Raises:
        AssertionError: the store breaks the contract; the message says where.
    """
    lab = Lab(make)
    try:
        await check(lab)
    finally:
        await lab.close()
