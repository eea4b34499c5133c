"""The request for what nodes know of themselves, and where in the cluster's bucket that goes."""

from dataclasses import dataclass

from spotelastic.model.protocol import PROTOCOL, ProtocolVersion

DUMPS = "dumps/"
"""Folder of all dumps, below the cluster's."""
LAST = "last"
"""In place of a request's id: what a node has left behind as it ended."""


@dataclass(frozen=True, slots=True)
class DumpRequest:
    """A request to write what a node knows of itself to the bucket; one key in etcd."""

    id: str
    node: str = ""
    """The node that is meant; empty: all nodes."""
    protocol: ProtocolVersion = PROTOCOL
    """The protocol of the controller that passed it on."""


def folder(request: str) -> str:
    """Returns the folder of the answers to a request."""
    return f"{DUMPS}{request}/"


def object_name(request: str, node: str) -> str:
    """Returns the name of a node's archive."""
    return f"{folder(request)}{node}.tar.gz"
