"""What engines need of a store for runs that rest: what they rest with, and making them due to be judged [D-2, D-6]."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from perdure.ports.records import LedgerCount


class RestStore(Protocol):
    """Part of `Store`. What a run rests with is written by `IndexState.signature` and `IndexState.ledger`."""

    async def ledgers(self) -> Sequence[LedgerCount]:
        """Every run that is neither terminal nor corrupt, by pipeline and ledger, in one consistent read [D-6].

        By pipeline, then signature, then id.
        """
        ...

    async def resting_ledgers(self, pipeline: str, /) -> Mapping[bytes, bytes]:
        """The ledgers with which runs of a pipeline rest, by signature [D-6].

        In a shared store this costs what it returns, however many runs have each: any worker may ask now and then.
        """
        ...

    async def wake_resting(self, pipeline: str, signature: bytes, now_us: int, /) -> int:
        """Make `ready` runs of `pipeline` that rest with the ledger of `signature` due now, if they are not by then;
        those that wait for their slot are left alone. Returns how many [D-2].
        """
        ...

    async def wake_invalid(self, generations: Mapping[str, int], build: str | None, now_us: int, /) -> int:
        """Make invalid runs of these pipelines due now that were judged under another generation than the one given, or
        another build [D-2]. Without a build: those that were judged under an older generation. Returns how many.

        Where there are none, as nearly always, that is one look, however many pipelines are named.
        """
        ...
