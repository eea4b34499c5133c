"""Runs clusters in an AWS account."""

from dataclasses import replace

from spotelastic.aws.artifacts.boot_artifacts import ETCD
from spotelastic.aws.base.clients import Aws
from spotelastic.aws.clusters import control_boot, fault_injection, lifecycle
from spotelastic.aws.clusters.lifecycle import ClusterRecord
from spotelastic.aws.compute import autoscaling
from spotelastic.aws.compute.estimate import AS_OF
from spotelastic.aws.planning.plan import ClusterSpec
from spotelastic.client.interrupt import InterruptionRequest
from spotelastic.client.progress import Say
from spotelastic.client.targets import everywhere
from spotelastic.client.targets.account import AccountClusters
from spotelastic.errors import UsageError
from spotelastic.local.drill import FaultInjector
from spotelastic.model.interruption_kind import InterruptionKind
from spotelastic.model.job import AccountDemands

READ_TIMEOUT = 10.0
"""Seconds that a command waits for one answer."""
ATTEMPTS = 6
"""How often a command makes a call while AWS is busy: a quarter of a minute, in which nothing else
waits for it."""


class AwsTarget(AccountClusters):
    """An AWS account. Its clusters live until they are taken down, or some time after their job."""

    costs_money = True
    price_label = ""
    where_to_look = "see the system logs of its instances in the EC2 console"

    def __init__(self, aws: Aws, region: str | None = None) -> None:
        """`region`: what the user named, which other commands need to be told, too."""
        super().__init__(aws)
        self._region = region

    def about_prices(self, date: str) -> str:
        return (
            f"Spot prices are today's, on-demand prices of {date}; the others are those of "
            f"us-east-1, {AS_OF}. Traffic and storage come on top."
        )

    def in_region(self, region: str) -> "AwsTarget":
        aws = Aws(region, read_timeout=READ_TIMEOUT, attempts=ATTEMPTS)
        return AwsTarget(aws, region)

    def arguments_of(self, name: str) -> str:
        return name + (f" --region {self._region}" if self._region else "")

    def check_kind(self, what: InterruptionRequest) -> None:
        is_notice = what.warns and what.kind is InterruptionKind.SPOT_INTERRUPTION
        if is_notice and what.seconds != fault_injection.WARNING:
            raise UsageError(
                f"--in {what.seconds:g}: AWS always gives {fault_injection.WARNING:g} s of notice "
                "(or none: --kind loss)"
            )

    def fitted(self, spec: ClusterSpec) -> ClusterSpec:
        proven = control_boot.has_worked(self.aws, spec.bucket or self.bucket)
        return replace(spec, etcd=ETCD, proven=proven)

    def create(self, spec: ClusterSpec, say: Say, *, new: bool) -> ClusterRecord:
        return lifecycle.create(spec, say, self.aws)

    def down(
        self, name: str | None, say: Say, *, keep_data: bool = True, bucket: str | None = None
    ) -> None:
        everywhere.delete(self, name, say, keep_data=keep_data, bucket=bucket)

    def interrupt(self, what: InterruptionRequest, demands: AccountDemands) -> float | None:
        if not what.warns:
            autoscaling.end(self.aws, (what.node,))
            return 0.0
        is_recommended = what.kind is InterruptionKind.REBALANCE
        seconds = fault_injection.LONGEST if is_recommended else fault_injection.WARNING
        fault_injection.interrupt(self.aws, what.node, seconds, demands)
        return seconds

    def faults(self) -> FaultInjector:
        raise UsageError("--drill interrupts nodes of the local cloud: add --local")
