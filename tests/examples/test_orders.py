"""The shop as a user runs it: items, a person, child runs, a poll, and what is taken back."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_four_orders_end_as_they_should(tmp_path: Path) -> None:
    """B-10, B-15, B-21, B-24, U-12: and nothing stays reserved for an order that came to nothing."""
    done = subprocess.run(
        [sys.executable, "-m", "examples.orders.app", str(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    ada, ben, eve, dan, stock = done.stdout.splitlines()
    assert "Receipt(cents=129800, approved_by='Kim', parcels=['lamp is on its way', 'table is on its way'])" in ada
    assert "Kim declined" in ben
    assert "moon is sold out" in eve
    assert "in_doubt=('reserve-lines/v1',)" in eve  # another of its lines was reserved, and released again
    assert dan.startswith("Canceled")
    assert stock == "in stock: {'lamp': 8, 'table': 2}"
    runs = sqlite3.connect(tmp_path / "orders.db").execute("SELECT pipeline, status FROM runs").fetchall()
    assert sorted(runs) == sorted(
        [("delivery", "succeeded")] * 2
        + [("order", "succeeded"), ("order", "failed"), ("order", "failed"), ("order", "canceled")]
    )
