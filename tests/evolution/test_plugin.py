"""The pytest plugin: it is there, it works, and it costs other projects nothing [I-6]."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

TESTS = """
from perdure import Pipeline, nothing, step

@step("a")
async def a(inv) -> None:
    pass

line = Pipeline(id="line", input=None, deps=object, steps=(a,), output=nothing)

def test_edit(perdure_evolve):
    assert perdure_evolve(line, line, at=a, input=None).succeeded

def test_time(perdure_run_virtual):
    async def main(system):
        await system.sleep(3600)
        return system.now_us()

    assert perdure_run_virtual(main)
"""


@pytest.mark.parametrize("plugin", ["perdure_pytest", "perdure.testing.pytest_plugin"])
def test_the_fixtures_work(plugin: str, tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", plugin, "test_it.py"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "2 passed" in done.stdout, done.stdout + done.stderr


def test_loading_the_plugin_loads_nothing_of_perdure() -> None:
    code = "import sys, perdure_pytest; print([m for m in sys.modules if m.split('.')[0] in ('perdure', 'msgspec')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_entry_point_names_a_module_that_is_shipped() -> None:
    """Its name is the module's, so that `-p perdure_pytest` beside it does no harm."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    assert project["project"]["entry-points"]["pytest11"] == {"perdure_pytest": "perdure_pytest"}
    assert importlib.util.find_spec("perdure_pytest") is not None
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel["force-include"] == {"src/perdure_pytest.py": "perdure_pytest.py"}
