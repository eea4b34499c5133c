"""Observations of a small cluster, for tests of the controller's decisions."""

from spotelastic.cloud.model import GroupMember, Instance, InstanceState, Role, WorkerGroup
from spotelastic.controller.decisions.decide import ControllerDecision
from spotelastic.controller.model.observation import (
    Action,
    ControllerPolicy,
    Message,
    Observation,
)
from spotelastic.model.interruption_kind import InterruptionKind
from spotelastic.model.job import Job
from spotelastic.model.node import Fingerprint, Node
from spotelastic.model.notice import Drain, Notice

NOW = 1000.0
POLICY = ControllerPolicy()
GROUP = "spotelastic-demo-workers"


def machine(
    id: str, state: InstanceState = "running", role: Role = "worker", at: float = 900.0
) -> Instance:
    return Instance(id, role, state, "g5.xlarge", "us-east-1a", "127.80.0.9", True, at)


def node(id: str) -> Node:
    return Node(id, f"{id}-1", "127.80.0.9", "us-east-1a", Fingerprint())


def group(*places: GroupMember, desired: int = 2) -> WorkerGroup:
    return WorkerGroup(GROUP, desired, places)


def in_service(*ids: str) -> tuple[GroupMember, ...]:
    return tuple(GroupMember(id, "InService") for id in ids)


def healthy(*ids: str) -> Observation:
    """A cluster in which everything is as it should be."""
    return Observation(
        desired=len(ids),
        since=500.0,
        job=Job("running", 600.0),
        group=group(*in_service(*ids), desired=len(ids)),
        machines={id: machine(id) for id in ids},
        control_groups=frozenset(GROUP.replace("workers", f"control-{name}") for name in "abc"),
        nodes={id: node(id) for id in ids},
    )


def message(event: object, receipt: str = "r1") -> Message:
    return Message(receipt, event, NOW - 0.25)  # type: ignore[arg-type]


def drain(id: str, source: str = "imds", deadline: float = 1110.0) -> Drain:
    return Drain(id, Notice(InterruptionKind.SPOT_INTERRUPTION, id, source, 990.0, 991.0, deadline))  # type: ignore[arg-type]


def only(decision: ControllerDecision, *kinds: type[Action]) -> list[Action]:
    return [action for action in decision.actions if isinstance(action, kinds)]
