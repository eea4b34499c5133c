"""Pure: what daemons ask each other for, framed as in `framing.py`."""

import msgspec

from spotelastic_checkpoints.types import Item, Value


class Inventory(Value, frozen=True, tag="inventory"):
    """The sealed slots of one save; answered with a tuple of Shelf."""

    incarnation: str
    step: int
    layout: str


class Shelf(Value, frozen=True):
    """One sealed slot as a peer sees it. `generation` changes when it is overwritten."""

    rank: int
    generation: int
    world_size: int
    shared: int
    """Distinct shared items that all slots of the save hold together."""
    items: tuple[Item, ...]


class Read(Value, frozen=True, tag="read"):
    """Bytes of a slot; answered with their number, then the raw bytes, then their xxh3 (64 bits,
    hex), or an error when the slot was overwritten meanwhile."""

    rank: int
    generation: int
    offset: int
    length: int


PeerRequest = Inventory | Read

_request = msgspec.msgpack.Decoder(tuple[int, PeerRequest])


def decode_request(body: bytes) -> tuple[int, PeerRequest]:
    return _request.decode(body)
