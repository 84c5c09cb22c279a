"""What a notification says: by whom, and what it is about [R-2, R-16]."""

from __future__ import annotations

import msgspec

from perdure.ports.store import ANYTHING, Change
from perdure.storage.postgres.attending import ANYBODY

MOST = 7_000
"""Bytes. The server takes 8,000; what is longer says that it may be anything."""

NOBODY, WHO_WAITS, ALL = "", f"CASE WHEN {ANYBODY} THEN pg_notify(%s, %s) END", "pg_notify(%s, %s)"
"""What a statement says besides, with channel and text as values: to whoever waits for runs, if anybody does, or to
all."""
TOLD = "PERFORM pg_notify(left('perdure_' || btrim('@', '\".'), 63), '');"
"""In a function of the server: others have to look, and so have we."""

_decoder = msgspec.json.Decoder(Change)


def written(teller: str, change: Change | None) -> str:
    """A notification; empty where nobody has to be told of anything.

    Args:
        teller: who tells; a word.
    """
    if change is None:
        return ""
    if change.anything:
        return teller
    text = msgspec.json.encode(change).decode()
    return f"{teller} {text}" if len(text) < MOST and text.isascii() else teller


def news(change: Change | None, channel: str, teller: str) -> tuple[str, tuple[str, ...]]:
    """To whom a change is told, and the values for that."""
    if change is None:
        return NOBODY, ()
    return ALL if change.urgent else WHO_WAITS, (channel, written(teller, change))


def read(payload: str, ident: str) -> Change | None:
    """What a notification is about; None where it is our own, as `ident`, or a probe. A name alone is anything, and so
    is what cannot be read."""
    teller, _, about = payload.partition(" ")
    if teller in (ident, "probe"):
        return None
    if not about:
        return ANYTHING
    try:
        return _decoder.decode(about)
    except msgspec.MsgspecError:
        return ANYTHING
