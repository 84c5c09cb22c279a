"""Sealing planned facts into an append: numbering, encoding, hashing [J-2, J-11]."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from perdure.core.chain import chain_hash
from perdure.core.facts import Fact
from perdure.core.journal import encode_facts
from perdure.core.projection import Projection
from perdure.ports.joining import Journal
from perdure.ports.store import Append, AppendResult, Committed


class SlotFreed(Exception):  # a signal
    """The run that occupied the slot of a submission was removed meanwhile: submit again."""


def seal(p: Projection, facts: list[Fact], at_us: int, append_id: bytes, token: int) -> Append:
    """The append of `facts`, which are folded into `p` already; `p` then stands at the new row.

    The caller adds the index state. A refused append leaves `p` ahead of the journal: drop it and read again.
    """
    data = encode_facts(facts)
    count = len(facts)
    first_seq = p.version - count + 1
    prev_seq, prev_hash = p.row_seq, p.row_hash
    row_hash = chain_hash(prev_hash, first_seq, count, at_us, append_id, data)
    p.row_seq, p.row_hash = first_seq, row_hash
    return Append(p.run_id, p.locator, first_seq, count, at_us, append_id, data, row_hash, prev_seq, prev_hash, token)


async def append_and_tell(journal: Journal, append: Append, tell: Callable[[str], None]) -> AppendResult:
    """Append for a caller who may be cancelled meanwhile: that stops neither the append nor the telling [J-14, R-16].

    In a transaction of the caller's both are its own business: whoever has to know hears of the commit [I-1].

    Args:
        tell: called with the run id once the append is committed, before the caller goes on.
    """
    future = journal.append(append)
    if not isinstance(future, asyncio.Future):
        return await future

    def landed(done: asyncio.Future[AppendResult]) -> None:
        if not done.cancelled() and done.exception() is None and isinstance(done.result(), Committed):
            tell(append.run_id)

    future.add_done_callback(landed)
    return await asyncio.shield(future)
