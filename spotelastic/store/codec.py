"""Values of the model as JSON bytes, and back; what is read from outside is validated here.

Large values are compressed: a round names all its nodes and is delivered to each of them, so that
its bytes grow with the square of their number.
"""

import zlib
from typing import TypeVar

import msgspec

T = TypeVar("T")

LARGE = 4096
_LEVEL = 1
_RATIO = 6
"""What a round shrinks by at most, about: memory is then asked for once."""
_ZLIB = b"\x78"
"""What zlib's data begins with, and no JSON does."""


def encode(value: object) -> bytes:
    data = msgspec.json.encode(value)
    return data if len(data) < LARGE else zlib.compress(data, _LEVEL)


def decode(data: bytes, kind: type[T]) -> T:
    """Raises `msgspec.DecodeError`, where a field does not fit `ValidationError` naming it."""
    if data.startswith(_ZLIB):
        try:
            data = zlib.decompress(data, bufsize=_RATIO * len(data))
        except zlib.error as error:
            raise msgspec.DecodeError(f"not a compressed value: {error}") from error
    return msgspec.json.decode(data, type=kind)
