"""Train on spot GPUs as if they were never taken away.

`import spotelastic` loads neither torch nor boto3: names for training scripts resolve on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spotelastic.errors import JobFailed as JobFailed
    from spotelastic.errors import WorkerFailed as WorkerFailed
    from spotelastic.launcher.api import launch as launch
    from spotelastic.training.checkpointer import Checkpointer as Checkpointer
    from spotelastic.training.data.sampler import ElasticSampler as ElasticSampler
    from spotelastic.training.data.sampler import microbatches as microbatches
    from spotelastic.training.dcp.reader import CheckpointReader as CheckpointReader
    from spotelastic.training.dcp.writer import CheckpointWriter as CheckpointWriter
    from spotelastic.training.state.per_rank import PerRank as PerRank

__version__ = "0.1.0"

_LAZY = {
    "JobFailed": "spotelastic.errors",
    "WorkerFailed": "spotelastic.errors",
    "launch": "spotelastic.launcher.api",
    "CheckpointReader": "spotelastic.training.dcp.reader",
    "CheckpointWriter": "spotelastic.training.dcp.writer",
    "Checkpointer": "spotelastic.training.checkpointer",
    "ElasticSampler": "spotelastic.training.data.sampler",
    "PerRank": "spotelastic.training.state.per_rank",
    "microbatches": "spotelastic.training.data.sampler",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'spotelastic' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY])
