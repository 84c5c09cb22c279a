"""Parts of an archive: gzipped JSON lines, one a run, under names that tell what is in them [R-9]."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from urllib.parse import unquote, urlsplit

import msgspec

_GZIP = 31  # of zlib's `wbits`: with gzip's header and checksum
_CHUNK = 1 << 16

# --- names


class PartName(msgspec.Struct, frozen=True, order=True):
    """What a part's name tells.

    Attributes:
        label: which store it is from, for people.
        from_us, to_us: when the first and the last of its runs ended; whole seconds around that.
        number: parts of one archive are counted.
        runs: how many it holds.
        digest: 16 hexadecimal digits of SHA-256 over its bytes.
    """

    label: str
    from_us: int
    to_us: int
    number: int
    runs: int
    digest: str

    def __str__(self) -> str:
        spans = f"{_stamp(self.from_us)}.{_stamp(self.to_us + 999_999)}"
        return f"{self.label}.{spans}.{self.number:06}.{self.runs}.{self.digest}{SUFFIX}"

    @property
    def index(self) -> str:
        """Name of the list of ids that lies beside it, one a line."""
        return str(self).removesuffix(SUFFIX) + INDEX_SUFFIX


SUFFIX = ".jsonl.gz"
INDEX_SUFFIX = ".ids"
_STAMP = "%Y%m%dT%H%M%SZ"
_NAME = re.compile(
    r"([a-z0-9-]+)\.(\d{8}T\d{6}Z)\.(\d{8}T\d{6}Z)\.(\d{6,})\.(\d+)\.([0-9a-f]{16})" + re.escape(SUFFIX), re.ASCII
)


def part_name(text: str) -> PartName | None:
    """What a name tells; None if it is not a part's."""
    found = _NAME.fullmatch(text)
    if found is None:
        return None
    label, first, last, number, runs, digest = found.groups()
    try:
        return PartName(label, _moment(first), _moment(last), int(number), int(runs), digest)
    except ValueError:
        return None


def _stamp(at_us: int) -> str:
    return datetime.fromtimestamp(at_us // 1_000_000, UTC).strftime(_STAMP)


def _moment(text: str) -> int:
    return int(datetime.strptime(text, _STAMP).replace(tzinfo=UTC).timestamp()) * 1_000_000


def digest_of(data: bytes) -> str:
    """As it stands in a name."""
    return sha256(data).hexdigest()[:16]


def label_of(url: str) -> str:
    """A label from a store's URL: the file, or database and schema; nothing of users and servers."""
    parts = urlsplit(url)
    name = unquote(parts.path).rsplit("/", 1)[-1] or parts.netloc.rpartition("@")[2]
    if parts.scheme == "sqlite":
        name = name.rpartition(".")[0] or name
    elif parts.scheme.startswith("postgres"):
        schema = re.search(r"(?:^|&)schema=(\w+)", parts.query)
        name = f"{unquote(parts.path).strip('/')}-{schema.group(1) if schema else ''}"
    return slug(name)


def slug(text: str) -> str:
    """Small letters, digits and single hyphens, at most 40; `store` if nothing of that is in it."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:40].strip("-") or "store"


# --- parts


class Part:
    """A part that is being written, compressed as it grows.

    Attributes:
        ids: of the runs in it.
        size: bytes of its lines, before compression.
    """

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.size = 0
        self._span = (0, 0)
        self._zip = zlib.compressobj(6, zlib.DEFLATED, _GZIP)
        self._data: list[bytes] = []

    def add(self, run_id: str, ended_us: int, line: bytes) -> None:
        """Add a run."""
        first, last = self._span if self.ids else (ended_us, ended_us)
        self._span = min(first, ended_us), max(last, ended_us)
        self.ids.append(run_id)
        self.size += len(line)
        self._data.append(self._zip.compress(line))

    def finish(self, label: str, number: int) -> tuple[PartName, bytes]:
        """Name and bytes. The same runs give the same bytes."""
        data = b"".join([*self._data, self._zip.flush()])
        return PartName(label, *self._span, number, len(self.ids), digest_of(data)), data


class DamagedPart(Exception):  # a finding, told with what could be read
    """The bytes of a part end too soon, or are not what was written."""


def read_lines(data: bytes) -> Iterator[bytes]:
    """The lines of a part, as many as can be read.

    Raises:
        DamagedPart: after the last of them.
    """
    unzip = zlib.decompressobj(_GZIP)
    rest = bytearray()
    try:
        for start in range(0, len(data), _CHUNK):
            seen = len(rest)
            rest += unzip.decompress(data[start : start + _CHUNK])
            if rest.find(b"\n", seen) >= 0:
                *lines, last = bytes(rest).split(b"\n")
                yield from lines
                rest = bytearray(last)
    except zlib.error as error:
        raise DamagedPart(f"it is damaged ({error})") from error
    if not unzip.eof:
        raise DamagedPart("it is truncated")
    if rest or unzip.unused_data:
        raise DamagedPart("something follows its last line")


def encode_index(ids: Sequence[str]) -> bytes:
    """The list that lies beside a part."""
    return "".join(f"{run_id}\n" for run_id in ids).encode()


def decode_index(data: bytes, name: PartName) -> frozenset[str] | None:
    """The ids of a part; None if the list is not whole."""
    try:
        ids = data.decode().split("\n")
    except UnicodeDecodeError:
        return None
    return frozenset(ids[:-1]) if len(ids) == name.runs + 1 and not ids[-1] else None
