"""Messages to runs: checked against what the pipeline awaits, before anything is written [B-4, B-24]."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from perdure.core.facts import MessageReceived
from perdure.core.projection import Projection
from perdure.define.await_message import AwaitMessage
from perdure.define.payload import AnyCodec, codec_of
from perdure.define.pipeline import AnyPipeline
from perdure.errors import InvalidArgument, PayloadError
from perdure.runtime.arguments import check_name, check_text


class Message(msgspec.Struct, frozen=True):
    """What a caller sends; see `Client.send`."""

    name: str
    payload: object
    key: str
    actor: str

    def check(self) -> None:
        """Refuse what cannot be a message.

        Raises:
            InvalidArgument: a name or key that cannot be one.
        """
        check_name("the name of a message", self.name)
        check_text("actor", self.actor)
        if self.key:
            check_name("key", self.key)


def received(
    p: Projection, pipelines: Mapping[str, AnyPipeline], message: Message, payload_limit: int | None
) -> MessageReceived:
    """The fact that a message appends.

    Raises:
        PayloadError: the payload does not fit the type of any await of that name, or is over the limit [P-4].
        InvalidArgument: the pipeline is known here, and awaits no message of that name.
    """
    pipeline = pipelines.get(p.submitted.pipeline) if p.submitted is not None else None
    data, digest = _encoded(_codecs(pipeline, message.name), message.payload)
    if payload_limit is not None and len(data) > payload_limit:
        raise PayloadError("$", f"the message has {len(data):,} bytes, the limit is {payload_limit:,}")
    return MessageReceived(message.name, msgspec.Raw(data), digest.hex(), message.actor, message.key)


def _codecs(pipeline: AnyPipeline | None, name: str) -> Sequence[AnyCodec]:
    """What a message of that name may be; anything, where the pipeline is not known here."""
    if pipeline is None:
        return (codec_of(object),)
    steps: list[Any] = list(pipeline.steps.values())
    awaits: list[AwaitMessage[Any, Any, Any]] = [step for step in steps if isinstance(step, AwaitMessage)]
    found = [step.codec for step in awaits if step.message == name]
    if not found:
        names = sorted({step.message for step in awaits})
        close = difflib.get_close_matches(name, names, 1)
        hint = f"; did you mean {close[0]!r}?" if close else f"; it awaits {', '.join(names) or 'none'}"
        raise InvalidArgument(f"pipeline {pipeline.id!r} awaits no message {name!r}{hint}")
    return found


def _encoded(codecs: Sequence[AnyCodec], payload: object) -> tuple[bytes, bytes]:
    """Encoded as the first of the types that it fits, and its digest."""
    problem: PayloadError | None = None
    for codec in codecs:
        try:
            value = codec.decode(payload) if isinstance(payload, msgspec.Raw) else payload
            return codec.encode(value), codec.digest(value)
        except PayloadError as error:
            problem = problem or error
    raise problem or PayloadError("$", "it fits no type")
