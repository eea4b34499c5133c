"""Reads which instance this is, and which cluster it belongs to, from the instance metadata."""

from dataclasses import dataclass, field

from spotelastic.aws.base.imds import DEFAULT_URL, Imds
from spotelastic.errors import EnvironmentFailure

CLUSTER = "spotelastic:cluster"
NETWORK = "spotelastic:network"
"""Tag of the network that clusters share, with the version of its template."""
ROLE = "spotelastic:role"
BUCKET = "spotelastic:bucket"
MEMBER = "spotelastic:member"
SUBNETS = "spotelastic:subnets"
"""Tag of a worker group: all subnets that it may launch in, whichever it uses now."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What an instance knows about itself."""

    instance: str
    address: str
    """The private IPv4 address of the first network interface."""
    zone: str
    region: str
    account: str
    type: str
    spot: bool
    tags: dict[str, str] = field(default_factory=dict)

    def tag(self, name: str) -> str:
        """Return the tag's value. Raises `EnvironmentFailure` if it is missing."""
        if not (value := self.tags.get(name)):
            raise EnvironmentFailure(
                f"instance {self.instance} has no tag {name}: it was not launched by spotelastic, "
                "or its launch template does not enable tags in instance metadata"
            )
        return value


def from_imds(base_url: str = DEFAULT_URL) -> Identity:
    """Return the identity of the instance that this runs on. Raises `Unavailable`."""
    imds = Imds(base_url)
    document = imds.identity()
    return Identity(
        instance=str(document.get("instanceId", "")),
        address=imds.get("local-ipv4") or str(document.get("privateIp", "")),
        zone=str(document.get("availabilityZone", "")),
        region=str(document.get("region", "")),
        account=str(document.get("accountId", "")),
        type=str(document.get("instanceType", "")),
        spot=imds.get("instance-life-cycle") == "spot",
        tags=imds.tags(),
    )
