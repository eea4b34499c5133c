"""Defines the messages between checkpoint daemons of different nodes, framed as in `framing.py`."""

import msgspec

from spotelastic_checkpoints.types import Item, Value


class Inventory(Value, frozen=True, tag="inventory"):
    """Ask for the sealed slots of one save; answered with a tuple of `Shelf`."""

    incarnation: str
    """Incarnation of the round that sealed them."""
    step: int
    layout: str
    """Hash of the layout."""


class Shelf(Value, frozen=True):
    """One sealed slot of a node, as offered to another node."""

    rank: int
    """The rank whose save the slot holds."""
    generation: int
    """Changes when the slot is overwritten."""
    world_size: int
    shared: int
    """Number of distinct items that are not per-rank, in all slots of the save together."""
    items: tuple[Item, ...]


class Read(Value, frozen=True, tag="read"):
    """Ask for bytes of a slot.

    Answered with their number, then the raw bytes, then their xxh3 (64 bits, hex). The last is an
    error instead when the slot was overwritten meanwhile.
    """

    rank: int
    generation: int
    offset: int
    length: int


PeerRequest = Inventory | Read

_request = msgspec.msgpack.Decoder(tuple[int, PeerRequest])


def decode_request(body: bytes) -> tuple[int, PeerRequest]:
    """Decode a request and its id."""
    return _request.decode(body)
