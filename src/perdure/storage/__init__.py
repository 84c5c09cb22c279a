"""Where journals live. `open_store` and `open_archive` turn URLs into adapters; nothing else names one [I-7]."""

from __future__ import annotations

import sys
from urllib.parse import parse_qsl, unquote, urlsplit

from perdure.errors import InvalidArgument
from perdure.ports.archive import Archive
from perdure.ports.store import Store

SUPPORTED = (
    "memory:// (gone with the object), memory://NAME (shared within the process), "
    "sqlite:///relative/path.db, sqlite:////absolute/path.db, postgresql://USER@HOST/DATABASE?schema=NAME"
)


def open_store(url: str) -> Store:
    """Give the store a URL names, not yet opened: no file is touched before `Store.open`.

    Options of SQLite: `?network=allow` trusts a network file system. Options of PostgreSQL, beside those of libpq:
    `schema`, which is `perdure` unless given, `pooler=transaction` where such a pooler stands between, and
    `answer_timeout=SECONDS`, after which a silent connection is given up, 30 unless given.

    Raises:
        InvalidArgument: the URL names no store; the message says what is supported, or what is to be installed.
    """
    parts = urlsplit(url)
    if parts.scheme == "memory":
        return _memory(url)
    if parts.scheme == "sqlite":
        return _sqlite(url)
    if parts.scheme in ("postgresql", "postgres"):
        return _postgres(url)
    raise InvalidArgument(f"no store is called {url!r}; supported are {SUPPORTED}")


def _memory(url: str) -> Store:
    from perdure.storage.memory import MemoryStore, shared

    parts = urlsplit(url)
    if parts.path or parts.query or parts.fragment:
        raise InvalidArgument(f"{url!r} should be memory:// or memory://NAME")
    return MemoryStore(shared(parts.netloc)) if parts.netloc else MemoryStore()


def _sqlite(url: str) -> Store:
    from perdure.storage.sqlite import SqliteStore

    parts = urlsplit(url)
    if not url.startswith("sqlite://"):
        raise InvalidArgument(f"{url!r} names no file: sqlite:///relative/path.db or sqlite:////absolute/path.db")
    if parts.netloc:
        raise InvalidArgument(
            f"{url!r} has two slashes where three are needed: sqlite:///{parts.netloc}{parts.path} is a relative path, "
            f"sqlite:////{parts.netloc}{parts.path} an absolute one"
        )
    path = unquote(parts.path)[1:]
    if not path or path.endswith("/") or "\0" in path or parts.fragment:
        raise InvalidArgument(f"{url!r} names no file: sqlite:///relative/path.db or sqlite:////absolute/path.db")
    if path == ":memory:":
        raise InvalidArgument(f"{url!r} would be gone with its connection; use memory:// instead")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    network = options.pop("network", "refuse")
    if options or network not in {"refuse", "allow"}:
        raise InvalidArgument(f"{url!r}: the only option of SQLite is ?network=allow")
    if sys.platform == "win32" and path.startswith("/") and path[2:3] == ":":
        path = path[1:]
    return SqliteStore(path, network=network == "allow")


def _postgres(url: str) -> Store:
    try:
        from perdure.storage.postgres import Place, PostgresStore
    except ImportError as error:
        if not (error.name or "").startswith("psycopg") and "libpq" not in str(error):
            raise
        raise InvalidArgument(
            f"a store in PostgreSQL needs the extra of that name: pip install 'perdure[postgres]' ({error})"
        ) from error
    return PostgresStore(Place.of(url))


def open_archive(place: str) -> Archive:
    """Give the archive that a path or URL names, not yet opened: nothing is touched before `Archive.open` [R-9].

    Args:
        place: a folder, as a path or `file:///absolute/path`; or a bucket and a prefix, such as `s3://bucket/prefix`,
            `gs://...` or `az://...`, for which the extra `objects` is needed.

    Raises:
        InvalidArgument: it names no archive; the message says what is supported, or what is to be installed.
    """
    from perdure.storage.archives.folder import FolderArchive

    if not place or "\0" in place:
        raise InvalidArgument(f"{place!r} names no archive")
    parts = urlsplit(place)
    if "://" not in place:
        return FolderArchive(place)
    if parts.scheme == "file":
        path = unquote(parts.path)
        if parts.netloc not in ("", "localhost") or not path or "\0" in path or parts.query or parts.fragment:
            raise InvalidArgument(f"{place!r} names no folder; write it like file:///absolute/path")
        if sys.platform == "win32" and path[2:3] == ":":
            path = path[1:]
        return FolderArchive(path)
    if parts.scheme in _OBJECTS:
        return _objects(place)
    raise InvalidArgument(
        f"no archive is called {place!r}; supported are a path, file:///absolute/path, and "
        f"{', '.join(f'{scheme}://' for scheme in _OBJECTS)}BUCKET/PREFIX"
    )


_OBJECTS = ("s3", "gs", "az")


def _objects(place: str) -> Archive:
    try:
        from perdure.storage.archives.objects import ObjectArchive
    except ImportError as error:
        if not (error.name or "").startswith("obstore"):
            raise
        raise InvalidArgument(
            f"an archive in an object store needs the extra `objects`: pip install 'perdure[objects]' ({error})"
        ) from error
    return ObjectArchive(place)
