"""Where the file lies: checks before SQLite touches it, and noticing that it was taken away afterwards.

The file itself is never opened here: closing any descriptor of it would drop the POSIX locks SQLite holds on it for
other connections of this process.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from perdure.errors import StoreUnusable

NETWORK_TYPES = frozenset(
    "nfs nfs4 cifs smb3 smbfs 9p afs ceph glusterfs lustre beegfs gpfs ocfs2 gfs2 ncpfs fuse.sshfs fuse.glusterfs "
    "fuse.ceph fuse.s3fs fuse.rclone fuse.gcsfuse fuse.blobfuse fuse.davfs davfs".split()
)


def check_place(path: Path, *, allow_network: bool, mountinfo: str | None = None) -> None:
    """Refuse what cannot work, saying what to do.

    Args:
        path: absolute path of the database file, existing or not.
        allow_network: the user vouches for the locks of a network file system.
        mountinfo: text in the form of `/proc/self/mountinfo`; by default this process's own.

    Raises:
        StoreUnusable: missing directory, not a file, not writable, network file system.
    """
    folder = path.parent
    if not folder.is_dir():
        raise StoreUnusable(f"the directory {folder} does not exist; create it or choose another place")
    if path.exists():
        if path.is_dir():
            raise StoreUnusable(f"{path} is a directory; the store is a file")
        if not path.is_file():
            raise StoreUnusable(f"{path} is not a regular file")
        if not os.access(path, os.R_OK | os.W_OK):
            raise StoreUnusable(f"{path} cannot be written by this user; SQLite needs to read and write it")
        _check_log(path)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise StoreUnusable(f"the directory {folder} is read-only for this user; SQLite keeps its log beside the file")
    kind = network_type(path, _own_mountinfo() if mountinfo is None else mountinfo)
    if kind is not None and not allow_network:
        raise StoreUnusable(
            f"{path} is on a network file system ({kind}), whose locks and syncs SQLite cannot rely on: put the file "
            "on a local disk, or add ?network=allow to the URL if one machine alone uses it and its syncs are real"
        )


def _check_log(path: Path) -> None:
    log = Path(f"{path}-wal")
    try:
        if path.stat().st_size == 0 and log.stat().st_size > 0 and path.stat().st_size == 0:
            raise StoreUnusable(
                f"{path} is empty but {log.name} beside it is not: the file was truncated; restore it from a backup"
            )
    except FileNotFoundError:
        return


def network_type(path: Path, mountinfo: str) -> str | None:
    """The type of the network file system that holds `path`, or None for a local one."""
    best, found = "", ""
    target = str(path)
    for line in mountinfo.splitlines():
        before, separator, after = line.partition(" - ")
        fields = before.split(" ")
        if not separator or len(fields) < 5:
            continue
        mount = fields[4].encode().decode("unicode_escape")  # a blank in a path is written \040
        inside = target == mount or target.startswith(mount if mount.endswith("/") else mount + "/")
        if inside and len(mount) >= len(best):
            best, found = mount, after.split(" ")[0]
    return found if found in NETWORK_TYPES else None


def _own_mountinfo() -> str:
    if sys.platform != "linux":
        return ""
    try:
        return Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


class Identity:
    """Which file and which log were opened. Cheap enough to ask before every commit."""

    def __init__(self, path: Path) -> None:
        self._known = [(name, _identity(_found(name))) for name in (str(path), f"{path}-wal")]

    def check(self) -> int:
        """Make sure that what we write to is still what the path means; the length of the log in bytes.

        Raises:
            StoreUnusable: the file or its log was deleted, moved or replaced: what is committed now would be lost.
        """
        length = 0
        for name, known in self._known:
            found = _found(name)
            if found is None or _identity(found) != known:
                raise StoreUnusable(
                    f"{name} was deleted, moved or replaced while it was open; nothing more is written. "
                    "Bring the file back (or restore a backup) and start again"
                )
            length = found.st_size
        return length


def _found(name: str) -> os.stat_result | None:
    try:
        return os.stat(name)
    except FileNotFoundError:
        return None


def _identity(found: os.stat_result | None) -> tuple[int, int] | None:
    return None if found is None else (found.st_dev, found.st_ino)
