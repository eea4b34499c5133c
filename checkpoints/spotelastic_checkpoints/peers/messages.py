"""Defines the messages between checkpoint daemons of different nodes, framed as in `framing.py`."""

from typing import Annotated

import msgspec

from spotelastic_checkpoints.decoders import from_msgpack
from spotelastic_checkpoints.memory.arena import SlotHeader
from spotelastic_checkpoints.types import Item, Value

MOST_PIECES = 256
"""Checksums that one request may ask for."""
Count = Annotated[int, msgspec.Meta(ge=0)]


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
    offset: Count
    length: Count


class AwaitOffer(Value, frozen=True, tag="offer"):
    """Wait for a save that a replica can be made of; answered with an `Offer`, or None for now.

    Comes from the daemon that keeps the replica, on the connection on which it then reads.
    """

    incarnation: str
    """Incarnation of the round that sealed it: that of both nodes."""
    after: int
    """Only a later step counts."""
    rate: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """Most bytes per second that are sent on this connection from now on; 0: no limit."""


class OfferedSlot(Value, frozen=True):
    """What one rank's slot has of the save that no other node holds: its beginning."""

    generation: int
    header: SlotHeader
    items: tuple[Item, ...]


class Offer(Value, frozen=True):
    """A save of which a replica can be made."""

    slots: tuple[OfferedSlot, ...]
    """Those of all ranks of the node."""


class Digest(Value, frozen=True, tag="digest"):
    """Ask for the checksums of a slot's bytes.

    The answer has the xxh3 (64 bits) of each `piece` bytes, of which there are at most
    `MOST_PIECES`.
    """

    rank: int
    generation: int
    offset: Count
    length: Count
    piece: Annotated[int, msgspec.Meta(ge=1)]

    @property
    def pieces(self) -> int:
        """How many checksums are asked for."""
        return -(-self.length // self.piece)


PeerRequest = Inventory | Read | AwaitOffer | Digest


def decode_request(body: bytes) -> tuple[int, PeerRequest]:
    """Decode a request and its id. Raises `msgspec.MsgspecError`."""
    return from_msgpack(body, tuple[int, PeerRequest])
