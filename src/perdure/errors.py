"""Every error of perdure, one tree, ordered by who acts next.

```text
PerdureError
├── DefinitionError          the author: a pipeline, step or app that cannot work
├── InvalidArgument          the caller: an argument out of range (also a ValueError)
├── PayloadError             the caller: a value that cannot be encoded or decoded, with its path
├── NotFound                 the caller: no such run or pipeline
├── ConflictError            the caller: the request contradicts what is recorded
│   ├── ScheduleConflict     the slot is busy with other input; names the run
│   │   └── MutexConflict    another pipeline's run has a mutex for the resource; names both
│   ├── QueueFull            as many runs wait for a limit as may; try again later
│   ├── KeyTaken             the key was used with other content
│   └── NotAllowed           the run is not in a state that permits this
├── StoreUnavailable         retry: the store does not answer; nothing was lost
│   ├── StoreInUse           another engine owns the file; names the holder
│   └── StoreUnusable        an operator: the file or server is not one this release can use
├── ArchiveUnavailable       an operator: the archive cannot be written or read; nothing was lost
├── InvalidRun               an operator: the deployed pipeline cannot continue the run
└── CorruptJournal           stop: facts contradict each other or their hashes
```
"""

from __future__ import annotations


class PerdureError(Exception):
    """Base of all errors that perdure raises on purpose."""


class DefinitionError(PerdureError):
    """A pipeline, step or app that cannot work. The author mends the definition."""


class InvalidArgument(PerdureError, ValueError):
    """An argument is out of range; nothing was written. The caller mends the call."""


class PayloadError(PerdureError, ValueError):
    """A value does not fit its declared type or cannot be stored exactly [P-2].

    Args:
        path: where in the value, for instance `$.items[3].price`; `$` is the whole value.
        problem: what is wrong there, for people.
    """

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path = path
        self.problem = problem


class NotFound(PerdureError, LookupError):
    """There is no such run, pipeline or step."""


class ConflictError(PerdureError):
    """The request contradicts what is already recorded; nothing was written."""


class ScheduleConflict(ConflictError):
    """The slot is busy with a run of different input [R-5]. The caller decides.

    Args:
        run_id: the run that occupies the slot.
    """

    def __init__(self, message: str, run_id: str) -> None:
        super().__init__(message)
        self.run_id = run_id


class MutexConflict(ScheduleConflict):
    """A run has a mutex that the submission needs for its resource [R-10]. The caller tries again after its end.

    Args:
        run_id: the run that has it.
        mutex: its name.
        pipeline: the run's pipeline.
    """

    def __init__(self, message: str, run_id: str, mutex: str, pipeline: str) -> None:
        super().__init__(message, run_id)
        self.mutex = mutex
        self.pipeline = pipeline


class QueueFull(ConflictError):
    """As many runs wait for a limit as may [R-11]. The caller tries again when some have ended, or gives it up.

    Args:
        limit: the limit's id.
        key: which of its keys; empty where it counts all together.
    """

    def __init__(self, message: str, limit: str, key: str) -> None:
        super().__init__(message)
        self.limit = limit
        self.key = key


class KeyTaken(ConflictError):
    """A fact key is taken by different content [J-5]. The caller decides.

    Args:
        key: the guard or fact key, for instance `terminal` or `cancel`.
    """

    def __init__(self, message: str, key: str) -> None:
        super().__init__(message)
        self.key = key


class NotAllowed(ConflictError):
    """The run is not in a state that permits the request; the message says which state it is in."""


class StoreUnavailable(PerdureError):
    """The store does not answer. Nothing was lost; try again [R-8]."""


class StoreInUse(StoreUnavailable):
    """Another engine owns the store [R-2]; the message names the holder."""


class StoreUnusable(StoreUnavailable):
    """The file or server is foreign, damaged, too new, read-only or on a disk that cannot be trusted.

    Trying again does not help: an operator acts on what the message says.
    """


class ArchiveUnavailable(PerdureError):
    """An archive does not answer, is not there, is full or may not be written. No run was removed for it [R-9]."""


class InvalidRun(PerdureError):
    """The current deployment cannot continue the run safely [D-1]. An operator or a deployment mends it.

    Args:
        run_id: the run.
        reason: a stable word, for instance `step-missing`.
        detail: a sentence for people.
    """

    def __init__(self, run_id: str, reason: str, detail: str) -> None:
        super().__init__(f"run {run_id} is invalid ({reason}): {detail}")
        self.run_id = run_id
        self.reason = reason
        self.detail = detail


class CorruptJournal(PerdureError):
    """Facts that cannot follow each other, or rows that do not match their hashes [J-8, J-11]. Stop and look.

    Args:
        run_id: the run.
        seq: sequence number of the first fact that is wrong.
        problem: what is wrong, naming the fact.
    """

    def __init__(self, run_id: str, seq: int, problem: str) -> None:
        super().__init__(f"journal of run {run_id} is corrupt at fact {seq}: {problem}")
        self.run_id = run_id
        self.seq = seq
        self.problem = problem
