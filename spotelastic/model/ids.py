"""Makes unique ids for rounds, registrations, proposals and failures."""

import os


def new_id() -> str:
    """Return 64 random bits in hex.

    They are unique within a run, and short, because a round holds one for each of its nodes and is
    delivered to all of them.
    """
    return os.urandom(8).hex()
