"""`PodConfig`, the description of a job whose nodes are pods: `JobConfig` with what pods need."""

from dataclasses import dataclass

from spotelastic.client.config.job_config import JobConfig
from spotelastic.client.config.options.pods import PodOptions

PRINTED = frozenset(
    {
        *("script", "args", "name", "min", "max", "nproc_per_node", "instance_types", "gpus"),
        *("zones", "snapshot_every", "checkpoint_every", "keep_last", "keep_every", "replicate"),
        *("output", "rehearse", "exact", "guard", "audit"),
        *("allow_uncommitted", "max_restarts", "stall_timeout", "exit_barrier_timeout", "gang"),
        *("image", "env", "env_file", "secret", "bucket", "deadline", "metrics_port"),
        *("resume", "lease", "linger", "setup", "replace_slow"),
        *PodOptions.__dataclass_fields__,
    }
) - {"kube", "context"}
"""Fields that an ElasticJob depends on; all others are of a command."""


@dataclass(frozen=True)
class PodConfig(PodOptions, JobConfig):
    """A job whose nodes may be pods: with `kube=True` they are.

    The fields are the flags of `up`, with underscores; those of `PRINTED` are of `spotelastic kube
    render` as well. Raises `UsageError` for a value that its flag would not take either.
    """
