"""Creates, renews and stores a cluster's certificates.

They are those of its authority, of etcd members and of worker nodes.

Each is a SecureString parameter that one role may read (`names.py`, the template's policies):

    authority         its key and certificate     the user who runs `up`; no node
    control/<member>  an etcd member              control nodes
    worker/etcd       an etcd client, and a       worker nodes
                      checkpoint daemon among its peers

`up` calls `ensure` every time: it creates what is missing, and renews what has lived for half of
its time. The authority never changes: etcd reads it only at its start, so another authority means
another cluster. Nodes just read.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec
from spotelastic_checkpoints.decoders import from_json

from spotelastic.aws.base.clients import Aws, calling, passing
from spotelastic.aws.base.names import Names
from spotelastic.aws.security.secrets import encryption, parameter
from spotelastic.certificates import (
    MEMBER_NAME,
    WORKER_NAME,
    Certificate,
    Subject,
    end,
    fits,
    issue,
    make_authority,
)
from spotelastic.errors import EnvironmentFailure
from spotelastic.model.job import NO_DEMANDS, AccountDemands
from spotelastic.model.validity import Validity


def ensure(
    aws: Aws,
    its: Names,
    addresses: Mapping[str, str],
    now: datetime,
    demands: AccountDemands = NO_DEMANDS,
) -> Validity:
    """Create and renew the cluster's certificates; `addresses` has each etcd member's address.

    Returns until when they are valid. Raises `EnvironmentFailure` if the authority has expired.
    """
    wanted = {
        its.member_certificate(member): Subject(MEMBER_NAME, (address,))
        for member, address in addresses.items()
    } | {its.worker_certificate: Subject(WORKER_NAME)}
    authority = _read(aws, its.authority)
    if authority is None:
        authority = make_authority(its.cluster, now)
        _store(aws, its, its.authority, authority, demands)
    if end(authority) <= now.timestamp():
        ended = Validity(authority=end(authority))
        raise EnvironmentFailure(ended.warning(its.cluster, now.timestamp()))
    ends = list[float]()
    for name, subject in wanted.items():
        found = _read(aws, name)
        if found is None or not fits(found, subject, authority, now):
            found = issue(authority, subject, now)
            _store(aws, its, name, found, demands)
        ends.append(end(found))
    return Validity(min(ends), end(authority))


def fetch(aws: Aws, parameter: str) -> Certificate:
    """Return a certificate that `up` stored. Raises `EnvironmentFailure` if there is none."""
    found = _read(aws, parameter)
    if found is None:
        raise EnvironmentFailure(
            f"there is no certificate {parameter}: run `spotelastic up` again to create it"
        )
    return found


# -- the parameters ------------------------------------------------------------------------------


def _read(aws: Aws, parameter: str) -> Certificate | None:
    with passing("ParameterNotFound"), calling(f"read the certificate {parameter}"):
        answer = aws.ssm.get_parameter(Name=parameter, WithDecryption=True)
        return from_json(answer["Parameter"]["Value"], Certificate)
    return None


def _store(aws: Aws, its: Names, name: str, made: Certificate, demands: AccountDemands) -> None:
    value: dict[str, Any] = {"Name": name, "Value": msgspec.json.encode(made).decode()}
    with calling(f"store the certificate {name}"):
        try:
            aws.ssm.put_parameter(**value, **parameter(its.cluster, demands))
        except aws.ssm.exceptions.ParameterAlreadyExists:
            # Not allowed together with tags.
            aws.ssm.put_parameter(**value, **encryption(demands), Overwrite=True)
