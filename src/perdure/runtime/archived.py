"""One line of an archive: a run that has ended, with all that a store has of it [R-9].

A line is for ever: fields may be added, none renamed or given another meaning; what needs another meaning raises
`FORMAT`. The facts stand in it byte for byte, so the hashes of a restored run are those it was written with [J-11].
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Literal

import msgspec
from msgspec.structs import replace

from perdure.core.chain import chain_hash
from perdure.ports.store import TERMINAL, IndexState, JournalRow, LoadedRun, NewRun, RunRow, RunStatus

FORMAT = 1
"""What this release writes, and the highest that it reads."""


class ArchivedRow(msgspec.Struct, frozen=True, gc=False):
    """A journal row in a line; bytes are hexadecimal.

    Attributes:
        facts: as stored; in a JSON string where they would not fit into a line as they are.
    """

    first_seq: int
    count: int
    at_us: int
    append_id: str
    hash: str
    facts: msgspec.Raw


class ArchivedRun(msgspec.Struct, frozen=True, gc=False):
    """A line: an index row, see `NewRun` and `IndexState`, and the journal."""

    format: int
    perdure: str
    id: str
    tenant: str
    pipeline: str
    resource: str
    slot_key: str | None
    slot_once: bool
    waits: Literal["", "queue", "replace"]
    input_digest: str
    submitted_us: int
    deadline_us: int
    ended_us: int
    status: RunStatus
    reason: str
    step: str
    token: int
    generation: int
    build: str
    canceling: bool
    version: int
    tail_hash: str
    signature: str
    priority: int
    annotations: dict[str, str]
    rows: list[ArchivedRow]

    def run(self) -> LoadedRun:
        """As a store gives it, but for its number.

        Raises:
            ValueError: something in it is not what its place asks for.
        """
        new = NewRun(
            self.id,
            self.tenant,
            self.pipeline,
            self.resource,
            self.slot_key,
            self.slot_once,
            bytes.fromhex(self.input_digest),
            self.submitted_us,
            self.deadline_us,
            self.waits,
            tuple(sorted(self.annotations.items())),
        )
        state = IndexState(
            self.status,
            None,
            "",
            self.token,
            self.generation,
            self.build,
            self.reason,
            self.canceling,
            self.step,
            self.version,
            bytes.fromhex(self.tail_hash),
            bytes.fromhex(self.signature),
            priority=self.priority,
        )
        rows = [
            JournalRow(
                row.first_seq,
                row.count,
                row.at_us,
                bytes.fromhex(row.append_id),
                bytes.fromhex(row.hash),
                _stored(row.facts),
            )
            for row in self.rows
        ]
        return LoadedRun(RunRow(0, new, state, self.ended_us, False), None, tuple(rows))


def _in_line(facts: bytes) -> msgspec.Raw:
    fits = facts.startswith(b"[") and facts.endswith(b"]") and b"\n" not in facts
    return msgspec.Raw(facts if fits else _encoder.encode(facts.decode()))


def _stored(facts: msgspec.Raw) -> bytes:
    text = bytes(facts)
    return msgspec.json.decode(text, type=str).encode() if text.startswith(b'"') else text


class _Head(msgspec.Struct, frozen=True, gc=False):
    format: int
    perdure: str = "a newer release"


def release() -> str:
    """This release's number."""
    try:
        return version("perdure")
    except PackageNotFoundError:  # run from a folder of sources
        return "unknown"


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(ArchivedRun)
_heads = msgspec.json.Decoder(_Head)


def encode_line(loaded: LoadedRun, release: str) -> bytes:
    """The line of a run that has ended; `archive_problem` says whether it brings everything back."""
    run, state = loaded.row.run, loaded.row.state
    line = ArchivedRun(
        FORMAT,
        release,
        run.run_id,
        run.tenant,
        run.pipeline,
        run.resource,
        run.slot_key,
        run.slot_once,
        run.waits,
        run.input_digest.hex(),
        run.submitted_us,
        run.deadline_us,
        loaded.row.ended_us or 0,
        state.status,
        state.reason,
        state.step,
        state.token,
        state.generation,
        state.build,
        state.canceling,
        state.version,
        state.tail_hash.hex(),
        state.signature.hex(),
        state.priority,
        dict(run.annotations),
        [
            ArchivedRow(row.first_seq, row.count, row.at_us, row.append_id.hex(), row.hash.hex(), _in_line(row.facts))
            for row in loaded.rows
        ],
    )
    return _encoder.encode(line) + b"\n"


class UnreadableLine(Exception):  # a finding, told with the part it stands in
    """A line that is no run, or one of a newer release."""


def decode_line(line: bytes) -> LoadedRun:
    """The run of a line; whether its chain holds is for `chain_problem` to say.

    Raises:
        UnreadableLine: see there; the message is for people.
    """
    try:
        found = _decoder.decode(line)
        if found.format > FORMAT:
            raise UnreadableLine(_newer(found.format, found.perdure))
        return found.run()
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        try:
            head = _heads.decode(line)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            head = _Head(FORMAT)
        if head.format > FORMAT:
            raise UnreadableLine(_newer(head.format, head.perdure)) from None
        raise UnreadableLine(f"a line is no run: {error}") from None


def _newer(found: int, release: str) -> str:
    return (
        f"it was written by perdure {release}, in format {found}; this release reads up to {FORMAT}: use that release, "
        "or a newer one"
    )


def chain_problem(loaded: LoadedRun) -> str:
    """What is wrong with the run as far as its hashes and its index row tell; empty if nothing is [J-11]."""
    previous, seq = b"", 1
    for row in loaded.rows:
        if row.first_seq != seq:
            return f"its journal has no row that begins at {seq}"
        if chain_hash(previous, seq, row.count, row.at_us, row.append_id, row.facts) != row.hash:
            return f"its journal was changed: the hash at {seq} does not match"
        previous, seq = row.hash, seq + row.count
    state = loaded.row.state
    if not loaded.rows:
        return "its journal is gone"
    if state.version and (state.version, state.tail_hash) != (seq - 1, previous):
        return f"its tail is lost: the index knew version {state.version}, the journal ends at {seq - 1}"
    if state.status not in TERMINAL or loaded.row.ended_us is None:
        return f"it has not ended, it is {state.status}"
    return ""


def archive_problem(loaded: LoadedRun, line: bytes) -> str:
    """Why a line is not as good as the run that it was made of; empty if it is."""
    try:
        back = decode_line(line)
    except UnreadableLine as error:
        return str(error)
    there = replace(loaded.row, locator=0, attention=False)
    return "" if (back.row, back.rows) == (there, loaded.rows) else "its line would not bring back all of it"
