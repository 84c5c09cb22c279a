"""An archive in a bucket of an object store, by obstore (extra `objects`)."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from datetime import timedelta
from typing import TypeVar
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import ObjectStore, from_url

from perdure.errors import ArchiveUnavailable, InvalidArgument

T = TypeVar("T")

_PATIENCE = timedelta(seconds=30)
_RETRIES = 5
"""How long, and how often, a request is tried again."""


class ObjectArchive:
    """An `Archive` under a prefix of a bucket.

    Credentials, region and endpoint come from where the kind of store keeps them: `AWS_*` variables and the like.

    Args:
        url: such as `s3://bucket/prefix`.

    Raises:
        InvalidArgument: it has no bucket, or something in it that does not belong into a URL.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if not parts.netloc or "@" in parts.netloc or parts.query or parts.fragment:
            raise InvalidArgument(
                f"{parts.scheme}:// is followed by a bucket and a prefix, nothing else; credentials, region and "
                "endpoint come from the environment"
            )
        self._url = url
        self._store: ObjectStore | None = None

    @property
    def location(self) -> str:
        return self._url

    async def open(self, *, create: bool) -> None:
        try:
            store = from_url(self._url, retry_config={"max_retries": _RETRIES, "retry_timeout": _PATIENCE})
        except (BaseError, ValueError) as error:
            raise self._unavailable("cannot be used", error) from error
        self._store = store
        await self._do("cannot be used", _names(store))

    async def names(self) -> Sequence[str]:
        return await self._do("cannot be listed", _names(self._opened()))

    async def read(self, name: str, /) -> bytes:
        return await self._do(f"{name} cannot be read", _read(self._opened(), name))

    async def write(self, name: str, data: bytes, /) -> bool:
        put = obstore.put_async(self._opened(), name, data, mode="create", use_multipart=False)
        try:
            await self._do(f"{name} cannot be written", put)
        except _Taken:
            return False
        return True

    async def close(self) -> None:
        self._store = None

    def _opened(self) -> ObjectStore:
        if self._store is None:
            raise ArchiveUnavailable(f"the archive {self._url} is not open")
        return self._store

    async def _do(self, problem: str, work: Awaitable[T]) -> T:
        try:
            return await work
        except AlreadyExistsError as error:
            raise _Taken from error
        except (BaseError, OSError, ValueError) as error:
            raise self._unavailable(problem, error) from error

    def _unavailable(self, problem: str, error: Exception) -> ArchiveUnavailable:
        text = " ".join(str(error).partition("Debug source:")[0].split())
        return ArchiveUnavailable(f"the archive {self._url}: {problem}: {text[:400]}")


class _Taken(Exception):  # a signal: there is something under that name
    pass


async def _names(store: ObjectStore) -> list[str]:
    found = await obstore.list_with_delimiter_async(store)  # pyright: ignore[reportUnknownMemberType]  # of arrow tables
    return sorted(entry["path"].rpartition("/")[2] for entry in found["objects"])


async def _read(store: ObjectStore, name: str) -> bytes:
    found = await obstore.get_async(store, name)
    return bytes(await found.bytes_async())
