"""All live runs by what they have behind them, from a store or from an export of one without payloads [D-6]."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from perdure.core.check import CheckReport, LedgerRuns, PipelineCheck, check_pipeline
from perdure.core.future import Candidate
from perdure.core.journal import NewerJournal
from perdure.core.signature import Ledger, decode_ledger, ledger_of
from perdure.core.topology import StepSpec, Topology, decode_steps
from perdure.errors import CorruptJournal, InvalidArgument
from perdure.ports.store import RunFilter, RunPage, Store
from perdure.runtime.loading import projected

CENSUS_VERSION = 1
_PAGE = 200


class Counted(msgspec.Struct, frozen=True):
    """Live runs of a pipeline with one ledger; as `LedgerRuns`."""

    pipeline: str
    count: int
    example_run: str
    oldest_us: int
    ledger: Ledger


class Deployed(msgspec.Struct, frozen=True):
    """One generation of a pipeline."""

    pipeline: str
    generation: int
    at_us: int
    steps: tuple[StepSpec, ...]


class Census(msgspec.Struct, frozen=True):
    """What `check` needs to know of a store: ids of steps and runs, numbers and times, and nothing that was paid.

    Attributes:
        at_us: when it was taken.
        deployments: oldest first.
        unreadable: live runs whose journal cannot be read.
    """

    at_us: int
    deployments: tuple[Deployed, ...]
    ledgers: tuple[Counted, ...]
    unreadable: tuple[str, ...] = ()
    perdure_ledgers: int = CENSUS_VERSION

    def former(self, pipeline: str) -> list[Topology]:
        """Its topologies, in order of generation."""
        known = sorted((d for d in self.deployments if d.pipeline == pipeline), key=lambda d: d.generation)
        return [Topology(d.steps) for d in known]

    def of(self, pipeline: str) -> list[LedgerRuns]:
        """Its live runs."""
        entries = (entry for entry in self.ledgers if entry.pipeline == pipeline)
        return [LedgerRuns(e.ledger, e.count, e.example_run, e.oldest_us) for e in entries]


def encode_census(census: Census) -> bytes:
    """The export: JSON, one ledger a line."""
    rest = {name: getattr(census, name) for name in ("perdure_ledgers", "at_us", "deployments", "unreadable")}
    lines = b",\n".join(msgspec.json.encode(entry, order="deterministic") for entry in census.ledgers)
    return msgspec.json.encode(rest)[:-1] + b',"ledgers":[\n' + lines + b"\n]}\n"


def decode_census(data: bytes) -> Census:
    """An export as `encode_census` wrote it.

    Raises:
        InvalidArgument: it is none, or one of a newer release.
    """
    try:
        census = msgspec.json.decode(data, type=Census)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"this is no export of ledgers: {error}") from None
    if census.perdure_ledgers > CENSUS_VERSION:
        raise InvalidArgument(
            f"an export of version {census.perdure_ledgers}; this release reads up to {CENSUS_VERSION}"
        )
    return census


async def take_census(store: Store, now_us: int) -> Census:
    """Count the live runs of a store. Costs a pass over the index rows, and a load of each run that is owned."""
    found: dict[tuple[str, bytes], Counted] = {}
    unreadable: list[str] = []
    for entry in await store.ledgers():
        if entry.ledger:
            ledger = decode_ledger(entry.ledger)
        else:
            try:
                folded = await _folded(store, entry.example_run)
            except (CorruptJournal, NewerJournal):
                unreadable.append(entry.example_run)
                continue
            if folded is None:
                continue
            ledger = folded
        _add(found, Counted(entry.pipeline, entry.count, entry.example_run, entry.oldest_us, ledger))
    unreadable += await _corrupt(store)
    deployments = await store.deployments()
    known = tuple(Deployed(d.pipeline, d.generation, d.at_us, decode_steps(d.steps)) for d in deployments)
    return Census(now_us, known, tuple(found.values()), tuple(sorted(set(unreadable))))


def _add(found: dict[tuple[str, bytes], Counted], entry: Counted) -> None:
    key = entry.pipeline, msgspec.json.encode(entry.ledger, order="deterministic")
    known = found.get(key)
    if known is not None:
        older = min(known, entry, key=lambda e: (e.oldest_us, e.example_run))
        entry = msgspec.structs.replace(older, count=known.count + entry.count)
    found[key] = entry


async def _folded(store: Store, run_id: str) -> Ledger | None:
    """The ledger of a run that the index says nothing of; None if it has ended or is gone."""
    loaded = await store.load(run_id)
    if loaded is None:
        return None
    p = await projected(store, loaded)
    return None if p.ended is not None else ledger_of(p)


async def _corrupt(store: Store) -> list[str]:
    found: list[str] = []
    page = RunPage((), None)
    while True:
        page = await store.list_runs(RunFilter(statuses=("corrupt",)), after=page.next, limit=_PAGE)
        found += [row.run.run_id for row in page.rows]
        if page.next is None:
            return found


def check(census: Census, new: Mapping[str, Candidate]) -> CheckReport:
    """What becomes of the live runs if `new` is deployed, by pipeline id; pure [D-6].

    A pipeline that has live runs and is not in `new` is left out: its runs become invalid.
    """
    names = sorted(new.keys() | {entry.pipeline for entry in census.ledgers})
    checks: list[PipelineCheck] = []
    for name in names:
        former = census.former(name)
        current = Candidate(former[-1].after(former)) if former else None
        candidate = new.get(name)
        if candidate is not None:
            candidate = candidate.over(candidate.topology.after(former))
        checks.append(check_pipeline(name, census.of(name), current, candidate))
    return CheckReport(tuple(checks), census.unreadable)
