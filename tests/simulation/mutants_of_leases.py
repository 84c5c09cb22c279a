"""Workers that break a promise to each other: leases, burials, what is picked, and whose generation goes on."""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Callable, Mapping

import pytest

from perdure.core.silence import Silence
from perdure.ports.clock import System
from perdure.ports.store import Candidate, Serving, Store
from perdure.runtime import applying, driver
from perdure.runtime.membership import Membership
from perdure.storage.memory import MemoryStore
from perdure.storage.memory_data import MemoryData
from tests.simulation.mutants import Mutant, takes_nothing_over

GATE = "if not live.lease.holds:"


def rewritten(patch: pytest.MonkeyPatch, function: Callable[..., object], text: str, other: str) -> None:
    """A function of a module says something else, wherever it is imported."""
    source = textwrap.dedent(inspect.getsource(function))
    if text not in source:
        raise AssertionError(f"{function.__name__} does not say {text!r} any more")
    namespace: dict[str, Callable[..., object]] = {}
    source = f"from __future__ import annotations\n{source.replace(text, other)}"
    exec(source, function.__globals__, namespace)  # our own source
    for name, module in list(sys.modules.items()):
        if name.startswith("perdure.") and getattr(module, function.__name__, None) is function:
            patch.setattr(module, function.__name__, namespace[function.__name__])


def no_gate_before_effects(patch: pytest.MonkeyPatch) -> None:
    rewritten(patch, driver.drive, GATE, "if False:")


def no_gate_before_appends(patch: pytest.MonkeyPatch) -> None:
    rewritten(patch, applying.apply, GATE, "if False:")


def commits_for_the_dead(patch: pytest.MonkeyPatch) -> None:
    def alive(self: MemoryStore, worker: str) -> bool:
        return False

    patch.setattr(MemoryStore, "_found_dead", alive)


def buries_after_a_third_of_a_lease(patch: pytest.MonkeyPatch) -> None:
    class Hasty(Silence):
        def __init__(self, lease_s: float, interval_s: float) -> None:
            super().__init__(lease_s / 3, interval_s)

    patch.setattr("perdure.runtime.membership.Silence", Hasty)


def counts_while_it_cannot_renew(patch: pytest.MonkeyPatch) -> None:
    class Unfair(Silence):
        def __init__(self, lease_s: float, interval_s: float) -> None:
            super().__init__(lease_s, interval_s * 1_000)

    patch.setattr("perdure.runtime.membership.Silence", Unfair)


def buries_nobody(patch: pytest.MonkeyPatch) -> None:
    def heard(self: Silence, beats: Mapping[str, int], sent_s: float, answered_s: float) -> list[str]:
        return []

    patch.setattr(Silence, "heard", heard)


def takes_over_from_the_living(patch: pytest.MonkeyPatch) -> None:
    def alive(data: MemoryData) -> set[str]:
        return set()

    patch.setattr("perdure.storage.memory_workers.alive", alive)


def goes_on_after_its_death(patch: pytest.MonkeyPatch) -> None:
    class Undead(Membership):
        async def _begin_anew(self) -> None:
            self._renewed(self._host.system.steady_s())

    patch.setattr("perdure.runtime.engine.Membership", Undead)


def goes_on_with_what_newer_code_advanced(patch: pytest.MonkeyPatch) -> None:
    original = MemoryData.candidates

    def candidates(self: MemoryData, serving: Serving | None) -> list[Candidate]:
        return original(self, serving and dict.fromkeys(serving, 1_000))

    patch.setattr(MemoryData, "candidates", candidates)


def never_gives_back_what_it_picked(patch: pytest.MonkeyPatch) -> None:
    class Careless(Membership):
        async def _look_for_unknown(self) -> None:
            """Finds nothing."""

    patch.setattr("perdure.runtime.engine.Membership", Careless)


def goes_by_its_own_clock(patch: pytest.MonkeyPatch) -> None:
    async def own(system: System, store: Store) -> System:
        return system

    patch.setattr("perdure.app.store_time", own)


OF_LEASES = (
    Mutant("has no gate before effects", ("R-3",), no_gate_before_effects, shared=True),
    Mutant("has no gate before appends", ("R-3",), no_gate_before_appends, shared=True),
    Mutant("commits for the dead", ("R-3",), commits_for_the_dead, shared=True),
    Mutant("buries after a third of a lease", ("R-3",), buries_after_a_third_of_a_lease, shared=True),
    Mutant("counts while it cannot renew", ("R-3",), counts_while_it_cannot_renew, shared=True),
    Mutant("buries nobody", ("R-3", "R-16"), buries_nobody, shared=True),
    Mutant("takes over from the living", ("R-3",), takes_over_from_the_living, shared=True),
    Mutant("takes over from nobody", ("R-3", "R-16"), takes_nothing_over, shared=True),
    Mutant("goes on after its death", ("R-3",), goes_on_after_its_death, shared=True),
    Mutant("goes on with what newer code advanced", ("D-4",), goes_on_with_what_newer_code_advanced, shared=True),
    Mutant("never gives back what it picked", ("R-16",), never_gives_back_what_it_picked, shared=True),
    Mutant("goes by its own clock", ("R-16", "R-4"), goes_by_its_own_clock, shared=True),
)
