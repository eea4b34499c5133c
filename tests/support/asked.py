"""Makes a small cluster specification, as `up` would, for tests that need a cluster."""

from typing import Any

from support.account import NETWORK

from spotelastic.aws.planning.plan import ClusterSpec
from spotelastic.model.job import Settings


def request(name: str, nodes: int = 1, **changes: Any) -> ClusterSpec:
    """For one to `nodes` nodes without a GPU."""
    given: dict[str, Any] = {
        "script": "train.py",
        "args": (),
        "code": "c0de",
        "archive": b"an archive",
        "settings": Settings(1, nodes, workers=1),
        "instance_types": ("c5.large",),
        "network": NETWORK,
    }
    return ClusterSpec(name=name, **(given | changes))
