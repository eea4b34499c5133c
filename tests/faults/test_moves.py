"""A job that is moved to another region, with its mover killed at every step, and back again.

No step that was committed is lost, the two regions never train at once, and nothing that costs
money is left in the region that the job has left.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from spotelastic_checkpoints.commit.commit_protocol import Commits
from spotelastic_checkpoints.commit.latest import ForwardPointer
from spotelastic_checkpoints.errors import StorageMoved
from support.clusters.running_job import SAVES, TYPE, running_job
from support.clusters.trial_cluster import NAME, Trial, eventually

from spotelastic.aws.compute import autoscaling
from spotelastic.aws.messaging.bucket import BucketObjects
from spotelastic.client.cluster import Cluster
from spotelastic.client.confirmation import agreed
from spotelastic.client.moving import two_regions
from spotelastic.client.moving.carry_out import MovePolicy
from spotelastic.client.moving.move import MoveResult, move
from spotelastic.client.moving.move_decision import MoveStep
from spotelastic.client.targets.cloud_target import CloudTarget
from spotelastic.client.targets.find import account, holding
from spotelastic.client.targets.local_target import LocalTarget
from spotelastic.errors import EnvironmentFailure, UsageError
from spotelastic.model.interruption_kind import InterruptionKind
from spotelastic.model.job import Settings
from spotelastic.model.progress import Interruption
from spotelastic.web.reading import SELDOM, ClusterReader

pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]

EAST, WEST = "us-east-1", "us-west-2"
SETTINGS = Settings(1, 2, workers=1, **SAVES)
TESTS = Path(__file__).parent.parent
CHILD = f"""
import sys
from spotelastic.client.confirmation import agreed
from spotelastic.client.moving.move import move
from spotelastic.client.targets.find import account
region, back = sys.argv[1] or None, sys.argv[2] == "back"
say = lambda line: print(line, flush=True)
home = account(True, None, print)
print(move(home, "{NAME}", region, back=back, confirm=agreed, say=say).text, flush=True)
"""
FORWARD = [MoveStep.STOP, MoveStep.CLAIM, MoveStep.COPY, MoveStep.CLOSE, MoveStep.OPEN]
FORWARD += [MoveStep.MAKE, MoveStep.END_SOURCE]
SOMETIMES = {MoveStep.END_SOURCE}
"""A cluster whose region was closed ends by itself, and mostly before that step."""
BACK = [MoveStep.CLOSE_TARGET, MoveStep.REOPEN, MoveStep.END_TARGET, MoveStep.DROP]
MOMENTS = ["begun", "done"]


@contextmanager
def moving_job(folder: Path) -> Iterator[Trial]:
    with running_job(folder, settings=SETTINGS, linger=3600.0) as trial:
        home().keep(NAME)
        trial.status(lambda s: s.committed > 0, "a commit")
        yield trial


def home() -> CloudTarget:
    return account(True, None, print)


def moved(*, back: bool = False, region: str = WEST) -> MoveResult:
    its = None if back else region
    return move(home(), NAME, its, back=back, confirm=agreed, say=print)


def killed(step: str, moment: str = "done", *, back: bool = False) -> None:
    """The mover in a process of its own, which dies there."""
    at = f"{step}-{moment}"
    command = [sys.executable, "-c", CHILD, "" if back else WEST, "back" if back else ""]
    child = subprocess.run(
        command, cwd=TESTS, env={**os.environ, "SPOTELASTIC_DIE_AT": at}, check=False
    )
    ends = {-signal.SIGKILL, 0} if step in SOMETIMES else {-signal.SIGKILL}
    assert child.returncode in ends, at


def settled_move(there: BucketObjects) -> Interruption | None:
    """The report's row of the move, once training has gone on after it."""
    report = there.report()
    rows = report.interruptions if report is not None else ()
    moves: list[Interruption | None] = [r for r in rows if r.kind is InterruptionKind.MOVED]
    [row] = moves or [None]
    return row if row is not None and row.pause_s is not None else None


def trains(region: str, beyond: int) -> int:
    """The job's step, once it has made one beyond that; nothing of it is in the other region."""
    at = holding(home(), NAME, print)
    assert isinstance(at, LocalTarget)
    assert at.aws.region == region
    record = at.cluster(NAME)

    def look() -> int | None:
        status = record.objects.status()
        return status.step if status is not None and status.committed > beyond else None

    return eventually(look, f"a commit beyond step {beyond} in {region}")


def nothing_is_left(region: str) -> None:
    target = home().in_region(region)
    assert target.names() == ()
    assert all(each.state == "terminated" for each in autoscaling.instances(target.aws, NAME))
    ec2 = target.aws.ec2
    assert ec2.describe_network_interfaces()["NetworkInterfaces"] == []
    assert ec2.describe_volumes()["Volumes"] == []
    with suppress(target.aws.s3.exceptions.NoSuchBucket):  # nothing was ever copied there
        uploads = target.aws.s3.list_multipart_uploads(Bucket=target.bucket)
        assert uploads.get("Uploads", []) == []


def test_a_job_is_moved_and_its_report_goes_on(tmp_path: Path) -> None:
    with moving_job(tmp_path) as trial:
        clock = [0.0]
        page = ClusterReader(Cluster(home(), home().cluster(NAME)), lambda: clock[0])
        assert not page.read().is_gone
        done = moved()
        assert (done.region, done.step > 0) == (WEST, True)
        trains(WEST, done.step)
        nothing_is_left(EAST)
        clock[0] += 10 * SELDOM
        seen = page.read()
        assert (seen.is_gone, page.cluster.target.account("").aws.region) == (False, WEST)
        assert seen.status.state == "running" and seen.status.step >= done.step
        its = two_regions.find(home(), NAME, WEST, print)
        assert isinstance(its.look().source.latest, ForwardPointer)
        with pytest.raises(StorageMoved):
            Commits(its.storage_here(), its.spec.run).claim()
        row = eventually(lambda: settled_move(its.there), "a report with the whole move")
        assert (row.saved_step, row.steps_lost) == (done.step, 0)
        assert row.pause_s is not None and row.pause_s > 0
        early = trial.cluster.objects.events()
        assert its.there.events()[: len(early)] == early
        assert moved().text.startswith("has moved to")  # once more: nothing is left to do

        there = holding(home(), NAME, print)
        cluster = Cluster(there, there.cluster(NAME))
        back = cluster.move(EAST, yes=True)  # with what it has trained meanwhile
        assert (back.step > done.step, cluster.target.account("").aws.region) == (True, EAST)
        trains(EAST, back.step)
        nothing_is_left(WEST)


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("step", FORWARD)
def test_a_mover_that_is_killed_is_run_again(tmp_path: Path, step: str, moment: str) -> None:
    with moving_job(tmp_path):
        killed(step, moment)
        done = moved()
        trains(WEST, done.step)
        nothing_is_left(EAST)


@pytest.mark.parametrize("step", FORWARD[:-2])
def test_a_mover_that_is_killed_is_undone(tmp_path: Path, step: str) -> None:
    with moving_job(tmp_path):
        killed(step)
        done = moved(back=True)
        trains(EAST, done.step)
        nothing_is_left(WEST)


@pytest.mark.parametrize("step", BACK)
def test_one_that_undoes_a_move_is_killed_and_run_again(tmp_path: Path, step: str) -> None:
    with moving_job(tmp_path):
        killed(MoveStep.OPEN)
        killed(step, back=True) if step != MoveStep.END_TARGET else None
        done = moved(back=True)
        trains(EAST, done.step)
        nothing_is_left(WEST)


def test_a_region_that_has_no_capacity_after_the_copy_is_told_and_left(tmp_path: Path) -> None:
    with moving_job(tmp_path) as trial:
        for zone in "abcd":
            trial.faults.set_capacity(TYPE, f"{WEST}{zone}", 0)
        policy = MovePolicy(trains_within=10.0)
        with pytest.raises(EnvironmentFailure, match="does not train in us-west-2 yet"):
            move(home(), NAME, WEST, back=False, confirm=agreed, say=print, policy=policy)
        done = moved(back=True)
        assert done.text == f"is back in us-east-1, from step {done.step}"
        trains(EAST, done.step)
        nothing_is_left(WEST)
        with pytest.raises(UsageError, match="no move of trial to undo"):
            moved(back=True)
