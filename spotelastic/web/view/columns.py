"""The words of all tables: their columns, in one order, for pages and for terminals (pure).

A column's key is the field of the row (rows.py) that it shows.
"""

from dataclasses import dataclass
from functools import partial


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table."""

    key: str
    name: str
    help: str = ""
    is_number: bool = False

    @property
    def typed(self) -> str:
        """The name in a terminal, on as many lines as it has words."""
        return self.name.lower().replace(" ", "\n")


_number = partial(Column, is_number=True)
CLUSTERS = (
    Column("name", "Cluster"),
    Column("state", "State"),
    _number("step", "Step", "The newest step, and of how many where the script says"),
    _number("left", "Left", "About how long it still trains"),
    _number("nodes", "Nodes", "Worker nodes that are there"),
    Column("began", "Started", "When the cluster was created"),
    Column("seen", "Last seen", "When its controller has published something last"),
    _number("cost", "Cost", "Of the whole cluster so far, in US dollars"),
    _number("per_hour", "Per hour", "Of all that runs now, in US dollars"),
)
INTERRUPTIONS = (
    Column("label", "Interruption"),
    Column("at", "Time", "When it happened"),
    _number(
        "pause", "Pause", "From the last step before to the first one after, less a usual step"
    ),
    _number("repeated", "Steps repeated", "Steps that were executed again"),
    _number("cost", "Cost", "US dollars of all workers in the pause and in the repeated steps"),
    Column("node", "Node"),
    Column("resumed_from", "Resumed from", "The step from which training went on, and its source"),
    Column("is_in_store", "In store", "Whether that step was committed in the object store"),
    Column("source", "Told by", "What has reported it first"),
    _number("seen_after", "After", "How long after it happened that was"),
)
NODES = (
    Column("node", "Node"),
    Column("role", "Role"),
    Column("state", "State"),
    Column("type", "Type"),
    Column("zone", "Zone"),
    _number("ranks", "Ranks"),
    _number("gpu", "GPUs", "How busy they are, and how much of their memory is in use"),
    Column("address", "Address"),
)
CHECKPOINTS = (
    _number("step", "Step"),
    _number("epoch", "Fencing epoch", "Number of the run's claim on the store"),
    Column("state", "State"),
    Column("age", "Saved"),
    _number("size", "Size"),
    _number("ranks", "Ranks", "Workers that have saved it"),
    Column("verified", "Verified", "When every byte of it was read last"),
)
COSTS = (
    Column("name", "Item"),
    _number("so_far", "So far", "In US dollars"),
    _number("per_hour", "Per hour", "Of what runs now, in US dollars"),
)
GOODPUT = "Share of the time between the first and the last step that went into steps that count"
REHEARSAL = "A step is made again, as after an interruption: its result has to be the same"
EVENTS = {
    "notice": "notice",
    "loss": "node lost",
    "terminate": "node ended",
    "failure": "worker failed",
    "etcd": "etcd away",
    "committed": "saved",
    "schedule": "intervals",
    "ledger": "cost",
}
"""What events of these kinds are called for people; all others by their kinds."""
