"""Values of the model as JSON bytes, and back; what is read from outside is validated here."""

from typing import TypeVar

import msgspec

T = TypeVar("T")


def encode(value: object) -> bytes:
    return msgspec.json.encode(value)


def decode(data: bytes, kind: type[T]) -> T:
    """Raises `msgspec.ValidationError` naming the field that does not fit."""
    return msgspec.json.decode(data, type=kind)
