"""Facts as the journal stores them: one JSON array per append [J-11, J-13]."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias, get_args

import msgspec

from perdure.core.chain import chain_hash
from perdure.core.facts import Fact
from perdure.core.projection import Projection
from perdure.core.reducer import fold_all
from perdure.errors import CorruptJournal, PerdureError

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(list[Fact])
_names = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])
KNOWN: dict[str, frozenset[str]] = {
    kind.__name__: frozenset(("fact", *kind.__struct_fields__)) for kind in get_args(Fact)
}

Facts: TypeAlias = Sequence[Fact]


class NewerJournal(PerdureError):
    """The journal holds facts of a newer release [J-13]. Run that release, or a newer one, to read it."""


def encode_facts(facts: Facts) -> bytes:
    """The JSON text of one append."""
    return _encoder.encode(facts)


def decode_facts(run_id: str, first_seq: int, data: bytes) -> list[Fact]:
    """The facts of one append.

    Raises:
        NewerJournal: a fact type, or a field of one, is unknown to this release.
        CorruptJournal: the text is not a list of facts.
    """
    try:
        return _decoder.decode(data)
    except RecursionError:
        raise CorruptJournal(run_id, first_seq, "not readable: nested too deeply") from None
    except msgspec.MsgspecError as error:
        unknown = _unknown_names(data)
        if unknown:
            raise NewerJournal(
                f"run {run_id} has facts that this release does not know ({', '.join(unknown)} at fact {first_seq} or "
                "after); the release that wrote them, or a newer one, reads them"
            ) from None
        raise CorruptJournal(run_id, first_seq, f"not readable: {error}") from None


def _unknown_names(data: bytes) -> list[str]:
    """Facts and fields of facts that this release does not know, as `Fact` and `Fact.field`."""
    found: set[str] = set()
    try:
        for fact in _names.decode(data):
            name = msgspec.json.decode(fact["fact"], type=str) if "fact" in fact else ""
            if name in KNOWN:
                found.update(f"{name}.{field}" for field in fact.keys() - KNOWN[name])
            elif name:
                found.add(name)
    except msgspec.MsgspecError:
        return []
    return sorted(found)


def fold_row(
    p: Projection, first_seq: int, count: int, at_us: int, append_id: bytes, row_hash: bytes, data: bytes
) -> list[Fact]:
    """Check one stored row against the chain, fold it, and return its facts.

    Raises:
        CorruptJournal: a gap, a wrong count, a hash that does not match, or a fact that cannot follow [J-8, J-11].
    """
    if first_seq != p.version + 1:
        raise CorruptJournal(p.run_id, p.version + 1, f"the next row begins at {first_seq}: a row is missing")
    if chain_hash(p.row_hash, first_seq, count, at_us, append_id, data) != row_hash:
        raise CorruptJournal(
            p.run_id, first_seq, "the row does not match its hash: it was changed after it was written"
        )
    facts = decode_facts(p.run_id, first_seq, data)
    if len(facts) != count:
        raise CorruptJournal(p.run_id, first_seq, f"the row says {count} facts and holds {len(facts)}")
    fold_all(p, facts, at_us)
    p.row_seq, p.row_hash = first_seq, row_hash
    return facts
