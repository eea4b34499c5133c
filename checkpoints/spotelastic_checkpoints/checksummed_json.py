"""Encodes JSON objects that end with a checksum of themselves, and decodes them.

The checksum is the last field. It covers all bytes before it. Objects of versions that wrote none
are read as they are, and those versions ignore the field.

Must never happen: an object of which a single byte was changed is taken for what was written. If
the field's name was changed, it looks like an object without a checksum, and all else is whole.
"""

import re
from contextlib import suppress
from typing import TypeVar

import msgspec
import xxhash

from spotelastic_checkpoints.decoders import from_json

_SEAL = b',"checksum":"%b"}'
_SEALED = re.compile(_SEAL % rb"([^\"]*)" + rb"\Z")

T = TypeVar("T")


def encode(value: msgspec.Struct) -> bytes:
    """Return the JSON object of a struct that has fields, with its checksum."""
    begun = msgspec.json.encode(value)[:-1]
    return begun + _SEAL % checksum(begun)


def decode(data: bytes, kind: type[T]) -> T:
    """Decode such an object. Raises `msgspec.DecodeError`, also where it is not whole."""
    if not is_whole(data):
        raise msgspec.DecodeError("it does not match its checksum")
    return from_json(data, kind)


def is_whole(data: bytes) -> bool:
    """Return False where the object has a checksum that does not match."""
    found = _SEALED.search(data)
    return found is None or found[1] == checksum(data[: found.start()])


def is_readable(data: bytes) -> bool:
    """Return whether the object is whole, and JSON."""
    with suppress(msgspec.DecodeError):
        decode(data, dict)
        return True
    return False


def checksum(data: bytes) -> bytes:
    """Return the checksum that the data end with."""
    return xxhash.xxh3_64_hexdigest(data).encode()
