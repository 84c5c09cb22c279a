"""Looking at a store on a server for `doctor`: its clock, what stands between, and who works there [R-2, R-3, D-4]."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from perdure.cli.diagnosis import Check
from perdure.cli.text import count, size
from perdure.cli.times import now_us, span
from perdure.runtime.workforce import WorkerInfo, lacking, workers_of

if TYPE_CHECKING:
    from perdure.ports.store import Store
    from perdure.storage.postgres.survey import Survey

ASKED = 8
SLOW_ANSWER_MS = 10.0
CLOCK_NOTED_US = 1_000_000
CLOCK_FAR_US = 5_000_000
SHOWN = 20
NEWEST = 18
"""The newest release of PostgreSQL that the tests were run against."""


async def server_checks(store: Store, info: Mapping[str, str | int]) -> tuple[list[Check], bool]:
    """What is special about a shared store; and whether anybody works there."""
    answers_ms, ahead_us = await _ask_clock(store)
    workers = await workers_of(store, now_us() - ahead_us)
    found = f"{info.get('location', '?')}, schema version {info.get('schema_version', '?')}"
    checks = [
        Check("store", "ok", f"{found}, {size(int(info.get('size_bytes', 0)))}"),
        check_commit(str(info.get("synchronous_commit", ""))),
        check_answers(answers_ms),
        check_clock(ahead_us),
        check_pooler(str(info.get("pooler", "none"))),
        check_workers(workers),
        *check_generations(workers),
    ]
    return checks, any(worker.state in ("alive", "draining") for worker in workers)


async def survey_checks(url: str) -> tuple[list[Check], bool]:
    """What can be said of server and role before the store is opened; and whether it can be."""
    from perdure.storage.postgres.place import Place
    from perdure.storage.postgres.survey import survey

    found = await survey(Place.of(url))
    return checks_of(found), check_rights(found).verdict != "fail"


def checks_of(found: Survey) -> list[Check]:
    """All that is looked at there."""
    return [
        check_release(found.version),
        check_rights(found),
        check_durability(durable=found.durable),
        check_autovacuum(found),
        check_listen(found),
        check_jit(found),
    ]


def check_rights(found: Survey) -> Check:
    """Whether the role may do what engines and clients do; making the tables asks for more, once."""
    role, schema = found.role, found.schema
    if not found.there and not found.may_create:
        advice = (
            f"open the store once as a role that may make its tables, or GRANT CREATE ON DATABASE {found.database} "
            f"TO {role}"
        )
        return Check("rights", "fail", f"{role} may not create the schema {schema}, which is not there", advice)
    if not found.there:
        return Check("rights", "ok", f"{role} may make the tables, which are not there yet")
    if found.missing:
        advice = (
            f"the owner writes: GRANT USAGE ON SCHEMA {schema} TO {role}; "
            f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {role}; "
            f"GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA {schema} TO {role}"
        )
        return Check("rights", "fail", f"{role} lacks {'; '.join(found.missing)}", advice)
    return Check("rights", "ok", f"{role} may do all that engines and clients need")


def check_release(version: int) -> Check:
    """The server's release; an older one than is supported is refused where the store is opened."""
    if version > NEWEST:
        advice = f"this release of perdure was tried with PostgreSQL up to {NEWEST}: try a newer one"
        return Check("server", "warn", f"PostgreSQL {version}", advice)
    return Check("server", "ok", f"PostgreSQL {version}")


def check_durability(*, durable: bool) -> Check:
    """Whether the server syncs at all."""
    if not durable:
        advice = "set both to on: without them a crash of the machine loses or damages what was committed"
        return Check("durability", "fail", "fsync or full_page_writes is off", advice)
    return Check("durability", "ok", "fsync and full_page_writes are on")


def check_autovacuum(found: Survey) -> Check:
    """Rows of runs change often: without vacuum every look for due runs takes longer from day to day."""
    advice = "looking for due runs gets slower from day to day without it: "
    if not found.autovacuum:
        return Check("autovacuum", "warn", "off", f"{advice}set autovacuum and track_counts to on")
    if found.unvacuumed:
        names = ", ".join(found.unvacuumed)
        reset = "; ".join(
            f"ALTER TABLE {found.schema}.{name} RESET (autovacuum_enabled)" for name in found.unvacuumed[:3]
        )
        return Check("autovacuum", "warn", f"off for {names}", advice + reset)
    return Check("autovacuum", "ok", "on")


def check_listen(found: Survey) -> Check:
    """Whether workers hear of each other's commits at once."""
    if found.hears is None:
        return Check("notifications", "ok", "none through the pooler; workers look instead")
    if found.hears:
        return Check("notifications", "ok", "arrive")
    advice = "name the pooler in the URL (pooler=transaction), or let workers connect to the server itself"
    return Check("notifications", "warn", "do not arrive; workers look for commits 10 to 50 times a second", advice)


def check_jit(found: Survey) -> Check:
    """Where a pooler keeps our own setting from the server."""
    if found.jit:
        advice = f"ALTER ROLE {found.role} SET jit = off: compiling a query for due runs takes longer than running it"
        return Check("jit", "warn", "on", advice)
    return Check("jit", "ok", "off")


async def _ask_clock(store: Store) -> tuple[list[float], int]:
    """How long answers take, and how far this machine's clock is ahead of the store's."""
    answers_ms: list[float] = []
    aheads_us: list[int] = []
    for _ in range(ASKED):
        sent_us, began_s = now_us(), time.perf_counter()
        there_us = await store.clock_us()
        took_s = time.perf_counter() - began_s
        answers_ms.append(took_s * 1_000)
        aheads_us.append(sent_us + round(took_s * 500_000) - (there_us if there_us is not None else sent_us))
    return answers_ms, round(statistics.median(aheads_us))


async def check_lacking(store: Store, overdue: Sequence[str]) -> list[Check]:
    """Of runs that are overdue, those that nobody who works now can take."""
    loaded = [found.row for run_id in overdue[:SHOWN] if (found := await store.load(run_id)) is not None]
    lacks = Counter((await lacking(store, loaded, await store.clock_us() or now_us())).values())
    advice = "`perdure workers` shows who works; start a worker with the code that is deployed"
    return [Check("missing worker", "warn", f"{count(n, 'overdue run')}: {text}", advice) for text, n in lacks.items()]


def check_commit(setting: str) -> Check:
    """Whether a commit is durable when it is answered."""
    if setting == "off":
        return Check("synchronous_commit", "fail", "off", "a crash of the server loses commits that were answered")
    return Check("synchronous_commit", "ok", setting)


def check_answers(times_ms: Sequence[float]) -> Check:
    """How far away the server is; a step of a run waits for it at least once."""
    median = statistics.median(times_ms)
    found = f"{median:.1f} ms (median of {len(times_ms)})"
    if median > SLOW_ANSWER_MS:
        return Check("round trip", "warn", found, "every step waits for the server: run workers near to it")
    return Check("round trip", "ok", found)


def check_clock(ahead_us: int) -> Check:
    """This machine's clock beside the store's, by which everything goes."""
    far = abs(ahead_us)
    if far < CLOCK_NOTED_US:
        return Check("clock", "ok", "as the store's")
    found = f"{span(far)} {'ahead of' if ahead_us > 0 else 'behind'} the store's, which counts"
    if far < CLOCK_FAR_US:
        return Check("clock", "ok", found)
    return Check("clock", "warn", found, "set it: logs of this machine cannot be compared with the journal")


def check_pooler(kind: str) -> Check:
    """What stands between this machine and the server."""
    if kind == "transaction":
        return Check("pooler", "ok", "in transaction mode; commits of others are looked for, 10 to 50 times a second")
    if kind == "unnamed":
        advice = "if it is in transaction mode, add pooler=transaction to the URL; session mode needs nothing"
        return Check("pooler", "warn", "there is one, and the URL does not say so", advice)
    return Check("pooler", "ok", "none")


def check_workers(workers: Sequence[WorkerInfo]) -> Check:
    """Who works there."""
    states = Counter(worker.state for worker in workers)
    found = ", ".join(f"{states[state]} {state}" for state in ("alive", "draining", "silent", "dead") if states[state])
    if states["silent"] and not states["alive"]:
        advice = "nobody is there to find the silent ones dead: `perdure worker APP` takes over what they had"
        return Check("workers", "warn", found, advice)
    if states["silent"]:
        return Check("workers", "warn", found, "the silent ones are found dead unless they renew soon")
    return Check("workers", "ok", found or "none; `perdure worker APP` starts some")


def check_generations(workers: Sequence[WorkerInfo]) -> list[Check]:
    """Workers with a superseded topology: usual while a deployment is under way, and not for long [D-4]."""
    working = [worker for worker in workers if worker.state in ("alive", "draining")]
    behind = Counter(pipeline for worker in working for pipeline in worker.superseded)
    advice = "they serve only runs that no newer one advanced: end the deployment, or roll back with `perdure deploy`"
    return [
        Check("generations", "warn", f"{count(number, 'worker')} with a superseded one of {pipeline}", advice)
        for pipeline, number in sorted(behind.items())
    ]
