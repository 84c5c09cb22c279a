"""Whatever goes wrong with one run hurts that run only, and leaves it with an owner or a due time [R-16]."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine

import msgspec

from perdure.core.journal import NewerJournal
from perdure.core.plan import NotOwner
from perdure.core.projection import Projection
from perdure.errors import CorruptJournal, StoreUnavailable, StoreUnusable
from perdure.runtime.host import Host
from perdure.runtime.indexing import corrupt_state, facts_state
from perdure.runtime.live import LiveRun, Lost
from perdure.runtime.loading import projected

logger = logging.getLogger("perdure")


async def guarded(host: Host, live: LiveRun, work: Callable[[], Coroutine[object, object, None]]) -> None:
    """Await what `work` begins, the life of an owned run.

    When it breaks, the run is due again later, or quarantined, or dropped.

    Raises:
        GeneratorExit: the loop is gone, and this coroutine is being closed.
    """
    run_id = live.p.run_id
    due_us: int | None = None
    try:
        await work()
    except (Lost, NotOwner):
        if not live.token and not live.lease.over:
            host.avoid(
                run_id
            )  # never ours: if it is nobody's, either, its index row is wrong, and the store calls it due
        logger.warning("run %s was taken over by another worker or removed; dropped here", run_id)
        host.fenced()
    except BaseException as error:
        if isinstance(error, GeneratorExit) and not _is_running(live):
            raise
        if not host.stopped:
            due_us = await _let_go(host, run_id, error)
        elif not isinstance(error, asyncio.CancelledError):  # cancelled: the engine was aborted
            logger.error("run %s waits for the store: %s", run_id, error)
    finally:
        if live.tx is not None:
            live.tx.drop()
        host.release(live, due_us)
        host.waiters.wake(run_id)


def _is_running(live: LiveRun) -> bool:
    """Whether the run's task is what the loop executes now."""
    try:
        return live.task is not None and asyncio.current_task() is live.task
    except RuntimeError:
        return False


async def _let_go(host: Host, run_id: str, error: BaseException) -> int | None:
    """Give up a run that this engine cannot go on with, in the store too; when it is due again [R-16].

    It is tried until it is written; if the engine stops meanwhile, the next owner takes the run over.
    """
    if isinstance(error, (CorruptJournal, NewerJournal)) and await quarantine(host, run_id, error):
        return None
    until_us = host.avoid(run_id)
    wait_s = (until_us - host.system.now_us()) / 1_000_000
    if isinstance(error, StoreUnavailable):
        logger.error("run %s waits for the store, it is tried again in %.1f s: %s", run_id, wait_s, error)
    else:
        logger.error("run %s: a bug in the engine; it is tried again in %.1f s", run_id, wait_s, exc_info=error)
    delay_s = 0.1
    while not host.stopped:
        try:
            return await _due_later(host, run_id, until_us)
        except StoreUnusable:
            return None
        except _TailMoved:
            continue
        except (CorruptJournal, NewerJournal) as problem:
            if await quarantine(host, run_id, problem):
                return None
        except Exception as problem:
            logger.warning("run %s could not be let go, trying again in %.1f s: %s", run_id, delay_s, problem)
        if host.draining or isinstance(error, asyncio.CancelledError):
            return None
        await asyncio.sleep(delay_s)
        delay_s = min(delay_s * 2, 5.0)
    return None


async def give_back(host: Host, run_id: str) -> None:
    """Make a run due that the index calls this worker's, claimed, and that this worker does not have [R-16].

    It had it, and let it go or ended it; then the server came back without those last rows [J-2].
    """
    try:
        await _due_later(host, run_id, host.system.now_us())
    except _TailMoved:
        return  # somebody appended: it is looked at again with the next beat
    except (CorruptJournal, NewerJournal) as problem:
        await quarantine(host, run_id, problem)


class _TailMoved(Exception):  # a signal: somebody appended first
    """Read the run again."""


async def _due_later(host: Host, run_id: str, until_us: int) -> int | None:
    """Write that nobody owns the run and when it is due; when, or None where it rests already or is gone."""
    loaded = await host.store.load(run_id)
    if loaded is None:
        return None
    row, now_us = loaded.row.state, host.system.now_us()
    if row.worker not in ("", host.worker) or (not row.worker and (row.due_us is None or row.due_us > now_us)):
        return None
    p = await projected(host.store, loaded)
    state = facts_state(p, now_us) if row.worker else row
    due_us = None if state.due_us is None else max(state.due_us, until_us)
    if state.awaits and state.status == "ready":  # it looks again then, and registers anew
        due_us = until_us
    later = msgspec.structs.replace(state, due_us=due_us, awaits=(), need=0, at_us=0, tail_hash=p.row_hash)
    if not await host.store.set_index(p.locator, later, p.row_seq):
        host.fenced()  # it may be that this worker was found dead
        raise _TailMoved
    return due_us


async def quarantine(host: Host, run_id: str, error: CorruptJournal | NewerJournal) -> bool:
    """Mark a run corrupt, so that nobody touches it until somebody looked; whether that is written [J-8, J-13].

    Where it is not, the run is left alone for a while.
    """
    try:
        loaded = await host.store.load_all_rows(run_id)
        if loaded is not None:
            tail_seq = loaded.rows[-1].first_seq if loaded.rows else 0
            state = corrupt_state(loaded.row.state.token, str(error))
            if not await host.store.set_index(loaded.row.locator, state, tail_seq):
                raise _TailMoved
    except Exception as problem:
        host.avoid(run_id)
        logger.error("run %s could not be quarantined: %r", run_id, problem)
        return False
    logger.error("%s", error)
    host.waiters.wake(run_id)
    if host.observers:
        host.emit("corrupt", Projection(run_id), detail=str(error))
    return True
