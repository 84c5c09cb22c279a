"""What a store has noted of runs, beside what their facts ask for: part of `verify` [J-11]."""

from __future__ import annotations

from typing import assert_never

from perdure.core.facts import RunSubmitted
from perdure.core.journal import decode_facts
from perdure.core.plan import Parked
from perdure.core.units import resting
from perdure.ports.listing import FOR_A_LIMIT
from perdure.ports.notes import Astray, Notes
from perdure.ports.store import LoadedRun, NewRun, RunRow, Store
from perdure.runtime.indexing import new_run
from perdure.runtime.info import Finding
from perdure.runtime.loading import projected

ANEW = "`perdure verify --repair` writes it anew"
ASTRAY = 100
"""So many notes of nobody are named of each kind."""


async def check_notes(store: Store, loaded: LoadedRun, *, repair: bool) -> list[Finding]:
    """What is noted wrongly of a run whose facts and row are right; with `repair` its slot and mutexes are noted anew
    [J-11]."""
    row, run_id = loaded.row, loaded.row.run.run_id
    notes = await store.notes.of(run_id)
    submitted = decode_facts(run_id, 1, loaded.rows[0].facts)[0] if loaded.rows else None
    if notes is None or not isinstance(submitted, RunSubmitted):
        return []
    new = new_run(submitted, row.run.submitted_us)
    wrong = [*slot_problems(row, notes), *mutex_problems(new, row, notes)]
    other = [*place_problems(row, notes), *await _wait_problems(store, loaded, notes)]
    if not wrong and not other:
        return []
    again = await store.load(run_id)  # who has written in between has written the notes, too
    if again is None or again.row != row:
        return []
    if wrong and repair:
        await store.notes.note_anew(row.locator, new)
    return [Finding(run_id, 0, problem) for problem in (*wrong, *other)]


def slot_problems(row: RunRow, notes: Notes) -> list[str]:
    """Of a run that is to have its slot, and one that is to have given it back [M-1, R-5]."""
    if row.run.slot_key is None:
        return []
    if row.ended_us is None and not row.run.waits and not notes.slot:
        return [f"it has lost its slot: another run may have the same resource; {ANEW} unless one has"]
    if row.ended_us is not None and notes.slot and not row.run.slot_once:
        return [f"it has ended and still has its slot, so that nobody gets it; {ANEW}"]
    return []


def mutex_problems(new: NewRun, row: RunRow, notes: Notes) -> list[str]:
    """Of a run and the mutexes that it was submitted with [R-10]."""
    names = new.mutexes if row.ended_us is None else ()
    needed = {(new.tenant, new.resource, name) for name in names}
    lost, kept = needed - notes.mutexes, notes.mutexes - needed
    return [
        *(f"it has lost the mutex {_mutex(each)}: others may take it; {ANEW} unless one has" for each in sorted(lost)),
        *(
            f"it has the mutex {_mutex(each)} that is none of its own, so that nobody gets it; {ANEW}"
            for each in sorted(kept)
        ),
    ]


def _mutex(mutex: tuple[str, str, str]) -> str:
    tenant, resource, name = mutex
    return f"{name!r} of {resource!r}" + (f" of tenant {tenant!r}" if tenant != "default" else "")


def place_problems(row: RunRow, notes: Notes) -> list[str]:
    """Of a run that waits for a place, and of one that needs none any more [R-11]."""
    if row.ended_us is not None and (notes.places or notes.in_line):
        names = ", ".join(_place(*place) for place in sorted(notes.places)) or "a limit"
        return [f"it has ended and still has a place under {names}; `perdure verify --repair` gives it to others"]
    state = row.state
    waits = state.status == "ready" and not state.worker and state.due_us is None and not row.waiting
    if waits and state.reason.startswith(FOR_A_LIMIT) and not notes.in_line:
        return [f"it {state.reason}, and does not stand in line; `perdure retry {row.run.run_id}` lets it look again"]
    return []


def _place(limit: str, key: str) -> str:
    return f"limit {limit!r}" + (f" key {key!r}" if key else "")


async def _wait_problems(store: Store, loaded: LoadedRun, notes: Notes) -> list[str]:
    """Of a run that waits for others, and the notes that wake it [R-16]."""
    row, run_id = loaded.row, loaded.row.run.run_id
    if row.left is None:
        if notes.awaits:
            return [
                "it is noted to wait for other runs and does not: they stay; `perdure verify --repair` lets them go"
            ]
        return []
    if row.state.status != "ready" or row.left <= 0:
        return []
    rest = resting(await projected(store, loaded))
    if not isinstance(rest, Parked):
        return []
    missing = [target for target in rest.awaits if target not in notes.awaits and await _is_live(store, target)]
    if not missing:
        return []
    again = f"`perdure hold {run_id}` and `perdure release {run_id}` note it anew"
    return [f"it waits for run {missing[0]}, whose end would not wake it; {again}"]


async def _is_live(store: Store, run_id: str) -> bool:
    found = await store.load(run_id)
    return found is not None and found.row.ended_us is None


async def astray(store: Store) -> list[Finding]:
    """Notes of runs that are not there, and counts that are wrong."""
    return [Finding("", 0, _astray(found)) for found in await store.notes.astray(ASTRAY)]


def _astray(found: Astray) -> str:
    name, gone = found.name.strip(), "a run that is not there; `perdure verify --repair` removes it"
    match found.kind:
        case "mutex":
            return f"mutex {name} belongs to {gone}"
        case "wait":
            return f"run {name} is waited for by {gone}"
        case "place":
            return f"a place under limit {name} belongs to {gone}"
        case "line":
            return f"in line for limit {name} stands {gone}"
        case "room":
            return f"room in the queue of limit {name} belongs to {gone}"
        case "count":
            return (
                f"as many places of limit {name} are counted as taken as are not; `perdure verify --repair` counts anew"
            )
        case _ as unreachable:
            assert_never(unreachable)
