"""A quarter of a minute of `make chaos`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.__main__ import Plan, go, report


@pytest.mark.long
def test_everything_ends_once_whatever_happens(tmp_path: Path) -> None:
    """Workers are killed and paused, the server is restarted, a version is deployed: every run ends once, what failed
    is undone, and nothing moves back [J-1, J-14, R-2, R-3, R-16, D-4, U-3].
    """
    plan = Plan(
        seconds=14.0, runs=150, workers=2, seed=7, kill_each=2.0, restart_each=6.0, deploy_each=5.0, pause_each=4.5
    )
    chaos, verdict = go(plan, tmp_path)
    assert verdict.problems == [], report(chaos, verdict)
    assert chaos.restarts
    assert chaos.crew.did["deployments"]
    assert verdict.claims > plan.runs
