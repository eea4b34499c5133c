"""How a message is framed on a socket: a little-endian uint32 length, then msgpack."""

import struct
from typing import TypeVar

import msgspec

FRAME = struct.Struct("<I")

T = TypeVar("T")

_encoder = msgspec.msgpack.Encoder()
_reply = msgspec.msgpack.Decoder(tuple[int, str, msgspec.Raw])


def frame(*parts: object) -> bytes:
    body = _encoder.encode(parts)
    return FRAME.pack(len(body)) + body


def decode_reply(body: bytes) -> tuple[int, str, msgspec.Raw]:
    """Id, error as "Name: message" or empty, result still encoded."""
    return _reply.decode(body)


def decode_result(result: msgspec.Raw, kind: type[T]) -> T:
    return msgspec.msgpack.decode(result, type=kind)
