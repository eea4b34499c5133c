"""`PodConfig`, the description of a job whose nodes are pods: `JobConfig` with what pods need."""

from dataclasses import dataclass

from spotelastic.client.config.job_config import JobConfig
from spotelastic.client.config.options.pods import PodOptions


@dataclass(frozen=True)
class PodConfig(PodOptions, JobConfig):
    """A job whose nodes may be pods: with `kube=True` they are.

    The fields are the flags of `up`, with underscores. Raises `UsageError` for a value that its
    flag would not take either.
    """
