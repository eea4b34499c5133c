"""Chooses the node that an interruption is for (pure, but for the generator that draws)."""

import random
import re
from collections.abc import Collection

from spotelastic.errors import UsageError
from spotelastic.model.progress import Status

_RANK = re.compile(r"rank (\d+)")


def victim(
    wanted: str, status: Status, draw: random.Random, going: Collection[str] = ()
) -> str | None:
    """Return the node to interrupt now: "any" that trains, that of "rank N", or the one named.

    None if there is none at the moment. Nodes that are `going` may still be in the status for a
    moment.
    """
    training = [
        node
        for node in status.nodes
        if node.state == "training" and node.ranks and node.id not in going
    ]
    rank = _RANK.fullmatch(wanted)
    if wanted == "any":
        names = sorted(node.id for node in training)
        return draw.choice(names) if names else None
    if rank is not None:
        return next((node.id for node in training if int(rank[1]) in node.ranks), None)
    return wanted


def node_named(wanted: str, status: Status) -> str:
    """Return the node that is meant. Raises `UsageError` if no such node trains."""
    found = victim(wanted, status, random.Random())
    if found is None:
        which = "no node" if wanted == "any" else f"no node with {wanted}"
        raise UsageError(f"{which} of {status.name} trains now: its job is {status.state}")
    return found
