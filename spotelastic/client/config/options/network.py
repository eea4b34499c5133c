"""Declares the options of `up` about an account's network."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spotelastic.client.config.option import CLUSTER, UP, option
from spotelastic.client.config.panels import NETWORK


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
