"""Deterministic simulation: engine, memory store and virtual clock under seeded faults, judged by the rules.

`simulate(seed)` plays one seed, with `shared=True` of a world in which several workers share the store, with
`limited=True` of one with limits and mutexes. Equal seeds give equal traces, in any process, on any machine.
"""

from perdure.testing.simulation.dice import KINDS, LIMITED_KINDS, SHARED_KINDS
from perdure.testing.simulation.history import Violation
from perdure.testing.simulation.report import Report, SimulationFailed, simulate

__all__ = ["KINDS", "LIMITED_KINDS", "SHARED_KINDS", "Report", "SimulationFailed", "Violation", "simulate"]
