"""The worker groups and instances of one cluster in AWS: `CapacityProvider` over Auto Scaling."""

from collections.abc import Iterable, Mapping, Sequence

from spotelastic.aws.base.clients import Aws, Rejected, calling, passing
from spotelastic.aws.base.names import CONTROL_TYPE, MEMBERS, TERMINATE_HOOK, Names
from spotelastic.aws.clusters import teardown
from spotelastic.aws.compute import autoscaling, quotas, worker_groups
from spotelastic.aws.compute.zone_ranking import Zones
from spotelastic.clock import Clock, steady
from spotelastic.cloud.model import GroupNames, Instance, LaunchQuotas, WorkerGroup, ZoneOffer

OTHERS_END_WITHIN = 3600.0
"""Seconds for which a cluster that ends waits for those of its job in other regions to go."""
LIMITS = {
    "VolumeLimitExceeded": ("storage of gp3 volumes", "ebs", "L-7A658B76"),
    "NetworkInterfaceLimitExceeded": ("network interfaces", "vpc", "L-DF5E4CA3"),
    "AddressLimitExceeded": ("elastic addresses", "ec2", "L-0263D0A3"),
}
"""By AWS's code: what a limit is of, and the service and code of its quota."""


class AwsCapacity:
    """The groups and instances of one cluster."""

    def __init__(
        self,
        aws: Aws,
        cluster: str,
        bucket: str,
        service_role: str = "",
        control_type: str = CONTROL_TYPE,
        clock: Clock = steady,
    ) -> None:
        """`bucket` and `service_role` are needed to delete the cluster's stack."""
        self._aws = aws
        self._cluster = cluster
        self._bucket = bucket
        self._service_role = service_role
        self._control_type = control_type
        self._zones = Zones(aws, clock)
        self._clock = clock
        self._ends_since: float | None = None
        """When the end of the cluster was first tried."""
        its = Names(cluster)
        control = frozenset(its.control(member) for member in MEMBERS)
        self.names = GroupNames(its.workers, its.on_demand, control)
        """The names of the cluster's groups."""

    # -- observe ---------------------------------------------------------------------------------

    def groups(self) -> Mapping[str, WorkerGroup]:
        """Return the worker groups that exist, by name, with one call."""
        return autoscaling.groups(self._aws, (self.names.spot, self.names.on_demand))

    def instances(self) -> tuple[Instance, ...]:
        """Return all instances of the cluster that EC2 still knows, including terminated ones."""
        return autoscaling.instances(self._aws, self._cluster)

    def console(self, instance: str) -> str:
        """Return the end of the instance's console; "" if AWS has nothing yet."""
        return autoscaling.console(self._aws, instance)

    # -- instances -------------------------------------------------------------------------------

    def replace(self, instance: str) -> None:
        """End an instance of a group, which launches another one."""
        self._terminate(instance, smaller=False)

    def remove(self, instance: str) -> None:
        """End an instance of a group, and shrink the group by one."""
        self._terminate(instance, smaller=True)

    def _terminate(self, instance: str, *, smaller: bool) -> None:
        try:
            with calling(f"{'remove' if smaller else 'replace'} {instance}"):
                self._aws.autoscaling.terminate_instance_in_auto_scaling_group(
                    InstanceId=instance, ShouldDecrementDesiredCapacity=smaller
                )
        except Rejected as error:  # one that is gone, or in no group, is no error
            if error.code != "ValidationError" or "not found" not in str(error).lower():
                raise

    def complete_drain(self, group: str, instance: str) -> None:
        """Complete the lifecycle hook of an instance that has drained."""
        # no active action: it timed out or was completed
        with passing("ValidationError"), calling(f"complete the life-cycle action of {instance}"):
            self._aws.autoscaling.complete_lifecycle_action(
                AutoScalingGroupName=group,
                LifecycleHookName=TERMINATE_HOOK,
                InstanceId=instance,
                LifecycleActionResult="CONTINUE",
            )

    def end(self, instances: Sequence[str]) -> None:
        """Terminate instances, whether in a group or not."""
        autoscaling.end(self._aws, instances)

    # -- groups ----------------------------------------------------------------------------------

    def set_desired(self, group: str, desired: int) -> None:
        """Set the number of instances that the group keeps."""
        with calling(f"set the size of {group} to {desired}"):
            self._aws.autoscaling.set_desired_capacity(
                AutoScalingGroupName=group, DesiredCapacity=desired, HonorCooldown=False
            )

    def set_subnets(self, group: str, subnets: Sequence[str]) -> None:
        """Set the subnets in which the group launches from now on."""
        with calling(f"let {group} launch in {', '.join(subnets)}"):
            self._aws.autoscaling.update_auto_scaling_group(
                AutoScalingGroupName=group, VPCZoneIdentifier=",".join(subnets)
            )

    def resume(self, group: str) -> None:
        """Let the group launch again."""
        with calling(f"let {group} launch again"):
            self._aws.autoscaling.resume_processes(
                AutoScalingGroupName=group, ScalingProcesses=["Launch"]
            )

    def postpone(self, until: float) -> None:
        """Set the dead man's switch of both groups."""
        for group in (self.names.spot, self.names.on_demand):
            worker_groups.postpone(self._aws, group, until)

    def tear_down(self) -> None:
        """Delete the cluster; the stack's deletion ends the control node that calls this.

        Clusters of the same job in other regions go first. For one that does not answer this is
        called again, but not for ever, as the control nodes cost more than what is left there.
        """
        self._ends_since = self._clock() if self._ends_since is None else self._ends_since
        leave_others = self._clock() > self._ends_since + OTHERS_END_WITHIN
        its = self._cluster, self._bucket, self._service_role
        teardown.delete_from_within(self._aws, *its, leave_others=leave_others)

    # -- where to launch -------------------------------------------------------------------------

    def zones(self, subnets: Sequence[str]) -> tuple[ZoneOffer, ...]:
        """Return the zones of the subnets, each with its own subnets."""
        return self._zones.of(subnets)

    def offers(
        self, zones: Iterable[ZoneOffer], types: Sequence[str], nodes: int
    ) -> tuple[ZoneOffer, ...]:
        """Return the zones with spot prices and placement scores."""
        return self._zones.offers(zones, types, nodes)

    def quotas(self, types: Sequence[str]) -> LaunchQuotas:
        """Name the vCPU quotas of the types' families, with the pages where to raise them."""
        region = self._aws.region
        return LaunchQuotas(
            spot=quotas.named(types, region, spot=True),
            on_demand=quotas.named(types, region, spot=False),
            control=quotas.named((self._control_type,), region, spot=False),
            others={
                word: f"of {what} ({code}; more at {quotas.link(region, code, service)})"
                for word, (what, service, code) in LIMITS.items()
            },
        )
