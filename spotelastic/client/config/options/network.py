"""Declares the options of `up` about an account's network."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from spotelastic.client.config.option import CLUSTER, UP, option
from spotelastic.client.config.panels import NETWORK
from spotelastic.model.job import JobSpec


def _given(
    help: str,
    metavar: str,
    stored: Callable[[JobSpec], object] | None = None,
    default: str | None = None,
) -> str | None:
    """Declare what the account gives; a cluster keeps what is not `stored`."""
    effect = UP if stored else CLUSTER
    return option(
        None, help, effect, NETWORK, metavar=metavar, stored=stored, shown_default=default
    )


@dataclass(frozen=True, kw_only=True)
class NetworkOptions:
    """What an account demands of a cluster: its network, tags and permissions."""

    vpc: str | None = option(
        None, "Use this existing VPC; needs --subnets.", CLUSTER, NETWORK, metavar="VPC"
    )
    subnets: Sequence[str] = option(
        (),
        "Subnets of that VPC for the nodes, one per zone.",
        CLUSTER,
        NETWORK,
        metavar="S[,S...]",
        commas=True,
    )
    tag: Sequence[str] | Mapping[str, str] = option(
        (),
        "Tag for everything that is made in the account. Can be repeated.",
        UP,
        NETWORK,
        metavar="KEY=VALUE",
        stored=lambda job: " ".join(f"{k}={v}" for k, v in sorted(job.demands.tags.items())),
    )
    reservations: Sequence[str] = option(
        (),
        "Reservations of capacity to use first: their ids, or open.",
        UP,
        NETWORK,
        metavar="ID[,ID...]",
        commas=True,
        stored=lambda job: ",".join(each.id for each in job.capacity.reservations),
    )
    permissions_boundary: str | None = option(
        None,
        "Permissions boundary of the roles that are made; no effect with --local.",
        UP,
        NETWORK,
        metavar="ARN",
        stored=lambda job: job.demands.boundary,
    )
    kms_key: str | None = option(
        None, "KMS key of disks, parameters and logs on AWS.", CLUSTER, NETWORK, metavar="KEY"
    )
    data_key: Sequence[str] = option(
        (),
        "KMS keys of the buckets of --read and --write, where they are not --kms-key.",
        UP,
        NETWORK,
        metavar="ARN[,A...]",
        commas=True,
        stored=lambda job: ",".join(job.demands.data_keys),
    )
    worker_profile: str | None = _given(
        "Instance profile of workers that the account has, with its role; none is made then.",
        "PROFILE",
        lambda job: job.demands.worker_profile,
    )
    control_profile: str | None = _given(
        "The same of control nodes.", "PROFILE", lambda job: job.demands.control_profile
    )
    stack_role: str | None = _given(
        "Role that the account has for CloudFormation to delete clusters with.",
        "ARN",
        lambda job: job.demands.stack_role,
    )
    security_group: str | None = _given(
        "Security group of --vpc for all nodes; none is made then.", "SG"
    )
    proxy: str | None = _given(
        "Proxy by which nodes in --vpc reach the internet, from their boot on.",
        "URL",
        lambda job: job.demands.proxy,
    )
    no_proxy: Sequence[str] = option(
        (),
        "What they reach without it, besides their own network and its endpoints.",
        UP,
        NETWORK,
        metavar="HOSTS",
        commas=True,
        stored=lambda job: ",".join(job.demands.no_proxy),
    )
    index_url: str | None = _given(
        "Package index from which nodes install.", "URL", lambda job: job.demands.index_url, "PyPI"
    )
    worker_image: str | None = _given(
        "Machine image of workers, or the parameter that names it.", "AMI", default="AWS's"
    )
    control_image: str | None = _given(
        "Machine image of control nodes, or the parameter that names it.",
        "AMI",
        lambda job: job.demands.control_image,
        "Amazon Linux's",
    )
