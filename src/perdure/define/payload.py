"""What the engine may use of the codec; it knows no other way to payloads."""

from perdure.codec.json import AnyCodec, Codec, Encoded, codec_for, codec_of

__all__ = ["AnyCodec", "Codec", "Encoded", "codec_for", "codec_of"]
