"""Checks what EC2 checks of a launch before it accepts it (pure).

A launch template can be made of anything. Only a launch shows whether its interfaces, disks and
image fit the instance type.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

OF_AWS = "alias/aws/ebs"
"""The key that AWS manages, which every service of the account may use."""
CARD, DEVICE, KIND = "NetworkCardIndex", "DeviceIndex", "InterfaceType"


@dataclass(frozen=True, slots=True)
class LaunchRefusal:
    """EC2's answer to a launch that it does not accept."""

    code: str
    message: str


@dataclass(slots=True)
class DiskKey:
    """The key by which the account's new disks are encrypted."""

    name: str = OF_AWS
    granted: bool = True
    """Whether Auto Scaling's role may use it."""


@dataclass(frozen=True, slots=True)
class ImageFacts:
    """What a machine image demands."""

    architecture: str
    root_device: str
    snapshot: str
    gib: int
    """Size of the snapshot of the root disk."""


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """One launch: request and launch template together, as the API describes them."""

    type: str
    described: Mapping[str, Any]
    """What DescribeInstanceTypes says of the type."""
    interfaces: Sequence[Mapping[str, Any]] = ()
    disks: Sequence[Mapping[str, Any]] = ()
    """Block device mappings."""
    image: ImageFacts | None = None
    """None: the local cloud does not know the image."""


def refusal(request: LaunchRequest) -> LaunchRefusal | None:
    """Return why EC2 refuses the launch; None if it does not."""
    found = (*_image(request), *_disks(request), *_interfaces(request))
    return next(iter(found), None)


def is_startable(disks: Iterable[Mapping[str, Any]], key: DiskKey) -> bool:
    """Whether EC2 can start an instance with these disks for Auto Scaling.

    It accepts the launch all the same, and ends the instance a moment later.
    """
    keys = [
        each["Ebs"].get("KmsKeyId") or key.name
        for each in disks
        if str(each.get("Ebs", {}).get("Encrypted")).lower() == "true"
    ]
    return key.granted or all(name == OF_AWS for name in keys)


def _image(request: LaunchRequest) -> Iterator[LaunchRefusal]:
    supported = request.described.get("ProcessorInfo", {}).get("SupportedArchitectures", ())
    image = request.image
    if image is not None and supported and image.architecture not in supported:
        yield LaunchRefusal(
            "InvalidParameterValue",
            f"The architecture '{','.join(supported)}' of the specified instance type does not "
            f"match the architecture '{image.architecture}' of the specified AMI. Specify an "
            "instance type and an AMI that have matching architectures, and try again.",
        )


def _disks(request: LaunchRequest) -> Iterator[LaunchRefusal]:
    image = request.image
    for each in request.disks:
        size = int(each.get("Ebs", {}).get("VolumeSize") or 0)
        if image is not None and each["DeviceName"] == image.root_device and 0 < size < image.gib:
            yield LaunchRefusal(
                "InvalidBlockDeviceMapping",
                f"Volume of size {size}GB is smaller than snapshot '{image.snapshot}', expect "
                f"size >= {image.gib}GB",
            )


def _interfaces(request: LaunchRequest) -> Iterator[LaunchRefusal]:
    wanted, network = request.interfaces, request.described.get("NetworkInfo", {})
    if not wanted or not network:
        return
    yield from _counts(request.type, wanted, network)
    cards = {int(card.get(CARD, 0)): card for card in network.get("NetworkCards", ())}
    for each in wanted:
        card, kind = int(each.get(CARD) or 0), str(each.get(KIND) or "interface")
        offered = cards.get(card, {}).get("InterfaceTypes", ("interface",))
        if kind not in offered:
            yield LaunchRefusal(
                "InvalidParameterCombination",
                f"Interface type {kind} is not supported on network card {card} of {request.type}.",
            )
    yield from _addresses(wanted)


def _counts(
    type: str, wanted: Sequence[Mapping[str, Any]], network: Mapping[str, Any]
) -> Iterator[LaunchRefusal]:
    """Yield which of the type's numbers the interfaces exceed."""
    if len(wanted) > (most := int(network.get("MaximumNetworkInterfaces", len(wanted)))):
        yield LaunchRefusal(
            "AttachmentLimitExceeded",
            f"Interface count {len(wanted)} exceeds the limit of {most} for {type}.",
        )
    cards = {int(card.get(CARD, 0)): card for card in network.get("NetworkCards", ())}
    for card, count in Counter(int(each.get(CARD) or 0) for each in wanted).items():
        if card not in cards:
            yield LaunchRefusal(
                "InvalidParameterValue", f"Network card index {card} does not exist on {type}."
            )
        elif count > (most := int(cards[card].get("MaximumNetworkInterfaces", count))):
            yield LaunchRefusal(
                "AttachmentLimitExceeded",
                f"Interface count {count} exceeds the limit of {most} for network card {card} of "
                f"{type}.",
            )
    efa = [each for each in wanted if str(each.get(KIND)).startswith("efa")]
    if len(efa) > (most := int(network.get("EfaInfo", {}).get("MaximumEfaInterfaces", 0))):
        yield LaunchRefusal(
            "AttachmentLimitExceeded",
            f"EFA interface count {len(efa)} exceeds the limit of {most} for {type}.",
        )


def _addresses(wanted: Sequence[Mapping[str, Any]]) -> Iterator[LaunchRefusal]:
    """Yield what is wrong with the places of the interfaces, and with their addresses."""
    places = Counter((int(each.get(CARD) or 0), int(each.get(DEVICE) or 0)) for each in wanted)
    for (card, device), count in places.items():
        if count > 1:
            yield LaunchRefusal(
                "InvalidParameterValue",
                f"Each network interface requires a unique device index: {device} on network card "
                f"{card} is used {count} times.",
            )
    primary = next((each for each in wanted if _is_primary(each)), None)
    if primary is None:
        yield LaunchRefusal(
            "InvalidParameterValue", "A network interface with device index 0 is required."
        )
    elif primary.get(KIND) == "efa-only":
        yield LaunchRefusal(
            "InvalidParameterCombination", "The primary network interface cannot be efa-only."
        )
    if len(wanted) > 1 and any(_true(each.get("AssociatePublicIpAddress")) for each in wanted):
        yield LaunchRefusal(
            "InvalidParameterCombination",
            "The associatePublicIPAddress parameter cannot be specified when launching with "
            "multiple network interfaces.",
        )


def _is_primary(interface: Mapping[str, Any]) -> bool:
    return not int(interface.get(CARD) or 0) and not int(interface.get(DEVICE) or 0)


def _true(value: object) -> bool:
    return str(value).lower() == "true"
