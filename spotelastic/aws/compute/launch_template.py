"""Describes a cluster's worker groups, and the data of their launch template (pure)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from spotelastic.aws.base.demands import pairs_of
from spotelastic.aws.base.identity import BUCKET, CLUSTER, ROLE
from spotelastic.aws.base.infra_files import boot_script
from spotelastic.aws.base.names import Names
from spotelastic.aws.compute.estimate import DISK_MIB_S
from spotelastic.aws.compute.images import RootDisk
from spotelastic.aws.compute.network_interfaces import ORDINARY, Interface
from spotelastic.model.job import Reservation


@dataclass(frozen=True, slots=True)
class WorkerGroups:
    """What a cluster's worker groups are made of."""

    names: Names
    types: tuple[str, ...]
    size: int
    """Most instances of a group."""
    image: str
    bucket: str
    profile: str
    """ARN of the instance profile."""
    security_group: str
    subnets: tuple[str, ...]
    """Subnets that nodes may be in."""
    start: int
    """Initial size of a new spot group. Later the controller sizes it."""
    first: tuple[str, ...] = ()
    """Subnets in which a new group launches; empty means all. Later the controller chooses."""
    disk: RootDisk = RootDisk()
    interfaces: tuple[Interface, ...] = ORDINARY
    public: bool | None = True
    """Whether a node gets a public address; None: as its subnet says."""
    placement_group: str = ""
    own_tags: Mapping[str, str] = field(default_factory=dict)
    """The user's tags, for all that is made here."""
    key: str = ""
    """ARN of the key that encrypts disks; empty: the account's default key."""
    user_data: str = ""
    """What nodes boot with; empty: the boot script as it is."""
    max_price: float | None = None
    """Highest spot price of any type, in US dollars an hour; None: the on-demand price."""
    in_order: bool = False
    """Whether earlier `types` are preferred: unlike ones are not worth the same price."""
    reservations: tuple[Reservation, ...] = ()
    """Where the on-demand group launches first; all of one type and kind."""
    reserved_subnets: tuple[str, ...] = ()
    """Subnets of their zones, in which that group launches."""
    buys: bool = False
    """Whether it buys on demand what they lack."""
    reserved_start: int = 0
    """Initial size of that group; without reservations it is empty at first."""


def launch_template(wanted: WorkerGroups, *, spot: bool = True) -> dict[str, Any]:
    """Return the data of the launch template (pure)."""
    tags = {
        **wanted.own_tags,
        CLUSTER: wanted.names.cluster,
        ROLE: "worker",
        BUCKET: wanted.bucket,
        "Name": wanted.names.workers,
    }
    pairs = pairs_of(tags)
    reserved = () if spot else wanted.reservations
    # EC2 refuses a launch on demand that would tag a spot request, of which it has none.
    others = ("network-interface", "spot-instances-request") if spot else ("network-interface",)
    data: dict[str, Any] = {
        "ImageId": wanted.image,
        "InstanceType": reserved[0].type if reserved else wanted.types[0],
        "IamInstanceProfile": {"Arn": wanted.profile},
        "UserData": wanted.user_data or boot_script(),
        "InstanceInitiatedShutdownBehavior": "terminate",
        "BlockDeviceMappings": [
            {
                "DeviceName": wanted.disk.device,
                "Ebs": {
                    "VolumeSize": wanted.disk.gib,
                    "VolumeType": "gp3",
                    "Throughput": DISK_MIB_S,
                    "Encrypted": True,
                    **({"KmsKeyId": wanted.key} if wanted.key else {}),
                    "DeleteOnTermination": True,
                },
            }
        ],
        "MetadataOptions": {
            "HttpTokens": "required",
            "HttpPutResponseHopLimit": 1,
            "InstanceMetadataTags": "enabled",
        },
        "TagSpecifications": [
            *({"ResourceType": kind, "Tags": pairs} for kind in ("instance", "volume")),
            *(
                {"ResourceType": kind, "Tags": pairs_of(wanted.own_tags)}
                for kind in (others if wanted.own_tags else ())
            ),
        ],
    }
    if wanted.interfaces == ORDINARY:
        data["SecurityGroupIds"] = [wanted.security_group]
    else:
        data["NetworkInterfaces"] = [_interface(each, wanted) for each in wanted.interfaces]
    if reserved and reserved[0].market:
        data["InstanceMarketOptions"] = {"MarketType": reserved[0].market}
    if wanted.placement_group:
        data["Placement"] = {"GroupName": wanted.placement_group}
    return data


def _interface(its: Interface, wanted: WorkerGroups) -> dict[str, Any]:
    data = {
        "NetworkCardIndex": its.card,
        "DeviceIndex": its.device,
        "InterfaceType": its.kind,
        "Groups": [wanted.security_group],
        "DeleteOnTermination": True,
    }
    # AWS gives public addresses only to instances with one interface.
    if len(wanted.interfaces) > 1 or wanted.public is None:
        return data
    return {**data, "AssociatePublicIpAddress": wanted.public}
