"""What `pytest` loads where perdure is installed: names of fixtures, and nothing else until one of them is used.

It stands outside of the package so that loading it does not import the package; see `perdure.testing.pytest_plugin`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from perdure.testing.pytest_plugin import Evolve, RunVirtual


@pytest.fixture(scope="session")
def perdure_evolve() -> Evolve:
    """`perdure.testing.evolve.evolve`: test an edit."""
    from perdure.testing.evolve import evolve

    return evolve


@pytest.fixture(scope="session")
def perdure_run_virtual() -> RunVirtual:
    """`perdure.testing.clock.run_virtual`: run a coroutine in virtual time."""
    from perdure.testing.clock import run_virtual

    return run_virtual
