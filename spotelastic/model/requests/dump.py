"""The request for what nodes know of themselves, and where in the cluster's bucket that goes."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime

from spotelastic.model.protocol import PROTOCOL, ProtocolVersion

DUMPS = "dumps/"
"""Folder of all dumps, below the cluster's."""
_FILE = re.compile(r".+-dump-\d{8}-\d{6}\.tar\.gz")
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
    """Return the folder of the answers to a request."""
    return f"{DUMPS}{request}/"


def object_name(request: str, node: str) -> str:
    """Return the name of a node's archive."""
    return f"{folder(request)}{node}.tar.gz"


def file_name(cluster: str, node: str | None, at: float) -> str:
    """Return the name of the archive that the command `dump` writes."""
    when = datetime.fromtimestamp(at, UTC).strftime("%Y%m%d-%H%M%S")
    return f"{'-'.join(filter(None, (cluster, node)))}-dump-{when}.tar.gz"


def is_dump(name: str) -> bool:
    """Whether a file has the name of such an archive."""
    return _FILE.fullmatch(name) is not None
