"""Declares the options of `up` about an account's network."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spotelastic.client.config.option import option
from spotelastic.client.config.panels import NETWORK


@dataclass(frozen=True, kw_only=True)
class NetworkOptions:
    """What an account demands of a cluster: its network, tags and permissions."""

    PANEL = NETWORK

    vpc: str | None = option(None, "Use this existing VPC; needs --subnets.", metavar="VPC")
    subnets: Sequence[str] = option(
        (), "Subnets of that VPC for the nodes, one per zone.", metavar="S[,S...]", commas=True
    )
    tag: Sequence[str] | Mapping[str, str] = option(
        (),
        "Tag for everything that is made in the account. Can be repeated.",
        metavar="KEY=VALUE",
        stored=lambda job: " ".join(f"{k}={v}" for k, v in sorted(job.demands.tags.items())),
    )
    reservations: Sequence[str] = option(
        (),
        "Reservations of capacity to use first: their ids, or open.",
        metavar="ID[,ID...]",
        commas=True,
        stored=lambda job: ",".join(each.id for each in job.capacity.reservations),
    )
    permissions_boundary: str | None = option(
        None,
        "Permissions boundary of the roles that are made; no effect with --local.",
        metavar="ARN",
        stored=lambda job: job.demands.boundary,
    )
    kms_key: str | None = option(
        None, "KMS key of disks, parameters and logs on AWS.", metavar="KEY"
    )
    data_key: Sequence[str] = option(
        (),
        "KMS keys of the buckets of --read and --write, where they are not --kms-key.",
        metavar="ARN[,A...]",
        commas=True,
        stored=lambda job: ",".join(job.demands.data_keys),
    )
    worker_profile: str | None = option(
        None,
        "Instance profile of workers that the account has, with its role; none is made then.",
        metavar="PROFILE",
        stored=lambda job: job.demands.worker_profile,
    )
    control_profile: str | None = option(
        None,
        "The same of control nodes.",
        metavar="PROFILE",
        stored=lambda job: job.demands.control_profile,
    )
    stack_role: str | None = option(
        None,
        "Role that the account has for CloudFormation to delete clusters with.",
        metavar="ARN",
        stored=lambda job: job.demands.stack_role,
    )
    security_group: str | None = option(
        None, "Security group of --vpc for all nodes; none is made then.", metavar="SG"
    )
    proxy: str | None = option(
        None,
        "Proxy by which nodes in --vpc reach the internet, from their boot on.",
        metavar="URL",
        stored=lambda job: job.demands.proxy,
    )
    no_proxy: Sequence[str] = option(
        (),
        "What they reach without it, besides their own network and its endpoints.",
        metavar="HOSTS",
        commas=True,
        stored=lambda job: ",".join(job.demands.no_proxy),
    )
    index_url: str | None = option(
        None,
        "Package index from which nodes install.",
        metavar="URL",
        stored=lambda job: job.demands.index_url,
        shown_default="PyPI",
    )
    worker_image: str | None = option(
        None,
        "Machine image of workers, or the parameter that names it.",
        metavar="AMI",
        shown_default="AWS's",
    )
    control_image: str | None = option(
        None,
        "Machine image of control nodes, or the parameter that names it.",
        metavar="AMI",
        stored=lambda job: job.demands.control_image,
        shown_default="Amazon Linux's",
    )
