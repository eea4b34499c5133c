"""Reads back what was uploaded, where no store has compared it with a checksum of what was sent.

Must never happen: what a proxy, a gateway or its memory has changed on the way is committed. The
checksums of items only find that when it is restored.
"""

import xxhash

from spotelastic_checkpoints.errors import StorageUnavailable
from spotelastic_checkpoints.storage.object_store import Storage

PIECE = 4 << 20
"""Bytes that are read back at a time."""


def check_arrived(storage: Storage, key: str, data: memoryview) -> None:
    """Raise `StorageUnavailable` where the object is not `data`: it is to be sent again."""
    room = memoryview(bytearray(min(PIECE, len(data))))
    for start in range(0, len(data), PIECE):
        sent = data[start : start + PIECE]
        come = room[: storage.read(key, start, room[: len(sent)])]
        if xxhash.xxh3_128_digest(come) != xxhash.xxh3_128_digest(sent):
            raise altered(f"{storage.url}/{key}")


def altered(place: str) -> StorageUnavailable:
    """Return the error for an object that arrived changed."""
    return StorageUnavailable(
        f"{place}: what arrived is not what was sent: a proxy, a gateway or a machine's memory "
        "changes bytes on the way; it is sent again"
    )
