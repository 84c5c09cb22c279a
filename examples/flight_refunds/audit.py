"""The auditor: was every refund paid once, and only once?

It imports nothing of perdure and nothing of the rest of the example. What is owed it works out for itself from the CSV
file; what was paid it reads from the bank's own file; it asks nobody else.

    python -m examples.flight_refunds.audit DIRECTORY
"""

import argparse
import csv
import gzip
import json
import sqlite3
import sys
from collections import Counter
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

FLIGHTS = Path(__file__).parent / "data" / "flights-2013-01.csv.gz"


@dataclass(frozen=True)
class Audit:
    """What the bank's file says.

    Attributes:
        paid: refunds that were owed and that were paid, once, in full.
        paid_cents: all money that left the bank.
        doubled: transfers that should not have been: a refund paid again, or paid though it was not owed.
        lost: refunds that were owed and not paid in full, plus sums that were put aside and neither spent nor returned.
        refused_runs: accounts from which the bank refuses to pay; nothing is owed for them here.
        requests, replays: calls the bank got, and how many of them it had carried out before.
    """

    paid: int
    paid_cents: int
    doubled: int
    lost: int
    refused_runs: int
    requests: int
    replays: int


def owed(flights: Path = FLIGHTS) -> dict[str, dict[str, int]]:
    """What is owed by the rules: for each run (carrier and day) its refunds and their cents."""
    runs: dict[str, dict[str, int]] = {}
    with gzip.open(flights, "rt", encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            canceled = row["dep_time"] in ("", "NA")
            late = row["arr_delay"] not in ("", "NA") and float(row["arr_delay"]) >= 180
            if canceled or late:
                run = "{carrier}-{year}-{month:0>2}-{day:0>2}".format(**row)
                miles = int(row["distance"])
                cents = 125_00 if miles <= 500 else 250_00 if miles <= 1500 else 400_00 if miles <= 2500 else 600_00
                runs.setdefault(run, {})["{}/{flight}/{origin}".format(run, **row)] = cents
    return runs


def audit(bank_file: Path, flights: Path = FLIGHTS) -> Audit:
    """Compares the bank's file with what is owed. Reads one state of the file and changes nothing."""
    with closing(sqlite3.connect(f"file:{bank_file}?mode=ro", uri=True, isolation_level=None)) as books:
        books.execute("BEGIN")
        frozen = {str(run) for (run,) in books.execute("SELECT run FROM frozen")}
        transfers = [(str(refund), int(cents)) for refund, cents in books.execute("SELECT refund, cents FROM transfer")]
        (open_holds,) = books.execute("SELECT count(*) FROM hold WHERE state = 'open'").fetchone()
        (requests, replays) = books.execute("SELECT count(*), coalesce(sum(replayed), 0) FROM request").fetchone()
    expected: dict[str, int] = {}
    refused = 0
    for run, refunds in owed(flights).items():
        refused += run in frozen
        expected.update({} if run in frozen else refunds)
    times = Counter(refund for refund, _ in transfers)
    in_full = {refund for refund, cents in transfers if expected.get(refund) == cents}
    return Audit(
        paid=sum(times[refund] == 1 for refund in in_full),
        paid_cents=sum(cents for _, cents in transfers),
        doubled=sum(count - (refund in expected) for refund, count in times.items()),
        lost=len(expected.keys() - in_full) + int(open_holds),
        refused_runs=refused,
        requests=int(requests),
        replays=int(replays),
    )


def paid_by_run(bank_file: Path) -> dict[str, tuple[int, int]]:
    """For each run that was paid: how many transfers, and their cents. For the progress view."""
    with closing(sqlite3.connect(f"file:{bank_file}?mode=ro", uri=True)) as books:
        rows = books.execute("SELECT run, count(*), sum(cents) FROM transfer GROUP BY run")
        return {str(run): (int(count), int(cents)) for run, count, cents in rows}


def keys_by_run(bank_file: Path) -> dict[str, set[str]]:
    """For each run that was paid: the idempotency keys under which. One that was paid once has one."""
    keys: dict[str, set[str]] = {}
    with closing(sqlite3.connect(f"file:{bank_file}?mode=ro", uri=True)) as books:
        for run, key in books.execute("SELECT DISTINCT run, key FROM transfer"):
            keys.setdefault(str(run), set()).add(str(key))
    return keys


def main() -> int:
    """Prints the audit as JSON; exit code 1 if anything was paid twice or lost."""
    parser = argparse.ArgumentParser(description="Checks the bank's file of a flight-refunds run.")
    parser.add_argument("directory", type=Path, nargs="?", default=Path("flight-refunds-demo"))
    bank_file = parser.parse_args().directory / "bank.db"
    if not bank_file.exists():
        print(f"there is no {bank_file}: run `python -m examples.flight_refunds` first", file=sys.stderr)
        return 2
    found = audit(bank_file)
    print(json.dumps(asdict(found)))
    return 1 if found.doubled or found.lost else 0


if __name__ == "__main__":
    sys.exit(main())
