"""The archive port: where runs go before retention removes them. Named pieces of bytes, each written once [R-9]."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Archive(Protocol):
    """A folder, or a bucket of an object store. Given by `open_archive`; any number of processes may use one at once.

    All coroutines may raise `ArchiveUnavailable`.
    """

    @property
    def location(self) -> str:
        """For messages; no secrets in it."""
        ...

    async def open(self, *, create: bool) -> None:
        """Make sure that it is there, before anything is read or removed for its sake.

        Args:
            create: make what can be made, such as a folder in one that is there.
        """
        ...

    async def names(self) -> Sequence[str]:
        """Names of all that was written, in order."""
        ...

    async def read(self, name: str, /) -> bytes:
        """What was written under that name.

        Raises:
            ArchiveUnavailable: also where nothing was.
        """
        ...

    async def write(self, name: str, data: bytes, /) -> bool:
        """Write, entirely or not at all; when this returns, it is durable. False if the name was taken already: what
        is there stays as it is.
        """
        ...

    async def close(self) -> None:
        """Let go of connections. Idempotent."""
        ...
