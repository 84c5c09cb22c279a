"""A disk of a few megabytes, in memory, that can be filled to its last byte; mounting one takes root."""

from __future__ import annotations

import errno
import os
import subprocess
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.postgres import NOBODY

BLOCK = bytes(1 << 16)


class SmallDisk:
    """A file system of its own.

    Attributes:
        path: where it is mounted.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def fill(self) -> None:
        """Leave no byte free."""
        with open(self.path / "filler", "ab", buffering=0) as file:
            size = len(BLOCK)
            while size:
                try:
                    file.write(BLOCK[:size])
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    size //= 2

    def free(self) -> None:
        """Give back what was filled."""
        (self.path / "filler").unlink()


@contextmanager
def small_disk(megabytes: int) -> Generator[SmallDisk]:
    """Mount one, for the server's user; skips the test where that is not permitted."""
    folder = Path(tempfile.mkdtemp(prefix="perdure-disk-", dir="/tmp"))
    owner = NOBODY if os.getuid() == 0 else os.getuid()
    options = f"size={megabytes}m,mode=0700,uid={owner},gid={owner}"
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "perdure", str(folder)],
        check=False,
        stderr=subprocess.PIPE,
        text=True,
    )
    if mounted.returncode:
        folder.rmdir()
        pytest.skip(f"a small disk cannot be mounted here, which takes root: {mounted.stderr.strip()}")
    try:
        yield SmallDisk(folder)
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
        folder.rmdir()
