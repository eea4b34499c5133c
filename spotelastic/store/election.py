"""Elects one leader among many processes by a leased key: the process that creates the key leads.

Leadership is never a boolean kept in memory. It is a precondition (`Leadership.compare`) that every
write of the leader carries, so that a leader that was deposed without noticing cannot write. The
others watch the key, and campaign again when it disappears. This follows etcd's
`client/v3/concurrency`, without its queue of waiters: the first to come leads.
"""

from dataclasses import dataclass

from spotelastic.store.port import Compare, Delete, Put, Store


@dataclass(frozen=True, slots=True)
class Leadership:
    """The leadership of one election key."""

    store: Store
    key: str
    created: int
    """Store revision at which the key was created."""

    @property
    def compare(self) -> Compare:
        """Holds for as long as this leadership does.

        It belongs into each of the leader's commits.
        """
        return Compare(self.key, "created", self.created)

    def resign(self) -> bool:
        """Delete the key. Returns False when the leadership was lost before."""
        return self.store.commit((self.compare,), (Delete(self.key),)).succeeded


def depose(store: Store, key: str, value: bytes) -> bool:
    """Delete the key if the process of that value leads. Returns False if it does not.

    It may live, and lead no more: what it would write compares the key that is gone.
    """
    held = store.get(key)
    if held is None or held.data != value:
        return False
    return store.commit((Compare(key, "created", held.created),), (Delete(key),)).succeeded


def campaign(store: Store, key: str, value: bytes, lease: int) -> Leadership | None:
    """Try once to lead, without waiting. Returns None while another process leads.

    Raises `Unavailable` when the outcome is unknown. The next campaign under the same lease then
    finds its own key, and leads.
    """
    outcome = store.commit((Compare(key, "created", 0),), (Put(key, value, lease),))
    if outcome.succeeded:
        return Leadership(store, key, outcome.revision)
    held = store.get(key)
    if held is not None and held.lease == lease and held.data == value:
        return Leadership(store, key, held.created)
    return None
