"""Encodes the records of an agent's event log (pure).

Values are written as MessagePack, because JSON has no infinity, which deadlines have. Only an event
names its type.

A record is a list: its kind, its time, and what that kind tells.

| kind      | what it tells                                                        |
|-----------|----------------------------------------------------------------------|
| `OPENED`  | header; the node's state; the state of the run                       |
| `EVENT`   | name of the event's type; the event                                  |
| `STORE`   | the watched prefix; what etcd delivered of it                        |
| `STATE`   | fields of the node's state that changed without an event             |
| `SEEN`    | fields of the run's state that changed without a delivery            |
| `DECIDED` | when to look again; actions, each with its name; new ids that it took |
| `LOST`    | why a record could not be written                                    |
| `CLOSED`  | the traceback with which the agent ended; empty: as decided          |
"""

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet

import msgspec

LENGTH = 4
"""Bytes before each record that tell its length."""


def foreign(value: object) -> object:
    """Returns what is written of a value that msgspec does not know."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, AbstractSet):
        return sorted(value)
    return None  # a connection, of which nothing can be kept


encode = msgspec.msgpack.Encoder(enc_hook=foreign).encode
decode = msgspec.msgpack.Decoder().decode


def split(data: bytes) -> Iterator[bytes]:
    """Yield the bytes of each complete record. The agent may be killed while it writes one."""
    at = 0
    while at + LENGTH <= len(data):
        end = at + LENGTH + int.from_bytes(data[at : at + LENGTH], "big")
        if end > len(data):
            return
        yield data[at + LENGTH : end]
        at = end
