"""A controller's observation of a cluster whose nodes all train, and the decision on it."""

from spotelastic.cloud.model import GroupMember, Instance, WorkerGroup
from spotelastic.controller.decisions.capacity import sizes
from spotelastic.controller.decisions.decide import decide
from spotelastic.controller.model.observation import (
    Action,
    ControllerPolicy,
    Observation,
)
from spotelastic.model.job import Job
from spotelastic.model.node import Fingerprint, Node

NOW = 10_000.0
SPOT, ON_DEMAND = "spot", "on-demand"


def cluster(spot: int, on_demand: int = 0, *, most: int = 4, least: int = 2) -> Observation:
    """All nodes are registered; the groups ask for what they have, the rest is for spot."""
    names = {SPOT: [f"s{n}" for n in range(spot)], ON_DEMAND: [f"d{n}" for n in range(on_demand)]}
    everyone = [*names[SPOT], *names[ON_DEMAND]]
    short = len(everyone) < least
    return Observation(
        desired=most,
        least=least,
        since=0.0,
        job=Job("running", 100.0),
        group=group(SPOT, names[SPOT], most - on_demand),
        on_demand=group(ON_DEMAND, names[ON_DEMAND], on_demand),
        machines={
            name: Instance(name, "worker", "running", "t", "z", "", name[0] == "s", 100.0 + index)
            for index, name in enumerate(everyone)
        },
        nodes={name: Node(name, f"{name}-1", "", "z", Fingerprint()) for name in everyone},
        short_since=NOW - 10.0 if short else None,
        committed=500,
        given_back_at=400,
    )


def group(name: str, instances: list[str], desired: int) -> WorkerGroup:
    return WorkerGroup(name, desired, tuple(GroupMember(each, "InService") for each in instances))


def wanted(seen: Observation, policy: ControllerPolicy) -> dict[str, int]:
    return {size.group.name: size.wanted for size in sizes(seen, NOW, policy)}


def only(seen: Observation, policy: ControllerPolicy, *kinds: type[Action]) -> list[Action]:
    return [action for action in decide(seen, NOW, policy).actions if isinstance(action, kinds)]
