"""Stores and reads a job's secrets as SecureStrings in the Parameter Store."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from spotelastic.aws.base.clients import Aws, Rejected, calling, passing
from spotelastic.aws.base.demands import pairs_of
from spotelastic.aws.base.identity import CLUSTER
from spotelastic.errors import UsageError
from spotelastic.model.job import NO_DEMANDS, AccountDemands

Use = Literal["secrets", "build", "notify"]
"""What secrets are for: the script, the build of packages, or where notifications go."""
AT_ONCE = 10
"""Parameters that one call reads."""
LARGEST = 4096
"""Bytes of a value that the Parameter Store takes in its free tier."""


def check_sizes(values: Mapping[str, str], flag: str = "--secret") -> None:
    """Raise `UsageError` for a secret that the Parameter Store would refuse."""
    for name, value in sorted(values.items()):
        if (size := len(value.encode())) > LARGEST:
            raise UsageError(
                f"{flag} {name}: it has {size} bytes, and the Parameter Store takes {LARGEST}: "
                "put it into an object that the script reads (--read), or split it"
            )


def encryption(demands: AccountDemands) -> dict[str, str]:
    """Return how a parameter is stored."""
    return {"Type": "SecureString", **({"KeyId": demands.key} if demands.key else {})}


def parameter(cluster: str, demands: AccountDemands) -> dict[str, Any]:
    """Return how a new parameter of a cluster is stored, and its tags."""
    return {**encryption(demands), "Tags": pairs_of({**demands.tags, CLUSTER: cluster})}


def path(cluster: str, use: Use = "secrets") -> str:
    """Return the folder of the secrets.

    Workers may read what is below `worker`, and control nodes what is below `control`.
    """
    role = "control" if use == "notify" else "worker"
    return f"/spotelastic/{cluster}/{role}/{use}/"


def put(
    aws: Aws,
    cluster: str,
    values: Mapping[str, str],
    use: Use = "secrets",
    demands: AccountDemands = NO_DEMANDS,
) -> dict[str, int]:
    """Store what is new or differs; return the version of each."""
    folder = path(cluster, use)
    return {
        name: _put(aws, cluster, folder + name, value, demands)
        for name, value in sorted(values.items())
    }


def differing(
    aws: Aws, cluster: str, values: Mapping[str, str], use: Use = "secrets"
) -> tuple[str, ...]:
    """Return the names of those that `put` would store."""
    return tuple(
        name
        for name, value in sorted(values.items())
        if (known := _known(aws, path(cluster, use) + name)) is None or known[0] != value
    )


def get(
    aws: Aws, cluster: str, versions: Mapping[str, int], use: Use = "secrets"
) -> dict[str, str]:
    """Return the values of these versions' secrets.

    Raises `EnvironmentFailure` if one is missing.
    """
    names, found = sorted(versions), {}
    for first in range(0, len(names), AT_ONCE):
        wanted = [path(cluster, use) + name for name in names[first : first + AT_ONCE]]
        with calling(f"read the secrets of {cluster}"):
            answer = aws.ssm.get_parameters(Names=wanted, WithDecryption=True)
            for item in answer["Parameters"]:
                found[item["Name"].rpartition("/")[2]] = str(item["Value"])
        if missing := answer.get("InvalidParameters"):
            raise Rejected(f"there is no secret {', '.join(missing)}", "ParameterNotFound")
    return found


def known(aws: Aws, cluster: str, names: Sequence[str], use: Use = "secrets") -> tuple[str, ...]:
    """Return the values of the newest versions of these secrets, without those that are gone.

    One call for each, which is all that a user of `up` may make.
    """
    found = (_known(aws, path(cluster, use) + name) for name in names)
    return tuple(each[0] for each in found if each is not None)


def _put(aws: Aws, cluster: str, name: str, value: str, demands: AccountDemands) -> int:
    known = _known(aws, name)
    if known is not None and known[0] == value:
        return known[1]
    described = f"{name.rpartition('/')[2]}, as given to `spotelastic up`"
    with calling(f"store the secret {name}"):
        if known is None:
            answer = aws.ssm.put_parameter(
                Name=name, Description=described, Value=value, **parameter(cluster, demands)
            )
        else:
            answer = aws.ssm.put_parameter(
                Name=name, Value=value, Overwrite=True, **encryption(demands)
            )
        return int(answer["Version"])


def _known(aws: Aws, name: str) -> tuple[str, int] | None:
    with passing("ParameterNotFound"), calling(f"read the secret {name}"):
        found = aws.ssm.get_parameter(Name=name, WithDecryption=True)["Parameter"]
        return str(found["Value"]), int(found["Version"])
    return None
