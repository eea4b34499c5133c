"""Train on spot GPUs as if they were never taken away: the public Python API.

Importing this package loads neither torch nor boto3. Each public name (`Checkpointer`, `up`, ...)
imports its module on first use, and so do `client`, `dcp`, `errors` and `parameter_server`, which
have what fewer programs need.
"""

import sys
import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any

from spotelastic.version import __version__ as __version__

if TYPE_CHECKING:
    from spotelastic import client as client
    from spotelastic import dcp as dcp
    from spotelastic import errors as errors
    from spotelastic import parameter_server as parameter_server
    from spotelastic.client.api import up as up
    from spotelastic.client.config.job_config import JobConfig as JobConfig
    from spotelastic.launcher.api import launch as launch
    from spotelastic.training.checkpointer import Checkpointer as Checkpointer
    from spotelastic.training.data.sampler import ElasticSampler as ElasticSampler
    from spotelastic.training.data.sampler import microbatches as microbatches
    from spotelastic.training.state.per_rank import PerRank as PerRank

__all__ = [
    "Checkpointer",
    "ElasticSampler",
    "JobConfig",
    "PerRank",
    "client",
    "launch",
    "microbatches",
    "up",
]
_MODULES = ("client", "dcp", "errors", "parameter_server")
_FORMER = dict.fromkeys(("CheckpointReader", "CheckpointWriter"), "spotelastic.dcp") | (
    dict.fromkeys(("JobFailed", "WorkerFailed"), "spotelastic.errors")
)
"""Names that 0.1 had here, with their modules. They go with 0.3."""
_LAZY = {
    "Checkpointer": "spotelastic.training.checkpointer",
    "ElasticSampler": "spotelastic.training.data.sampler",
    "JobConfig": "spotelastic.client.config.job_config",
    "PerRank": "spotelastic.training.state.per_rank",
    "launch": "spotelastic.launcher.api",
    "microbatches": "spotelastic.training.data.sampler",
    "up": "spotelastic.client.api",
    **_FORMER,
}
"""The module that defines each public name."""

_OF_NODES = ("Checkpointer", "launch", "parameter_server")
"""Names for what runs on a node, which takes Linux."""
_OF_TRAIN = ("torch", "numpy")
"""Packages that the extra `train` brings."""


def __getattr__(name: str) -> Any:
    if sys.platform == "win32":
        import_module("spotelastic.systems").refuse_windows()
    if name not in _LAZY and name not in _MODULES:
        raise AttributeError(f"module 'spotelastic' has no attribute {name!r}")
    if name in _OF_NODES:
        import_module("spotelastic.systems").require_linux(f"spotelastic.{name}")
    try:
        if name in _MODULES:
            return import_module(f"spotelastic.{name}")
        value = getattr(import_module(_LAZY[name]), name)
    except ModuleNotFoundError as error:
        if error.name not in _OF_TRAIN:
            raise
        raise ModuleNotFoundError(
            f"spotelastic.{name} needs {error.name}: pip install 'spotelastic[train]'",
            name=error.name,
        ) from None
    if name in _FORMER:
        globals()[name] = value  # it is told once
        instead = f"{_FORMER[name]}.{name}"
        warnings.warn(f"spotelastic.{name} is now {instead}", FutureWarning, stacklevel=2)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES, *__all__})
