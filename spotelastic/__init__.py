"""Train on spot GPUs as if they were never taken away: the public Python API.

Importing this package loads neither torch nor boto3. Each public name (`Checkpointer`, `up`, ...)
imports its module on first use.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from spotelastic.version import __version__ as __version__

if TYPE_CHECKING:
    from spotelastic import client as client
    from spotelastic.client.api import up as up
    from spotelastic.client.cluster import Cluster as Cluster
    from spotelastic.client.config.job_config import JobConfig as JobConfig
    from spotelastic.errors import JobFailed as JobFailed
    from spotelastic.errors import WorkerFailed as WorkerFailed
    from spotelastic.launcher.api import launch as launch
    from spotelastic.training.checkpointer import Checkpointer as Checkpointer
    from spotelastic.training.data.sampler import ElasticSampler as ElasticSampler
    from spotelastic.training.data.sampler import microbatches as microbatches
    from spotelastic.training.dcp.reader import CheckpointReader as CheckpointReader
    from spotelastic.training.dcp.writer import CheckpointWriter as CheckpointWriter
    from spotelastic.training.parameter_server.server import ParameterServer as ParameterServer
    from spotelastic.training.state.per_rank import PerRank as PerRank

_LAZY = {
    "Cluster": "spotelastic.client.cluster",
    "JobConfig": "spotelastic.client.config.job_config",
    "JobFailed": "spotelastic.errors",
    "WorkerFailed": "spotelastic.errors",
    "launch": "spotelastic.launcher.api",
    "CheckpointReader": "spotelastic.training.dcp.reader",
    "CheckpointWriter": "spotelastic.training.dcp.writer",
    "Checkpointer": "spotelastic.training.checkpointer",
    "ElasticSampler": "spotelastic.training.data.sampler",
    "ParameterServer": "spotelastic.training.parameter_server.server",
    "PerRank": "spotelastic.training.state.per_rank",
    "microbatches": "spotelastic.training.data.sampler",
    "up": "spotelastic.client.api",
}
"""The module that defines each public name."""

_OF_NODES = ("Checkpointer", "ParameterServer", "launch")
"""Names for what runs on a node, which takes Linux."""
_OF_TRAIN = ("torch", "numpy")
"""Packages that the extra `train` brings."""


def __getattr__(name: str) -> Any:
    if sys.platform == "win32":
        import_module("spotelastic.systems").refuse_windows()
    if name == "client":
        return import_module("spotelastic.client")
    if name not in _LAZY:
        raise AttributeError(f"module 'spotelastic' has no attribute {name!r}")
    if name in _OF_NODES:
        import_module("spotelastic.systems").require_linux(f"spotelastic.{name}")
    try:
        return getattr(import_module(_LAZY[name]), name)
    except ModuleNotFoundError as error:
        if error.name not in _OF_TRAIN:
            raise
        raise ModuleNotFoundError(
            f"spotelastic.{name} needs {error.name}: pip install 'spotelastic[train]'",
            name=error.name,
        ) from None


def __dir__() -> list[str]:
    return sorted([*globals(), "client", *_LAZY])
