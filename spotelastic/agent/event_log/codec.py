"""Encodes the values of an agent's event log (pure).

Values are written as MessagePack, because JSON has no infinity, which deadlines have. Only an event
names its type.
"""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet

import msgspec


def foreign(value: object) -> object:
    """Returns what is written of a value that msgspec does not know."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, AbstractSet):
        return sorted(value)
    return None  # a connection, of which nothing can be kept


encode = msgspec.msgpack.Encoder(enc_hook=foreign).encode
decode = msgspec.msgpack.Decoder().decode
