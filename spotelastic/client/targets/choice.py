"""The cloud that a job names, before anything of it is used: what it checks, and how it is entered.

It is the one place that asks whether a job is for the local cloud.
"""

import tempfile
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from spotelastic import systems, validation
from spotelastic.aws.base.names import CLIENT_PORT, PEER_PORT
from spotelastic.client.config.job_config import JobConfig
from spotelastic.client.config.moving_policy import moves_by_itself, named
from spotelastic.client.config.option import config_fields
from spotelastic.client.config.panels import NETWORK
from spotelastic.client.kubernetes.pod_config import PodConfig
from spotelastic.client.progress import Say
from spotelastic.client.targets import find
from spotelastic.client.targets.cloud_target import CloudTarget
from spotelastic.client.targets.local_target import LocalTarget
from spotelastic.errors import UsageError
from spotelastic.local import cloud
from spotelastic.model.job import Settings

SHARED_LEASE, SHARED_SEEN_WITHIN = 3.0, 1.0
"""Lease and detection time on the local cloud, in seconds.

Local nodes share this machine's cores: a node that starts can hold up the others for longer than it
would on an instance of its own.
"""
AWS_LEASE, AWS_SEEN_WITHIN = 8.0, 1.0
"""The same on AWS.

An agent there may stand still for seconds: data loaders take every core, a new disk fetches each
block from S3, a driver is reset. Leaving out a node that lives costs all of them a new process
group with CUDA and NCCL, some 30 s. Waiting for one that is gone rarely costs the whole lease: its
peers' collectives fail at once, and EC2 says within seconds that the instance ends.
"""


class CloudChoice(Protocol):
    """AWS, the local cloud or Kubernetes, as the choice of a job."""

    workers: int = 1
    """Workers on each node, where the job names no number; 0: one per GPU."""

    def check_system(self) -> None:
        """Raise `EnvironmentFailure` where this cloud cannot be used from this machine's system."""
        systems.refuse_windows()

    def check(self, config: JobConfig) -> None:
        """Raise `UsageError` for what this cloud does not do."""

    def check_machine(self, config: JobConfig) -> None:
        """Raise an error if this machine lacks what the cloud needs."""
        return

    def fitted(self, settings: Settings) -> Settings:
        """Return the settings as this cloud needs them."""
        return replace(settings, lease=AWS_LEASE, seen_within=AWS_SEEN_WITHIN)

    def applicable(self, config: JobConfig) -> JobConfig:
        """Return the job without what has no effect here, which a file for both may name."""
        return config

    def has_account(self) -> bool:
        """Whether there is an account, without which only list prices are known."""
        return True

    def enter(self, config: JobConfig, say: Say) -> CloudTarget:
        """Return the account in which the cluster is to be."""


def chosen(config: JobConfig) -> CloudChoice:
    """Return the cloud that the job is for."""
    if isinstance(config, PodConfig) and config.kube:
        return KubeChoice()
    return LocalChoice() if config.local else AwsChoice()


class AwsChoice(CloudChoice):
    """A job on AWS."""

    workers = 0

    def check(self, config: JobConfig) -> None:
        if config.drill:
            raise UsageError("--drill interrupts nodes of the local cloud: add --local")
        if config.region and config.regions:
            raise UsageError(
                f"--regions {','.join(config.regions)}: --region {config.region} names one already "
                "(also as region in spotelastic.toml): give one of the two"
            )

    def has_account(self) -> bool:
        return find.aws_is_configured()

    def enter(self, config: JobConfig, say: Say) -> CloudTarget:
        return find.in_region(config.region)


class LocalChoice(CloudChoice):
    """A job on this machine. Its nodes are processes without GPUs."""

    def check_system(self) -> None:
        systems.require_linux("--local")

    def check(self, config: JobConfig) -> None:
        if config.image:
            raise UsageError(
                f"--image {config.image}: nodes of the local cloud are processes: remove --local"
            )
        if config.mount:
            raise UsageError(
                f"--mount {config.mount[0]}: nodes of the local cloud are processes, which see the "
                "folders of this machine: remove --local"
            )
        if config.keep_failed and not (config.detach or config.keep):
            raise UsageError(
                "--keep-failed: a local cluster ends with the command that made it: add --detach "
                "or --keep"
            )
        if unknown := [name for name in named(config.regions) if name not in cloud.REGIONS]:
            raise UsageError(
                f"--regions {','.join(unknown)}: the local cloud has {', '.join(cloud.REGIONS)}"
            )

    def check_machine(self, config: JobConfig) -> None:
        validation.local_parts()
        validation.local_types(config.instance_types)
        validation.ports(CLIENT_PORT, PEER_PORT)
        workers = config.nproc_per_node or self.workers
        validation.room(config.most, workers, folder=Path(tempfile.gettempdir()))

    def fitted(self, settings: Settings) -> Settings:
        return replace(settings, lease=SHARED_LEASE, seen_within=SHARED_SEEN_WITHIN)

    def applicable(self, config: JobConfig) -> JobConfig:
        regions = config.regions if moves_by_itself(config) else ()
        kept = ("vpc", "subnets", "tag")
        return replace(_without_account(config, kept), regions=regions)

    def enter(self, config: JobConfig, say: Say) -> CloudTarget:
        """Use the running local cloud, or start one."""
        return LocalTarget.join(say)


REFUSED = {
    "local": "pods do not run in the local cloud: remove --local",
    "drill": "interrupt pods with `spotelastic interrupt any`, or with kubectl: remove --drill",
    "notify": "notifications are sent for clusters on AWS alone: remove --notify",
    "notify_digest": "notifications are sent for clusters on AWS alone: remove --notify-digest",
    "max_price": "the prices of a Kubernetes cluster's machines are not known: remove --max-price",
    "max_cost": "the prices of a Kubernetes cluster's machines are not known: remove --max-cost",
    "fresh": "this machine may not reach the storage: begin with another --name and --storage",
    "keep_failed": "the pod of a failed worker is not kept: remove --keep-failed",
    "mount": "volumes are named in the pods' resource: remove --mount",
    "placement": "the scheduler places pods: remove --placement",
    "build_secret": "the image has the packages: remove --build-secret",
    "environment": "the image has the packages: remove --environment",
    "region_patience": "a Kubernetes cluster is in one region: remove --region-patience",
    "prefer_capacity": "a Kubernetes cluster is in one region: remove --prefer-capacity",
}
"""Fields that would promise what a cluster on Kubernetes does not do."""


def _without_account(config: JobConfig, kept: Collection[str] = ()) -> JobConfig:
    """Return the job without what an AWS account demands or gives, but for the fields `kept`."""
    its = (field for field in config_fields(type(config)) if field.panel == NETWORK)
    return replace(config, **{each.name: each.default for each in its if each.name not in kept})


class KubeChoice(CloudChoice):
    """A job on Kubernetes. Its nodes are pods."""

    def check(self, config: JobConfig) -> None:
        for name, why in REFUSED.items():
            if getattr(config, name):
                flag = name.replace("_", "-")
                raise UsageError(f"--kube: {why} (also as {flag} in spotelastic.toml)")
        if config.on_demand not in ("", "never"):
            raise UsageError(
                "--kube: which machines are on demand is the cluster's matter: remove --on-demand, "
                "and choose machines with --node-selector"
            )
        if not config.image:
            raise UsageError(
                "--kube: name the container image of the pods, with the script's packages and "
                "spotelastic: --image REGISTRY/train:1"
            )

    def applicable(self, config: JobConfig) -> JobConfig:
        """Return the job without what concerns an AWS account alone."""
        return replace(
            _without_account(config), region=None, regions=(), read=(), write=(), disk=None,
            control=None, control_type=None,
        )  # fmt: skip

    def enter(self, config: JobConfig, say: Say) -> CloudTarget:
        raise UsageError("--kube: a namespace is no account")
