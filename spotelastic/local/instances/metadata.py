"""Builds those documents of an instance's metadata service that nodes read, from facts about it.

Source: "Instance metadata categories" (EC2 user guide).
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

META = "/latest/meta-data/"
IDENTITY = "/latest/dynamic/instance-identity/document"
USER_DATA = "/latest/user-data"


@dataclass(slots=True)
class Notices:
    """What EC2 has announced to an instance, in epoch seconds; 0 for nothing."""

    interruption: float = 0.0
    """When the instance will be taken away."""
    rebalance: float = 0.0
    """When a rebalance recommendation was issued."""


@dataclass(frozen=True, slots=True)
class RoleCredentials:
    """Temporary credentials of a role."""

    role: str
    key: str
    secret: str
    token: str
    issued: datetime
    expires: datetime

    def document(self) -> str:
        """Return the metadata document with the credentials."""
        return json.dumps(
            {
                "Code": "Success",
                "LastUpdated": iso(self.issued),
                "Type": "AWS-HMAC",
                "AccessKeyId": self.key,
                "SecretAccessKey": self.secret,
                "Token": self.token,
                "Expiration": iso(self.expires),
            }
        )


@dataclass(frozen=True, slots=True)
class Facts:
    """An instance as its metadata service knows it."""

    instance: str
    account: str
    region: str
    zone: str
    type: str
    address: str
    life_cycle: str
    """"spot" or "on-demand"."""
    image: str = ""
    target_state: str = ""
    """The state that its Auto Scaling group wants; empty outside a group."""
    tags: Mapping[str, str] | None = None
    """The tags; None if the instance's metadata options do not show them."""
    user_data: str = ""
    notices: Notices = field(default_factory=Notices)
    credentials: Callable[[], RoleCredentials | None] = lambda: None


def read(facts: Facts, path: str) -> str | None:
    """Return the document or listing at `path`; None if there is none."""
    if path == IDENTITY:
        return _identity(facts)
    if path == USER_DATA:
        return facts.user_data or None
    if not path.startswith(META) and path != META.rstrip("/"):
        return None
    documents = _documents(facts)
    wanted = path.removeprefix(META.rstrip("/")).strip("/")
    return documents[wanted] if wanted in documents else _listing(documents, wanted)


def _listing(documents: Mapping[str, str], folder: str) -> str | None:
    """Return the children of a folder, one per line, folders with a slash; None if it has none."""
    prefix = f"{folder}/" if folder else ""
    rests = (name.removeprefix(prefix) for name in documents if name.startswith(prefix))
    children = {rest.partition("/")[0] + ("/" if "/" in rest else "") for rest in rests}
    return "\n".join(sorted(children)) or None


def _documents(facts: Facts) -> dict[str, str]:
    """Return all documents by their path below `META`."""
    documents = {
        "ami-id": facts.image,
        "instance-id": facts.instance,
        "instance-life-cycle": facts.life_cycle,
        "instance-type": facts.type,
        "local-ipv4": facts.address,
        "placement/availability-zone": facts.zone,
        "placement/region": facts.region,
    }
    if facts.target_state:
        documents["autoscaling/target-lifecycle-state"] = facts.target_state
    for name, value in (facts.tags or {}).items():
        documents[f"tags/instance/{name}"] = value
    if credentials := facts.credentials():
        documents[f"iam/security-credentials/{credentials.role}"] = credentials.document()
    return documents | _notices(facts.notices)


def _notices(notices: Notices) -> dict[str, str]:
    documents = {}
    if notices.interruption:
        moment = iso(datetime.fromtimestamp(notices.interruption, UTC))
        documents["spot/instance-action"] = json.dumps({"action": "terminate", "time": moment})
    if notices.rebalance:
        moment = iso(datetime.fromtimestamp(notices.rebalance, UTC))
        documents["events/recommendations/rebalance"] = json.dumps({"noticeTime": moment})
    return documents


def _identity(facts: Facts) -> str:
    return json.dumps(
        {
            "accountId": facts.account,
            "availabilityZone": facts.zone,
            "instanceId": facts.instance,
            "instanceType": facts.type,
            "privateIp": facts.address,
            "region": facts.region,
        }
    )


def iso(moment: datetime) -> str:
    """Format a time as AWS does, with milliseconds."""
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"
