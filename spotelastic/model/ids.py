"""Names for what a run makes: rounds, registrations, proposals, failures."""

import os


def new_id() -> str:
    """64 random bits in hex: told apart among all that one run ever makes, and short, because a
    round holds one for each of its nodes and is delivered to all of them."""
    return os.urandom(8).hex()
