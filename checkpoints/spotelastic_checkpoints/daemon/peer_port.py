"""Lets a daemon that takes over listen where the one before it did.

Other nodes were told of that address when their round began: whoever keeps this node's replica, or
restores from its slots, goes on asking there.
"""

from contextlib import suppress
from pathlib import Path

from spotelastic_checkpoints import addresses

_NAME = "port"


def remember(arena: Path, address: str) -> None:
    """Write down the port of an endpoint."""
    with suppress(OSError):  # Slots may have left no room for it: the next one has another port.
        (arena / _NAME).write_text(str(addresses.split(address)[1]))


def recall(arena: Path) -> int:
    """Return the port of the daemon before; 0 if there is none, or it is not known."""
    try:
        return int((arena / _NAME).read_text())
    except (OSError, ValueError):
        return 0
