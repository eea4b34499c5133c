"""Election of one leader among many by a leased key: who creates the key leads until it is gone.

Leadership is never a boolean kept in memory: it is a precondition (`Leadership.compare`) that every
write of the leader carries, so that a leader that was deposed without noticing cannot write. Those
who do not lead watch the key and campaign again when it disappears. After etcd's
`client/v3/concurrency`, without its queue of waiters: whoever comes first leads.
"""

from dataclasses import dataclass

from spotelastic.store.port import Compare, Delete, Put, Store


@dataclass(frozen=True, slots=True)
class Leadership:
    """Of one election key, since the store revision `created`."""

    store: Store
    key: str
    created: int

    @property
    def compare(self) -> Compare:
        """Holds for as long as this leadership does; goes into each of the leader's commits."""
        return Compare(self.key, "created", self.created)

    def resign(self) -> bool:
        """Deletes the key if it is still ours; False when the leadership was lost before."""
        return self.store.commit((self.compare,), (Delete(self.key),)).succeeded


def campaign(store: Store, key: str, value: bytes, lease: int) -> Leadership | None:
    """Tries once to lead, without waiting; None while somebody else does.

    Raises `Unavailable` when the outcome is unknown: the next campaign under the same lease then
    finds its own key and takes it up.
    """
    outcome = store.commit((Compare(key, "created", 0),), (Put(key, value, lease),))
    if outcome.succeeded:
        return Leadership(store, key, outcome.revision)
    held = store.get(key)
    if held is not None and held.lease == lease and held.data == value:
        return Leadership(store, key, held.created)
    return None
