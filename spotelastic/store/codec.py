"""Encodes the model's values as JSON for the key-value store, and decodes and validates them.

Large values are compressed. A round names all its nodes and is delivered to each of them, so that
its bytes grow with the square of their number.
"""

import zlib
from typing import TypeVar

import msgspec
from spotelastic_checkpoints.decoders import from_json

T = TypeVar("T")

LARGE = 4096
"""Bytes from which on a value is compressed."""
_LEVEL = 1
_RATIO = 6
"""About the largest factor by which a round shrinks, so that memory is allocated once."""
_ZLIB = b"\x78"
"""First byte of compressed data, with which no JSON begins."""


def encode(value: object) -> bytes:
    """Encode a value, compressed where it is large."""
    data = msgspec.json.encode(value)
    return data if len(data) < LARGE else zlib.compress(data, _LEVEL)


def decode(data: bytes, kind: type[T]) -> T:
    """Decode a value.

    Raises `msgspec.DecodeError`, or its `ValidationError`, which names the field, where one does
    not fit.
    """
    return from_json(plain(data), kind)


def plain(data: bytes) -> bytes:
    """Return the JSON of a value, which may be compressed. Raises `msgspec.DecodeError`."""
    if not data.startswith(_ZLIB):
        return data
    try:
        return zlib.decompress(data, bufsize=_RATIO * len(data))
    except zlib.error as error:
        raise msgspec.DecodeError(f"not a compressed value: {error}") from error


def readable(data: bytes, kind: type[T]) -> T | None:
    """Decode a value; None where this version cannot read it."""
    try:
        return decode(data, kind)
    except msgspec.DecodeError:
        return None
