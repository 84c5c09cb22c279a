"""What a judge asks of everything beyond its own run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from perdure.core.facts import RunSubmitted
from perdure.core.retry import Retry
from perdure.core.topology import Topology

if TYPE_CHECKING:
    from perdure.testing.simulation.judge import Judge
    from perdure.testing.simulation.world import Attempt, AttemptKey


NOTICE_US = 2_000_000
"""How long after a durable fact from outside a handler may still be started: being told takes time."""


class Law(Protocol):
    """See the module."""

    @property
    def shared(self) -> bool:
        """Whether many workers share the store."""
        ...

    def blame(self, run_id: str, rule: str, problem: str) -> None:
        """A rule is broken."""
        ...

    def count(self, kind: str) -> None:
        """Something was seen to happen."""
        ...

    def now_us(self) -> int:
        """True time."""
        ...

    def line(self) -> int:
        """Where the trace stands."""
        ...

    def topology(self, pipeline: str, generation: int) -> Topology:
        """A deployed topology, knowing what former generations declared."""
        ...

    def newest(self, pipeline: str) -> Topology:
        """The topology that was deployed last."""
        ...

    def limited(self, step: str) -> bool:
        """Whether a step may have to wait for a place under a limit."""
        ...

    def reason(self, run_id: str) -> tuple[str, str]:
        """Status and owner of a run before the append that is judged."""
        ...

    def policy(self, step: str) -> Retry:
        """The retry policy of a step."""
        ...

    def sleep_us(self, worker: str, pipeline: str, step: str) -> int:
        """How long a sleep takes in the code of that engine."""
        ...

    def patience_us(self, worker: str, pipeline: str, step: str) -> int:
        """How long a wait for a message may take in the code of that engine; 0: for ever."""
        ...

    def holds(self, step: str, submitted: RunSubmitted | None) -> bool:
        """What the condition of a step says about a run."""
        ...

    def attempt(self, name: AttemptKey) -> Attempt | None:
        """What the world saw of an attempt."""
        ...

    def lives(self, worker: str) -> bool:
        """Whether that engine's process lives, and nobody found the worker dead."""
        ...

    def superseded(self, pipeline: str, generation: int) -> bool:
        """Whether an engine of that generation may let a run go to a newer one [D-4]."""
        ...

    def deaf(self, worker: str, since_us: int) -> bool:
        """Whether that engine could not hear of everything since then."""
        ...

    def check_begins(self, run_id: str, worker: str) -> None:
        """Blame a worker that begins something past its lease [R-3]."""
        ...

    def draining(self, worker: str) -> bool:
        """Whether that engine starts nothing more."""
        ...

    def broken(self, worker: str) -> bool:
        """Whether the code of that engine has a broken output function or condition."""
        ...

    def held_lately(self, run_id: str, ago_us: int) -> bool:
        """Whether the pipeline of a run is held, or was so long ago at most."""
        ...

    def held_for_us(self, run_id: str) -> int:
        """For how long the pipeline of a run has been held."""
        ...

    def judge(self, run_id: str) -> Judge | None:
        """What is known of another run; None: it does not exist."""
        ...

    def is_removed(self, run_id: str) -> bool:
        """Whether retention took a run away."""
        ...

    def named(self, run_id: str, step: str) -> list[str]:
        """The runs that the code last told a step to wait for."""
        ...

    def told_of_circle(self, run_id: str) -> bool:
        """Whether the store refused a wait of the run because it would close a circle."""
        ...

    def check_turn(self, run_id: str, submitted: RunSubmitted) -> None:
        """Blame a run that starts before its turn for a slot."""
        ...

    def check_replaced(self, run_id: str, submitted: RunSubmitted) -> None:
        """Blame a cancel by a run that is not there to replace this one."""
        ...

    def check_slot(self, run_id: str, submitted: RunSubmitted) -> None:
        """Blame a submission to a slot that is occupied."""
        ...
