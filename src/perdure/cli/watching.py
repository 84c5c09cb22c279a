"""Which files are watched, and when a save is over: the eyes of `perdure dev`.

Files are looked at, again and again, instead of waiting for the system to tell: that needs no library, is the same
everywhere, and works on folders of other machines and of containers too.
"""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import cache_from_source
from pathlib import Path
from typing import TypeAlias

Stamp: TypeAlias = tuple[int, int, int]
"""Of a file: time of its last change in nanoseconds, size, inode. An editor that replaces a file changes the inode."""
Snapshot: TypeAlias = Mapping[Path, Stamp]

NEVER = ("__pycache__", "node_modules", "*.pyc", "*~", "#*#", "*.log", "*.db", "*.db-*", "*.sqlite*", "*.tmp")
"""Names that nobody writes by hand."""
TESTS = ("test_*.py", "*_test.py", "conftest.py")
"""Python files that an application does not load; if it does, they count after all."""


@dataclass(frozen=True)
class Watch:
    """What is watched.

    Attributes:
        roots: folders whose Python files count, those of folders below included.
        paths: files, or folders in which every file counts; `--watch`.
        ignore: patterns of names, or of paths from here, that do not count; `--ignore`.
        here: what those paths start from.
    """

    roots: tuple[Path, ...]
    paths: tuple[Path, ...] = ()
    ignore: tuple[str, ...] = ()
    here: Path = field(default_factory=Path.cwd)

    def look(self, loaded: Iterable[Path] = (), store: Path | None = None) -> dict[Path, Stamp]:
        """The stamps of all that counts now: of the roots, of the paths, and of the files that the application loaded.

        The store and the files beside it, whatever they are called, are written by engines and do not count.
        """
        found: dict[Path, Stamp] = {}
        for root in self.roots:
            self._walk(root, found, python=True)
        for path in self.paths:
            if path.is_dir():
                self._walk(path, found, python=False)
            else:
                _add(path, found)
        for path in loaded:
            if not self._ignored(path):
                _add(path, found)
        if store is not None:
            return {path: stamp for path, stamp in found.items() if not _belongs(path, store)}
        return found

    def _walk(self, root: Path, found: dict[Path, Stamp], *, python: bool) -> None:
        for folder, below, names in os.walk(root):
            here = Path(folder)
            below[:] = [name for name in below if self._enters(here / name)]
            for name in names:
                path = here / name
                if python and (not name.endswith(".py") or _like(name, TESTS)):
                    continue
                if not (name.startswith(".") or _like(name, NEVER) or self._ignored(path)):
                    _add(path, found)

    def _enters(self, folder: Path) -> bool:
        """Not into hidden folders, caches, and environments with installed packages."""
        if folder.name.startswith(".") or _like(folder.name, NEVER) or self._ignored(folder):
            return False
        return not (folder / "pyvenv.cfg").exists()

    def _ignored(self, path: Path) -> bool:
        try:
            parts = path.relative_to(self.here).parts
        except ValueError:
            parts = path.parts
        return any(_like(part, self.ignore) for part in parts) or _like("/".join(parts), self.ignore)


def _like(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _belongs(path: Path, store: Path) -> bool:
    return path.parent == store.parent and (path.name == store.name or path.name.startswith(f"{store.name}-"))


def _add(path: Path, found: dict[Path, Stamp]) -> None:
    try:
        stat = path.stat()
    except OSError:  # gone since, or never there
        return
    found[path] = (stat.st_mtime_ns, stat.st_size, stat.st_ino)


class Saves:
    """From one look after the other to saves. A save is over when two looks in a row see the same.

    So several saves in quick succession, as of a tool that rewrites many files, are one.

    Args:
        first: what is known already.
    """

    def __init__(self, first: Snapshot) -> None:
        self._known = dict(first)
        self._last = dict(first)

    def __len__(self) -> int:
        """How many files are watched."""
        return len(self._known)

    def see(self, now: Snapshot) -> frozenset[Path]:
        """The files that were changed, made or removed since they were last told; empty while that may go on."""
        settled = dict(now) == self._last
        self._last = dict(now)
        if not settled:
            return frozenset()
        changed = {path for path in self._known.keys() | now.keys() if self._known.get(path) != now.get(path)}
        self._known = dict(now)
        return frozenset(changed)

    def admit(self, more: Snapshot) -> None:
        """Watch these from now on, if they are not watched yet: they were not saved, they are new here."""
        for path, stamp in more.items():
            self._known.setdefault(path, stamp)
            self._last.setdefault(path, stamp)


def forget_compiled(saved: Iterable[Path]) -> None:
    """Remove what other processes compiled of these: Python knows it again by second and size of the source alone,
    which a quick edit may not change."""
    for path in saved:
        if path.suffix == ".py":
            with suppress(OSError, NotImplementedError):
                Path(cache_from_source(str(path))).unlink(missing_ok=True)
