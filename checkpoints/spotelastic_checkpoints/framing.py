"""Frames messages on a socket: a little-endian uint32 length, then msgpack."""

import struct

import msgspec

from spotelastic_checkpoints.decoders import from_msgpack

FRAME = struct.Struct("<I")
"""The length before a message."""

_encoder = msgspec.msgpack.Encoder()


def frame(*parts: object) -> bytes:
    """Encode the parts as one message."""
    body = _encoder.encode(parts)
    return FRAME.pack(len(body)) + body


def decode_reply(body: bytes) -> tuple[int, str, msgspec.Raw]:
    """Return a reply's id, its error ("Name: message", or empty), and its result, still encoded."""
    return from_msgpack(body, tuple[int, str, msgspec.Raw])
