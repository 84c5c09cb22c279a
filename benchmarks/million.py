"""A PostgreSQL store with very many live runs, written by COPY: index rows, journals and ledgers as an engine leaves
them, so that claims, `check`, lists, `verify` and the engine itself work on them."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec
import psycopg
from msgspec.structs import replace

from benchmarks.checking import line, past, pasts, resting
from perdure import App
from perdure.codec.json import codec_of
from perdure.core.chain import chain_hash
from perdure.core.facts import RunSubmitted
from perdure.core.ids import encode_run_id
from perdure.define.pipeline import Bound
from perdure.ports.store import IndexState
from perdure.runtime.indexing import new_run
from perdure.runtime.system import RealSystem
from perdure.storage.postgres.place import Place
from perdure.storage.postgres.rows import NEW_COLUMNS, STATE_COLUMNS, new_values, state_values

BATCH = 20_000
DAY_US = 86_400_000_000
SPREAD_US = 60 * DAY_US
"""Over how long runs were submitted, up to now."""
DIGEST = codec_of(int).digest(1).hex()

_JOURNAL = "run, first_seq, count, at_us, append_id, hash, facts"


@dataclass(frozen=True)
class Crowd:
    """Runs that were begun and rest in a backoff: step i of a pipeline failed, and is tried again later.

    Another generation than 1, and a hold, are in the index row alone.

    Attributes:
        runs: how many.
        pipelines: how many pipelines share them evenly, see `pipeline_id`; `only` names one instead.
        tenants: how many tenants share them evenly.
        ledgers: at how many distinct places the runs of one pipeline stand.
        generation: which generation of the pipeline advanced them.
        due_in_us: when the first is due, from now; negative: is due since. The others follow within an hour.
        held_every: of so many one is held; 0: none.
        annotated_every: of so many one has annotations; 0: none.
    """

    runs: int = 1_000_000
    pipelines: int = 10
    only: int | None = None
    tenants: int = 1_000
    ledgers: int = 174
    generation: int = 1
    due_in_us: int = DAY_US
    held_every: int = 997
    annotated_every: int = 0


@dataclass(frozen=True)
class _Kind:
    """What runs at one place have in common."""

    facts: bytes
    count: int
    at_us: int
    state: IndexState


def pipeline_id(number: int) -> str:
    """The id of a pipeline of the crowd."""
    return f"checked-{number}"


def bound(pipelines: int = 10, *, edited: bool = False) -> list[Bound]:
    """The pipelines of the crowd, for an app; `edited` as in `benchmarks.checking.line`."""
    return [line(edited=edited, pipeline=pipeline_id(number)).bind() for number in range(pipelines)]


async def fill(url: str, *crowds: Crowd) -> None:
    """Make the store if need be, deploy its pipelines, and add the runs; everything is vacuumed and analyzed then."""
    most = max(crowd.pipelines for crowd in crowds)
    async with App(*bound(most), store=url).client() as client:
        await client.deploy()
    await asyncio.to_thread(_copy, url, crowds)


def _copy(url: str, crowds: Sequence[Crowd]) -> None:
    place = Place.of(url)
    system = RealSystem()
    with psycopg.Connection[tuple[int]].connect(place.conninfo, autocommit=True) as con:
        con.execute(f'SET search_path = "{place.schema}"'.encode())
        con.execute("SET synchronous_commit = off")
        for crowd in crowds:
            found = con.execute("SELECT coalesce(max(n), 0) FROM run").fetchone()
            first = 1 if found is None else found[0] + 1
            kinds = _kinds(crowd, system)
            con.cursor().executemany(
                "INSERT INTO ledger (signature, ledger) VALUES (%s, %s) ON CONFLICT DO NOTHING",
                {kind.state.signature: (kind.state.signature, kind.state.ledger) for kind in kinds}.values(),
            )
            rows = _rows(crowd, kinds, first, system)
            while batch := list(itertools.islice(rows, BATCH)):
                for part, (table, columns) in enumerate(
                    (("run", f"n, {NEW_COLUMNS}, {STATE_COLUMNS}"), ("journal", _JOURNAL))
                ):
                    with con.cursor().copy(f"COPY {table} ({columns}) FROM STDIN".encode()) as copy:
                        copy.write("".join([pair[part] for pair in batch]))
        con.execute("SELECT setval(pg_get_serial_sequence('run', 'n'), (SELECT max(n) FROM run))")
        con.execute("VACUUM ANALYZE")


def _kinds(crowd: Crowd, system: RealSystem) -> list[_Kind]:
    retried_us = system.now_us() + crowd.due_in_us - DAY_US  # where a retry comes a day after its failure
    kinds: list[_Kind] = []
    used = min(crowd.ledgers, crowd.runs // crowd.pipelines + 1)
    for place, (stop, skipped) in enumerate(itertools.islice(pasts(), used)):
        at_us = retried_us + place * 3_600_000_000 // crowd.ledgers
        facts = past(stop, skipped, at_us)
        append = resting(system, facts, at_us)
        if append.index is None:
            raise RuntimeError("a run without a state")
        state = replace(append.index, generation=crowd.generation)
        kinds.append(_Kind(msgspec.json.encode(facts), len(facts), at_us, state))
    return kinds


def _rows(crowd: Crowd, kinds: Sequence[_Kind], first: int, system: RealSystem) -> Iterator[tuple[str, str]]:
    """A line of `run` and two of `journal` for each run: its submission, and all that came later."""
    dice = random.Random(first)
    begin_us = system.now_us() - SPREAD_US
    for number in range(crowd.runs):
        at = number % crowd.pipelines if crowd.only is None else crowd.only
        kind = kinds[number // crowd.pipelines % len(kinds)]
        submitted_us = begin_us + number * SPREAD_US // crowd.runs
        run_id = encode_run_id(submitted_us, dice.getrandbits(50))
        annotated = crowd.annotated_every and number % crowd.annotated_every == 0
        submitted = RunSubmitted(
            run_id,
            pipeline_id(at),
            msgspec.Raw(b"1"),
            DIGEST,
            run_id,
            f"tenant-{number // crowd.pipelines % crowd.tenants:05}",
            annotations={"customer": f"c{number % 997}"} if annotated else {},
        )
        first_row = b"[%b]" % msgspec.json.encode(submitted)
        first_id, second_id = system.append_id(), system.append_id()
        first_hash = chain_hash(b"", 1, 1, submitted_us, first_id, first_row)
        digest = chain_hash(first_hash, 2, kind.count, kind.at_us, second_id, kind.facts)
        held = crowd.held_every and number % crowd.held_every == crowd.held_every - 1
        state = replace(
            kind.state,
            tail_hash=digest,
            status="held" if held else "ready",
            due_us=None if held else kind.state.due_us,
            ledger=b"",
        )
        n = first + number
        yield (
            _line(n, *new_values(new_run(submitted, submitted_us), slot_held=False), *state_values(state)),
            _line(n, 1, 1, submitted_us, first_id, first_hash, first_row.decode())
            + _line(n, 2, kind.count, kind.at_us, second_id, digest, kind.facts.decode()),
        )


def _line(*values: str | bytes | int | None) -> str:
    return "\t".join([_text(value) for value in values]) + "\n"


def _text(value: str | bytes | int | None) -> str:
    if value is None:
        return r"\N"
    if isinstance(value, bytes):
        return r"\\x" + value.hex()
    if isinstance(value, str):
        return value.replace("\\", r"\\") if "\\" in value else value
    return str(value)
