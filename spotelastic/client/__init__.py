"""Brings up clusters and commands them from Python, as the `spotelastic` commands do.

    cluster = spotelastic.up(spotelastic.JobConfig("train.py", local=True, min=2, max=4))
    cluster.interrupt(seconds=15)
    cluster.wait()
    print(cluster.report().goodput)
    cluster.down()

Importing this package is cheap. Each public name imports its module on first use.
"""

from collections.abc import Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spotelastic.client.api import clusters as clusters
    from spotelastic.client.api import find as find
    from spotelastic.client.api import plan as plan
    from spotelastic.client.api import up as up
    from spotelastic.client.bringing_up.plan import Planned as Planned
    from spotelastic.client.cluster import Cluster as Cluster
    from spotelastic.client.commands import CommandResult as CommandResult
    from spotelastic.client.config.job_config import JobConfig as JobConfig
    from spotelastic.client.confirmation import ConfirmationRequest as ConfirmationRequest
    from spotelastic.client.dump_archive import Dump as Dump
    from spotelastic.client.interrupt import CausedInterruption as CausedInterruption
    from spotelastic.client.kept_files import FetchedFiles as FetchedFiles
    from spotelastic.client.kept_files import ListedFile as ListedFile
    from spotelastic.client.kubernetes.pod_config import PodConfig as PodConfig
    from spotelastic.client.logs import OutputLine as OutputLine
    from spotelastic.client.moving.move import MoveResult as MoveResult
    from spotelastic.client.progress import FirstStep as FirstStep
    from spotelastic.client.progress import ProgressMessage as ProgressMessage
    from spotelastic.client.targets.cloud_target import CloudEnded as CloudEnded
    from spotelastic.errors import EnvironmentFailure as EnvironmentFailure
    from spotelastic.errors import JobFailed as JobFailed
    from spotelastic.errors import NotConfirmed as NotConfirmed
    from spotelastic.errors import SpotelasticError as SpotelasticError
    from spotelastic.errors import Unavailable as Unavailable
    from spotelastic.errors import UsageError as UsageError
    from spotelastic.model.progress import ClusterSummary as ClusterSummary
    from spotelastic.model.progress import Cost as Cost
    from spotelastic.model.progress import Event as Event
    from spotelastic.model.progress import Interruption as Interruption
    from spotelastic.model.progress import NodeStatus as NodeStatus
    from spotelastic.model.progress import Point as Point
    from spotelastic.model.progress import Report as Report
    from spotelastic.model.progress import Status as Status

_ERRORS = ("EnvironmentFailure", "JobFailed", "NotConfirmed", "SpotelasticError", "Unavailable")
_PUBLISHED = ("ClusterSummary", "Cost", "Event", "Interruption", "NodeStatus", "Point", "Report")
_LAZY = {
    **dict.fromkeys(("clusters", "find", "plan", "up"), "spotelastic.client.api"),
    **dict.fromkeys((*_ERRORS, "UsageError"), "spotelastic.errors"),
    **dict.fromkeys((*_PUBLISHED, "Status"), "spotelastic.model.progress"),
    "CausedInterruption": "spotelastic.client.interrupt",
    "CloudEnded": "spotelastic.client.targets.cloud_target",
    "Cluster": "spotelastic.client.cluster",
    "CommandResult": "spotelastic.client.commands",
    "MoveResult": "spotelastic.client.moving.move",
    "ConfirmationRequest": "spotelastic.client.confirmation",
    "Dump": "spotelastic.client.dump_archive",
    **dict.fromkeys(("FetchedFiles", "ListedFile"), "spotelastic.client.kept_files"),
    "FirstStep": "spotelastic.client.progress",
    "JobConfig": "spotelastic.client.config.job_config",
    "OutputLine": "spotelastic.client.logs",
    "Planned": "spotelastic.client.bringing_up.plan",
    "PodConfig": "spotelastic.client.kubernetes.pod_config",
    "ProgressMessage": "spotelastic.client.progress",
}
"""The module that defines each public name."""


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'spotelastic.client' has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)


def __dir__() -> Iterable[str]:
    return sorted([*globals(), *_LAZY])
