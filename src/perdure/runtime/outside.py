"""Facts from outside the owning worker: loaded, admitted, appended at the tail, as often as it takes [J-6]."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import assert_never

import msgspec

from perdure.core import admission
from perdure.core.facts import Fact
from perdure.core.projection import Projection
from perdure.core.reconciler import reconcile
from perdure.core.reducer import fold_all
from perdure.core.topology import Topology
from perdure.define.pipeline import AnyPipeline
from perdure.errors import InvalidArgument, KeyTaken, NotAllowed, NotFound, PayloadError
from perdure.ports.clock import System
from perdure.ports.joining import Journal
from perdure.ports.store import Committed, Conflict, RunRow
from perdure.runtime.appending import append_and_tell, seal
from perdure.runtime.arguments import check_text
from perdure.runtime.indexing import facts_state
from perdure.runtime.loading import projected
from perdure.runtime.run import UNSET

OUTSIDE = 0
"""The fencing token of appends from outside the owning worker."""

Ask = Callable[[Projection], admission.Admission]


async def admit(
    journal: Journal,
    system: System,
    run_id: str,
    ask: Ask,
    tell: Callable[[str], None],
    *,
    permit: Callable[[RunRow], None] | None = None,
    dry_run: bool = False,
) -> bool:
    """Load, ask, append; again if somebody appended first, without limit. A duplicate is not written [J-4].

    Args:
        tell: called with the run id when something was written, whatever has become of the caller [R-16].
        permit: raises where the run's index row forbids it.
        dry_run: ask only.

    Returns:
        Whether anything was written, or would have been.

    Raises:
        NotFound: there is no such run.
        KeyTaken: a guard key is taken by other content [J-5].
        NotAllowed: the run's state does not permit it.
    """
    pause_s = 0.01
    while True:
        loaded = await journal.load(run_id)
        if loaded is None:
            raise NotFound(f"there is no run {run_id!r}")
        p = await projected(journal, loaded)
        if permit is not None:
            permit(loaded.row)
        match ask(p):
            case admission.Admitted(fact, more):
                facts = [fact, *more]
                if dry_run or await _append(journal, system, p, facts, loaded.row, tell):
                    return True
                if p.ended is not None and loaded.row.state.worker:  # a worker has picked it, and is about to look
                    await asyncio.sleep(pause_s)
                    pause_s = min(pause_s * 2, 0.5)
            case admission.Duplicate():
                return False
            case admission.Taken(key, problem):
                raise KeyTaken(f"run {run_id}: {problem}", key)
            case admission.NotPermitted(problem):
                raise NotAllowed(f"run {run_id}: {problem}")
            case _ as unreachable:
                assert_never(unreachable)


async def _append(
    journal: Journal, system: System, p: Projection, facts: list[Fact], row: RunRow, tell: Callable[[str], None]
) -> bool:
    """Append facts. A run that was judged invalid stays known as such: its open attempt was not lost [D-2, M-17]."""
    now_us = system.now_us()
    fold_all(p, facts, now_us)
    append = seal(p, facts, now_us, system.append_id(), OUTSIDE)
    build = row.state.build if p.ended is None else ""
    index = facts_state(p, now_us)
    if row.waiting and index.status == "ready":  # its slot is still another's; the store says when it is due
        index = msgspec.structs.replace(index, reason=row.state.reason)
    if index.awaits:  # an engine looks, and waits for them again: it has to know that somebody waits
        index = msgspec.structs.replace(index, awaits=(), need=0, at_us=0, due_us=now_us)
    append.index = msgspec.structs.replace(index, build=build)
    result = await append_and_tell(journal, append, tell)
    if isinstance(result, (Committed, Conflict)):
        return isinstance(result, Committed)
    raise NotFound(f"there is no run {p.run_id!r}")


class Verdict(msgspec.Struct, frozen=True):
    """An operator's word on the next operation: exactly one of `value`, `skip` and `fail` [R-17]."""

    step: str | None
    value: object
    skip: bool
    fail: str | None
    note: str
    actor: str

    def check(self) -> None:
        """Refuse words that cannot be meant.

        Raises:
            InvalidArgument: not exactly one way to resolve, or text that cannot be stored.
        """
        if (self.value is not UNSET) + self.skip + (self.fail is not None) != 1:
            raise InvalidArgument("give exactly one of value, skip=True and fail='why'")
        for what, text in (("note", self.note), ("actor", self.actor), ("fail", self.fail or "")):
            check_text(what, text)


def resolution(
    p: Projection,
    topology: Topology,
    pipelines: Mapping[str, AnyPipeline],
    verdict: Verdict,
    at_us: int,
    payload_limit: int | None,
) -> admission.Admission:
    """The answer to a verdict on a run; a value is checked against the step's state type where that is known.

    Raises:
        PayloadError: the value does not fit, or is over the limit [P-4].
        InvalidArgument: the state's type is not known here and the value is not JSON.
    """
    v = verdict
    if v.skip:
        request = admission.ResolveRequest("skip", v.actor, v.step, note=v.note)
    elif v.fail is not None:
        request = admission.ResolveRequest("fail", v.actor, v.step, message=v.fail, note=v.note)
    else:
        step = _next_step(p, topology)
        pipeline = pipelines.get(p.submitted.pipeline) if p.submitted is not None else None
        refused = step is None or v.step not in (None, step)  # below, with the reason
        state = b"null" if refused or p.failure is not None else _state(pipeline, step, v.value)
        if payload_limit is not None and len(state) > payload_limit:
            raise PayloadError("$", f"the value has {len(state):,} bytes, the limit is {payload_limit:,}")
        request = admission.ResolveRequest("value", v.actor, v.step, state, note=v.note)
    return admission.admit_resolve(p, topology, request, at_us)


def _next_step(p: Projection, topology: Topology) -> str | None:
    """The step of the next operation, where there is one; a hold does not hide it."""
    held, p.held = p.held, None
    step: str | None = getattr(reconcile(p, topology), "step", None)
    p.held = held
    return step


def _state(pipeline: AnyPipeline | None, step: str | None, value: object) -> bytes:
    """The encoded state that an operator gives."""
    definition = pipeline.steps.get(step) if pipeline is not None and step is not None else None
    if definition is not None:
        return definition.codec.encode(definition.codec.decode(value) if isinstance(value, msgspec.Raw) else value)
    if not isinstance(value, msgspec.Raw):
        raise InvalidArgument("the pipeline is not known here, so its state type is not either; name the app")
    try:
        msgspec.json.decode(value)
    except msgspec.MsgspecError as error:
        raise PayloadError("$", f"not JSON: {error}") from None
    return bytes(value)
