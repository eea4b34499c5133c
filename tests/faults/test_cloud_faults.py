"""Every boto3 call of `up` and of `down` goes wrong once, in every way that calls go wrong.

The calls are found by recording, not by a list. After each fault what was begun is begun again:
it succeeds, or one clear error stops it; and `down` leaves nothing, whatever had happened.

Of `up`'s and `down`'s calls each meets some of the faults in every run of the tests, and all of
them in `make soak`.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.account import DENIED, EXPIRED, FAULTS, NETWORK, Fault, Killed, Laptop, account
from support.remains import kinds, remains

from spotelastic.aws import autoscaling, teardown
from spotelastic.aws import cluster as clusters
from spotelastic.aws.cluster import Cluster, Request
from spotelastic.aws.names import SWITCH, Names
from spotelastic.errors import SpotelasticError
from spotelastic.model.job import Settings

pytestmark = pytest.mark.faults

NAME = "quokka"
"""Nothing else in an account has this in its name."""
EVERY = 1 if os.environ.get("SOAK_TURN") else 4
"""Of the pairs of a call and a fault, one in so many is tried."""


@dataclass(frozen=True)
class Trial:
    laptop: Laptop

    def up(self) -> Cluster:
        return clusters.create(REQUEST, lambda _: None, self.laptop.aws)

    def down(self) -> None:
        teardown.delete(NAME, aws=self.laptop.aws)

    def attempt(self, what: Callable[[], object], fault: Fault, at: int) -> str:
        """How it ended: succeeded, killed, or the line that a user reads."""
        with self.laptop.trial(fault, at):
            try:
                what()
            except Killed:
                return "killed"
            except SpotelasticError as error:
                return str(error)
        return "succeeded"

    def calls(self, what: Callable[[], object]) -> list[str]:
        with self.laptop.trial():
            what()
            return list(self.laptop.calls)


REQUEST = Request(
    name=NAME,
    script="train.py",
    args=(),
    code="c0de",
    archive=b"an archive",
    settings=Settings(1, 2, workers=1),
    instance_types=("c5.large", "m5.large"),
    network=NETWORK,
)


@pytest.fixture
def trial(tmp_path: Path) -> Iterator[Trial]:
    with account(tmp_path):
        yield Trial(Laptop())


def pairs(calls: list[str]) -> Iterator[tuple[int, Fault]]:
    for at in range(1, len(calls) + 1):
        for number, fault in enumerate(FAULTS):
            if (at + number) % EVERY == 0:
                yield at, fault


def test_what_a_cluster_leaves_would_be_found(trial: Trial) -> None:
    """The search itself: after `up` it finds every kind of thing that `up` makes."""
    trial.up()
    assert kinds(NAME) >= {
        "autoscaling.autoscaling_groups",
        "autoscaling.lifecycle_hooks",
        "autoscaling.scheduled_actions",
        "cloudformation.stacks",
        "ec2.enis",
        "ec2.launch_templates",
        "ec2.reservations",
        "ec2.volumes",
        "ec2.vpcs",
        "iam.instance_profiles",
        "iam.roles",
        "logs.groups",
        "sqs.queues",
    }
    trial.down()
    assert remains(NAME) == []


def test_an_up_that_goes_wrong_anywhere_can_be_run_again_and_taken_down(trial: Trial) -> None:
    calls = trial.calls(trial.up)
    trial.down()
    assert len(calls) > 30
    for at, fault in pairs(calls):
        told = f"{fault.name} at call {at}, {calls[at - 1]}"
        outcome = trial.attempt(trial.up, fault, at)
        clear(outcome, told)
        if outcome not in ("killed", "succeeded") and fault is not EXPIRED:
            assert remains(NAME) == [], told  # an error is not left lying about
        if at % 2:
            trial.up()
            complete(trial, told)
        trial.down()
        assert remains(NAME) == [], told


def test_a_down_that_goes_wrong_anywhere_can_be_run_again(trial: Trial) -> None:
    trial.up()
    calls = trial.calls(trial.down)
    assert len(calls) > 10
    for at, fault in pairs(calls):
        told = f"{fault.name} at call {at}, {calls[at - 1]}"
        trial.up()
        clear(trial.attempt(trial.down, fault, at), told)
        trial.down()
        assert remains(NAME) == [], told


def test_a_cluster_that_is_half_gone_is_not_brought_back(trial: Trial) -> None:
    trial.up()
    calls = trial.calls(trial.down)
    stack_goes = calls.index("cloudformation.DeleteStack") + 1
    trial.up()
    trial.attempt(trial.down, DENIED, stack_goes)
    with pytest.raises(SpotelasticError, match=r"is being taken down: .*`spotelastic down quokka`"):
        trial.up()
    trial.down()
    assert remains(NAME) == []


def clear(outcome: str, told: str) -> None:
    """A user reads one line, which names what could not be done."""
    assert "\n" not in outcome, told
    assert outcome in ("killed", "succeeded") or outcome.startswith(("cannot ", "the ")), told


def complete(trial: Trial, told: str) -> None:
    """All that a cluster needs is there, once, and nobody pays for more than was asked for."""
    aws, its = trial.laptop.aws, Names(NAME)
    found = autoscaling.group(aws, its.workers)
    assert found is not None, told
    assert (found.desired, len(found.places)) == (2, 2), told
    living = [m for m in autoscaling.machines(aws, NAME) if m.state != "terminated"]
    roles = sorted(machine.role for machine in living)
    assert roles == ["control"] * 3 + ["worker"] * 2, told
    switches = aws.autoscaling.describe_scheduled_actions()["ScheduledUpdateGroupActions"]
    armed = {s["AutoScalingGroupName"] for s in switches if s["ScheduledActionName"] == SWITCH}
    assert armed == {its.workers, its.on_demand}, told
