"""Messages to runs: checked against what the pipeline awaits, before anything is written [B-4, B-24]."""

from __future__ import annotations

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
from perdure.runtime.operations import SendMessage


def check_message(message: SendMessage) -> None:
    """Refuse what cannot be a message.

    Raises:
        InvalidArgument: a name or key that cannot be one.
    """
    check_name("the name of a message", message.name)
    check_text("actor", message.actor)
    if message.key:
        check_name("key", message.key)


def received(
    p: Projection, pipelines: Mapping[str, AnyPipeline], message: SendMessage, payload_limit: int | None
) -> MessageReceived:
    """The fact that a message appends.

    Raises:
        PayloadError: the payload does not fit the type of any await of that name, or is over the limit [P-4].
        InvalidArgument: the pipeline is known here, and awaits no message of that name.
    """
    pipeline = pipelines.get(p.submitted.pipeline) if p.submitted is not None else None
    data, digest = _encoded(_codecs(p, pipeline, message.name), message.payload)
    if payload_limit is not None and len(data) > payload_limit:
        raise PayloadError("$", f"the message has {len(data):,} bytes, the limit is {payload_limit:,}")
    return MessageReceived(message.name, msgspec.Raw(data), digest.hex(), message.actor, message.key)


def _codecs(p: Projection, pipeline: AnyPipeline | None, name: str) -> Sequence[AnyCodec]:
    """What a message of that name may be; anything, where nothing that is known here says it.

    What an open wait waits for was fixed when it opened, so it may have a name that the deployed code no longer has;
    the type is that of the deployed code [B-20].
    """
    if pipeline is None:
        return (codec_of(object),)
    steps: Mapping[str, Any] = pipeline.steps
    awaits: dict[str, AwaitMessage[Any, Any, Any]] = {
        id: step for id, step in steps.items() if isinstance(step, AwaitMessage)
    }
    found = [step.codec for step in awaits.values() if step.message == name]
    parked = p.parked()
    if parked is not None and parked.shape == "message" and parked.awaits[0] == name:
        waiting = awaits.get(p.pin or "")
        codec: AnyCodec = codec_of(object) if waiting is None else waiting.codec
        return [codec, *found] if p.messages.get(name) else [codec]
    if found:
        return found
    if name in p.message_keys or name in p.messages:
        return (codec_of(object),)
    names = sorted({step.message for step in awaits.values()})
    import difflib  # nobody else needs it, and a start would wait for it

    close = difflib.get_close_matches(name, names, 1)
    hint = f"; did you mean {close[0]!r}?" if close else f"; it awaits {', '.join(map(repr, names)) or 'none'}"
    raise InvalidArgument(f"pipeline {pipeline.id!r} awaits no message {name!r}{hint}")


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
