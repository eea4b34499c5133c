"""Makes the worker groups of a new cluster while its stack is still being made.

Workers need three parts of the stack: their instance profile, the security group, and perhaps the
placement group. CloudFormation makes these within seconds, but goes on for minutes, above all to
watch that instance profiles last. Workers that boot meanwhile wait for the control nodes.

What must never happen is that workers are paid for and forgotten. Their group has its dead man's
switch before it launches anything. Whatever deletes a stack that failed ends the workers before:
`up` itself, the next `up`, and `down`, which also finds groups without a stack.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Self

from spotelastic.aws.base.clients import DENIED, Aws, Rejected, calling, passing
from spotelastic.aws.base.names import Names
from spotelastic.aws.clusters import teardown
from spotelastic.aws.network import cloudformation

PROFILE = "WorkerProfile"
GROUP = "MemberGroup"
PLACEMENT = "Placement"


@dataclass(frozen=True, slots=True)
class StackParts:
    """The parts of a cluster's stack that its workers use."""

    profile: str
    """ARN of their instance profile."""
    security_group: str
    subnets: tuple[str, ...]
    """In the order of the cluster's zones."""
    placement_group: str = ""

    @classmethod
    def of(cls, outputs: Mapping[str, str]) -> Self:
        """Return the parts of a complete stack."""
        return cls(
            profile=outputs["WorkerProfile"],
            security_group=outputs["MemberGroup"],
            subnets=tuple(outputs["Subnets"].split(",")),
            placement_group=outputs["Placement"],
        )


@dataclass(slots=True)
class EarlyWorkers:
    """Makes the workers of a stack that is being made, once.

    `given` are the stack's parameters. A cluster with a network of its own has its workers made
    when the stack is complete: before, they would have no way to the internet.
    """

    aws: Aws
    its: Names
    given: Mapping[str, str]
    make: Callable[[StackParts], None]
    denied: bool = False
    made: bool = False

    def look(self) -> None:
        """Make the workers if what they need is there.

        Credentials that may not look at parts of a stack have the workers made at its end.
        """
        if self.made or self.denied or not self.given["GivenVpc"]:
            return
        try:
            parts = self._parts()
        except Rejected as error:
            if error.code not in DENIED:
                raise
            self.denied = True
            return
        if parts is not None:
            self.make(parts)
            self.made = True

    def end(self) -> None:
        """End the workers: the stack that they use is about to be deleted."""
        teardown.end_workers(self.aws, self.its)
        self.made = False

    def _parts(self) -> StackParts | None:
        profile, group = self.given["GivenWorkerProfile"], self.given["GivenGroup"]
        asked = {PROFILE: not profile, GROUP: not group, PLACEMENT: bool(self.given["PlacedIn"])}
        wanted = [part for part, is_made in asked.items() if is_made]
        found = cloudformation.made_so_far(self.aws, self.its.stack, wanted)
        if found is not None and not profile:
            profile = _usable_profile(self.aws, found[PROFILE]) or ""
        if found is None or not profile:
            return None
        return StackParts(
            profile=profile,
            security_group=group or found[GROUP],
            subnets=tuple(self.given["GivenSubnets"].split(",")),
            placement_group=found.get(PLACEMENT, ""),
        )


def _usable_profile(aws: Aws, name: str) -> str | None:
    """Return the ARN of an instance profile once it has its role, None before."""
    with passing("NoSuchEntity"), calling(f"look at the instance profile {name}"):
        profile = aws.iam.get_instance_profile(InstanceProfileName=name)["InstanceProfile"]
        return str(profile["Arn"]) if profile["Roles"] else None
    return None
