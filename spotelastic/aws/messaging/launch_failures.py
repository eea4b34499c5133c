"""Tells by AWS's words why an instance could not be launched (pure).

What counts is where the cause lies. What is of the zone, its subnets or the price there goes away
in another zone; what is of the account does not. A message has an error code, its text, or both.
"""

import re
from dataclasses import dataclass

from spotelastic.cloud.events import FailureCause

INSTANCES = re.compile(
    r"VcpuLimitExceeded|InstanceLimitExceeded|spot ?instance ?count ?exceeded|(vCPU|instance) limit"
    r"|quota allows for \d+ more running instance",
    re.IGNORECASE,
)
"""Matches what AWS says of launches that the quota of their instances does not allow."""
LIMIT = re.compile(r"\b(?!Request)([A-Z]\w*(?:Limit|Count)Exceeded)\b")
"""Matches the code of any other limit. That of requests is no limit: it passes."""
DENIED = re.compile(r"not authorized|UnauthorizedOperation|AccessDenied|explicit deny", re.I)
"""Matches a denial, whose text names what it is about, as subnets and reservations of capacity."""
STORAGE = re.compile(r"maximum \w+ storage limit", re.IGNORECASE)
"""Matches the text of the limit of volumes, which may come without its code."""
ZONE = re.compile(
    r"not supported in (your|the) requested availability zone"
    r"|availability zone\S* (is|are) (constrained|not supported|no longer)"
    r"|InsufficientFreeAddressesInSubnet|(not|in)\S* (enough|sufficient) free addresses"
    r"|InvalidSubnet(ID)?\b"
    r"|SpotMaxPriceTooLow|lower than the minimum required spot",
    re.IGNORECASE,
)
"""Matches what is so in one zone, its subnets or at its price, and may be otherwise in another."""
OF_A_PLACE = re.compile(
    r"\b(zones?|subnets?|instance types?|configuration"
    r"|[a-z]{2}(-[a-z]+)+-\d[a-z]|[a-z]{3,4}\d-az\d)\b",
    re.IGNORECASE,
)
UNABLE = re.compile(
    r"\bnot (\w+ )?(supported|available|offered|found|exist)|\bno longer\b|\bunsupported\b"
    r"|\b(unavailable|unable|invalid|constrained|insufficient)\b"
    r"|\bnot (have )?(enough|sufficient)\b|\bnot (offer|support|opted)\b"
    r"|\bcannot host\b|\bin maintenance\b",
    re.IGNORECASE,
)
"""Together they match whatever names a zone, a subnet or a type as unable."""
CAPACITY = re.compile(r"(?<!Invalid)(?<!vCPU )capacity", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class LaunchFailure:
    cause: FailureCause = "other"
    limit: str = ""
    """AWS's code of the limit that does not allow it, if it is not that of instances."""


def read(message: str) -> LaunchFailure:
    """Return why a launch failed."""
    if INSTANCES.search(message):
        return LaunchFailure("quota")
    if found := LIMIT.search(message):
        return LaunchFailure("limit", found[1])
    if STORAGE.search(message):
        return LaunchFailure("limit", "VolumeLimitExceeded")
    if DENIED.search(message):
        return LaunchFailure("other")
    if ZONE.search(message):
        return LaunchFailure("zone")
    if CAPACITY.search(message):
        return LaunchFailure("capacity")
    of_a_place = OF_A_PLACE.search(message) and UNABLE.search(message)
    return LaunchFailure("zone" if of_a_place else "other")
