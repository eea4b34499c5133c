"""Tells all ranks of a round something through the store that they meet at."""

from spotelastic.torch_names import store_of_all


def tell_all(key: str, value: str) -> None:
    """Set a key in the round's store, and return once the store has it.

    torch's `set()` returns once the request is sent. Ranks that hear of this one by other
    connections, as in a step vote, might look before it has arrived. They would do without what
    this rank counts on, and the two would wait for each other.
    """
    store = store_of_all()
    store.set(key, value)
    store.check([key])  # one connection's requests are answered in their order
