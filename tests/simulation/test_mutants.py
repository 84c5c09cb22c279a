"""The simulation is worth something: engines that are broken on purpose turn it red."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from perdure.testing.simulation import simulate
from tests.simulation.mutants import FIRST_SEEDS, MUTANTS, SEEDS, Mutant
from tests.simulation.mutants_at_rest import AT_REST
from tests.simulation.mutants_of_leases import OF_LEASES
from tests.simulation.mutants_of_limits import OF_LIMITS
from tests.simulation.mutants_of_mail import OF_MAIL
from tests.simulation.mutants_of_units import OF_UNITS

ALL = MUTANTS + AT_REST + OF_MAIL + OF_UNITS + OF_LEASES + OF_LIMITS


@pytest.mark.parametrize("mutant", ALL, ids=lambda mutant: mutant.name.replace(" ", "-"))
def test_a_broken_engine_is_found(mutant: Mutant, monkeypatch: pytest.MonkeyPatch, note: Callable[[str], None]) -> None:
    """J-14, M-8, R-4, R-5, R-12, R-16 and the others that the mutants name."""
    mutant.apply(monkeypatch)
    first = FIRST_SEEDS.get(mutant.name, 0)
    for seed in (first, *range(SEEDS)):
        violations = simulate(seed, shared=mutant.shared, limited=mutant.limited).violations
        if violations:
            found = violations[0]
            note(f"seed {seed} finds that it {mutant.name}: {str(found)[:100]}")
            assert found.rule.startswith(mutant.rules), f"found, but for another reason: {found}"
            return
    pytest.fail(f"no seed of {SEEDS} notices an engine that {mutant.name}", pytrace=False)


def test_seeds_are_known_only_of_engines_that_are_there() -> None:
    assert FIRST_SEEDS.keys() <= {mutant.name for mutant in ALL}
