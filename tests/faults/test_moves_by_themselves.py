"""A job that moves to another region by itself, when its own one gives it nothing any more.

What moves it is killed on the way. No step that was committed is lost, the two regions never train
at once, and the region that the job has left has no instance any more.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from spotelastic_checkpoints.commit.latest import ForwardPointer
from support.clusters.running_job import SAVES, TYPE, running_job
from support.clusters.trial_cluster import NAME, Trial, eventually
from support.training import exactly

from spotelastic.aws.clusters import asleep
from spotelastic.aws.compute import autoscaling
from spotelastic.aws.messaging.bucket import BucketObjects
from spotelastic.client import commands
from spotelastic.client.moving.two_regions import latest_of
from spotelastic.client.targets.cloud_target import CloudTarget
from spotelastic.client.targets.find import account
from spotelastic.cloud.bucket import MOVING
from spotelastic.cloud.model import ALIVE
from spotelastic.errors import UsageError
from spotelastic.model.interruption_kind import InterruptionKind
from spotelastic.model.job import Regions, Settings

pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]

EAST, WEST = "us-east-1", "us-west-2"
SETTINGS = Settings(1, 2, workers=1, **SAVES)
PATIENCE = 15.0
ZONES = "abcdef"
"""Letters of all zones of a region. What the nodes leave is tried in another one first."""


def home() -> CloudTarget:
    return account(True, None, print)


@contextmanager
def moving_job(folder: Path, **variables: str) -> Iterator[Trial]:
    """A job in the east, whose cluster in the west is asleep."""
    its = Regions((EAST, WEST), patience=PATIENCE)
    asked = {"settings": SETTINGS, "linger": 3600.0, "regions": its}
    with running_job(folder, more=variables, **asked) as trial:
        home().keep(NAME)
        west = home().in_region(WEST)
        west.create(west.fitted(replace(trial.request, asleep=True)), print, new=True)
        assert not asleep.is_awake(west.aws, NAME)
        trial.status(lambda s: s.committed > 0, "a commit")
        yield trial


def gives_nothing(trial: Trial, region: str) -> None:
    """A region's nodes are taken, and it has no others."""
    for zone in ZONES:
        trial.faults.set_capacity(TYPE, f"{region}{zone}", 0)
    its = home().in_region(region).aws

    def look() -> bool | None:
        alive = [m for m in autoscaling.instances(its, NAME, "worker") if m.state in ALIVE]
        for node in alive:
            trial.faults.kill(node.id)
        return None if alive else True

    # One that was launched just before shows in its group a moment later.
    eventually(look, f"no node in {region}")


def gives_again(trial: Trial, region: str) -> None:
    for zone in ZONES:
        trial.faults.set_capacity(TYPE, f"{region}{zone}", 4)


def trains(region: str, beyond: int) -> int:
    """The step of the newest commit, once there is one beyond that in this region."""

    objects = home().in_region(region).cluster(NAME).objects

    def look() -> int | None:
        status = objects.status()
        return status.committed if status is not None and status.committed > beyond else None

    return eventually(look, f"a commit beyond step {beyond} in {region}")


def sleeps(region: str) -> None:
    """The cluster has no instance any more."""
    target = home().in_region(region)

    def look() -> bool | None:
        alive = [m for m in autoscaling.instances(target.aws, NAME) if m.state in ALIVE]
        return None if alive or asleep.is_awake(target.aws, NAME) else True

    eventually(look, f"a cluster that sleeps in {region}")


def finishes(trial: Trial, folder: Path, region: str) -> None:
    """All steps of the job were right, in whichever region it made them."""
    (folder / "stop").touch()
    objects = home().in_region(region).cluster(NAME).objects

    def look() -> bool | None:
        status = objects.status()
        return True if status is not None and status.state == "succeeded" else None

    eventually(look, "the end of the job")
    exactly.check(folder)


def test_a_job_goes_where_there_are_nodes_and_comes_back(tmp_path: Path) -> None:
    with moving_job(tmp_path) as trial:
        before = trial.status(lambda s: s.committed > 0, "a commit").committed
        gives_nothing(trial, EAST)
        there = trains(WEST, before)
        sleeps(EAST)
        gives_again(trial, EAST)
        gives_nothing(trial, WEST)
        trains(EAST, there)
        sleeps(WEST)

        def moves() -> list[str] | None:
            report = trial.cluster.objects.report()
            rows = () if report is None else report.interruptions
            return [row.node for row in rows if row.kind is InterruptionKind.MOVED] or None

        assert eventually(moves, "the moves") == [f"{EAST} to {WEST}", f"{WEST} to {EAST}"]
        finishes(trial, tmp_path, EAST)


def is_noted(trial: Trial) -> bool:
    return trial.cluster.objects.has(MOVING)


def is_closed(trial: Trial) -> bool:
    run = BucketObjects(trial.cluster.aws, trial.cluster.bucket, NAME)
    return isinstance(latest_of(run), ForwardPointer)


def is_awake(_trial: Trial) -> bool:
    return asleep.is_awake(home().in_region(WEST).aws, NAME)


@pytest.mark.parametrize("reached", [is_noted, is_closed, is_awake])
def test_a_keeper_that_is_lost_with_its_node_is_followed_by_another_one(
    tmp_path: Path, reached: Callable[[Trial], bool]
) -> None:
    with moving_job(tmp_path) as trial:
        status = trial.status(lambda s: s.committed > 0, "a commit")
        gives_nothing(trial, EAST)
        eventually(lambda: reached(trial) or None, reached.__name__)
        trial.faults.kill(status.leader)
        trains(WEST, status.committed)
        sleeps(EAST)
        finishes(trial, tmp_path, WEST)


@pytest.mark.parametrize("keeper_dies", [False, True])
def test_a_stop_amid_a_move_holds_or_is_refused(tmp_path: Path, keeper_dies: bool) -> None:
    with moving_job(tmp_path) as trial:
        status = trial.status(lambda s: s.committed > 0, "a commit")
        gives_nothing(trial, EAST)
        eventually(lambda: is_noted(trial) or None, "a move that is noted")
        if keeper_dies:
            trial.faults.kill(status.leader)
        try:
            commands.stop(home().cluster(NAME), wait=True, say=print)
        except UsageError as refused:
            assert "continues in the other region" in str(refused)
            trains(WEST, status.committed)
            finishes(trial, tmp_path, WEST)
            return
        eventually(lambda: None if is_noted(trial) else True, "a move that is given up")
        assert not is_closed(trial) and not is_awake(trial)
        last = trial.cluster.objects.status()
        assert last is not None and last.reason.startswith("stopped by command")
        gives_again(trial, EAST)
        commands.restart_same(home().cluster(NAME))
        trains(EAST, status.committed)
        finishes(trial, tmp_path, EAST)


@pytest.mark.parametrize("reached", [is_noted, is_closed])
def test_a_move_goes_on_when_the_other_region_is_reached_again(
    tmp_path: Path, reached: Callable[[Trial], bool]
) -> None:
    with moving_job(tmp_path) as trial:
        before = trial.status(lambda s: s.committed > 0, "a commit").committed
        gives_nothing(trial, EAST)
        eventually(lambda: reached(trial) or None, reached.__name__)
        trial.faults.isolate(WEST)
        eventually(lambda: trial.faults.unanswered() > 2 or None, "calls in vain")
        trial.faults.isolate()
        trains(WEST, before)
        sleeps(EAST)
        finishes(trial, tmp_path, WEST)


def test_a_region_whose_keepers_are_all_lost_is_put_to_sleep_by_the_next_one(
    tmp_path: Path,
) -> None:
    with moving_job(tmp_path) as trial:
        before = trial.status(lambda s: s.committed > 0, "a commit").committed
        gives_nothing(trial, EAST)
        eventually(lambda: is_awake(trial) or None, "the cluster in the west is awake")
        for node in autoscaling.instances(trial.cluster.aws, NAME, "control"):
            if node.state in ALIVE:
                trial.faults.kill(node.id)
        trains(WEST, before)
        sleeps(EAST)
        finishes(trial, tmp_path, WEST)
