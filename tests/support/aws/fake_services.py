"""An AWS account of which only the services that a test names answer, each by a fake.

`fake_aws` gives these to a real `Aws`, so that all that stands between the product and boto3 runs
as it is. Asking for another service fails the test.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from botocore.exceptions import ClientError

from spotelastic.aws.base.clients import Aws
from spotelastic.aws.base.identity import SUBNETS
from spotelastic.aws.compute.prices import AwsPrices
from spotelastic.aws.messaging.bucket import BucketObjects
from spotelastic.aws.provider import queues
from spotelastic.aws.provider.group_capacity import AwsCapacity
from spotelastic.cloud.port import Cloud, ClusterPrices

REGION = "us-east-1"
ACCOUNT = "123456789012"
Answer = Mapping[str, Any]


@dataclass(frozen=True)
class FakeSession:
    """As boto3's session."""

    region_name: str | None
    services: Mapping[str, object]

    @property
    def events(self) -> "Hooks":
        return Hooks()

    def client(self, service_name: str, **_: Any) -> Any:
        assert service_name in self.services, f"nothing here needs {service_name}"
        return self.services[service_name]

    def get_partition_for_region(self, region_name: str) -> str:
        return "aws"


class Hooks:
    """botocore's events, of which there are none."""

    def register(self, name: str, handler: Callable[..., Any]) -> None: ...


def fake_aws(region: str = REGION, **services: object) -> Aws:
    """An account with these services, named as boto3 does."""
    return Aws(region, account=ACCOUNT, session=FakeSession(region, services))


def cloud_over(aws: Aws, prices: ClusterPrices | None = None) -> Cloud:
    """The cluster "demo" in that account, by the product's own adapters."""
    return Cloud(
        AwsCapacity(aws, "demo", "bucket"),
        queues.events(aws, "queue"),
        queues.commands(aws, "commands"),
        prices or AwsPrices(aws),
        BucketObjects(aws, "bucket", "demo"),
    )


def refusal(code: str, operation: str = "Operation", message: str = "no") -> ClientError:
    """AWS's answer that it does not do what it was asked."""
    return ClientError({"Error": {"Code": code, "Message": message}}, operation)


@dataclass(frozen=True)
class Pages:
    """A paginator: calls `ask` for the pages of each listing."""

    ask: Callable[..., Iterable[Answer]]

    def paginate(self, **arguments: Any) -> Iterator[Answer]:
        yield from self.ask(**arguments)


@dataclass
class CallLog:
    """The calls to an account, in their order, and what befalls them."""

    calls: list[str] = field(default_factory=list)
    during: dict[str, Callable[[], object]] = field(default_factory=dict)
    """What happens within the next call of that name, once."""
    throttled: frozenset[str] = frozenset()
    """Calls that fail until further notice."""

    def __call__(self, name: str) -> None:
        self.calls.append(name)
        self.during.pop(name, lambda: None)()
        if name in self.throttled:
            raise refusal("Throttling", message="slow down")


@dataclass
class FakeSqs:
    """Queues from which messages are deleted."""

    log: CallLog

    def get_queue_url(self, *, QueueName: str, **_: Any) -> Answer:
        return {"QueueUrl": QueueName}

    def delete_message(self, *, QueueUrl: str, ReceiptHandle: str) -> Answer:
        self.log(f"delete {ReceiptHandle}")
        return {}


@dataclass
class FakeAutoScaling:
    """One worker group."""

    log: CallLog
    group: str
    nodes: list[str]
    """The group's instances."""
    leaving: set[str] = field(default_factory=set)
    subnets: tuple[str, ...] = ()
    """The subnets that the group may launch in."""
    suspended: Mapping[str, str] = field(default_factory=dict)
    """Processes that do not run, and why."""

    def describe_auto_scaling_groups(self, *, AutoScalingGroupNames: list[str]) -> Answer:
        self.log("groups")
        states = {True: "Terminating:Wait", False: "InService"}
        members = [
            {"InstanceId": name, "LifecycleState": states[name in self.leaving], "HealthStatus": ""}
            for name in self.nodes
        ]
        group = {
            "AutoScalingGroupName": self.group,
            "DesiredCapacity": len(self.nodes),
            "Instances": members,
            "SuspendedProcesses": [
                {"ProcessName": name, "SuspensionReason": why}
                for name, why in self.suspended.items()
            ],
            "Tags": [{"Key": SUBNETS, "Value": ",".join(self.subnets)}],
        }
        return {"AutoScalingGroups": [group]}
