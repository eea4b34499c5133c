"""Whole jobs that lose their object store, a node in mid-commit, a zone, or etcd's memory.

Each job tells every step: what it computed is what a run without interruptions computes, and the
samples of every epoch came exactly once.
"""

import os
import shutil
import signal
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from spotelastic_checkpoints.catalog.catalog import Catalog
from spotelastic_checkpoints.commit.commit_protocol import Commits
from spotelastic_checkpoints.storage.open import open_storage
from spotelastic_checkpoints.types import Commit
from support.places import TESTS
from support.processes.patience import PATIENT
from support.processes.run_launcher import Run, resumed_steps, running, vanish
from support.saving.faulty_s3 import FaultyS3
from support.saving.storage_rules import never_went_back, nothing_is_half_uploaded, verified
from support.store.etcd_members import EtcdCluster, wait_until
from support.training import exactly
from support.training.exactly import SCRIPT

from spotelastic.rendezvous.view import RunState
from spotelastic.store.etcd_server.process import EtcdMember, standalone

pytestmark = pytest.mark.faults

STEP_TIME = "0.05"
FLAGS = ("--snapshot-every", "5", "--checkpoint-every", "10", "--max-restarts", "10")


def is_later(number: int, state: RunState) -> bool:
    """Whether a later round than that one is there."""
    return state.round is not None and state.round.number > number


def has_a_new_epoch(run: Run, than: Commit) -> bool:
    return run.newest().epoch > than.epoch


@pytest.fixture
def s3(s3_endpoint: str, bucket: str) -> Iterator[FaultyS3]:
    """In front of the server that this process talks to."""
    with FaultyS3(s3_endpoint, f"s3://{bucket}/run") as proxy:
        yield proxy


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdMember]:
    with standalone(tmp_path / "etcd") as member:
        yield member


class Job:
    """A run of `support.scripts.train_exactly`."""

    def __init__(self, run: Run, s3: FaultyS3 | None = None) -> None:
        self.run = run
        self._env = {"PYTHONPATH": str(TESTS)}
        if s3 is not None:
            self._env["AWS_ENDPOINT_URL"] = s3.endpoint

    def add(self, *names: str, zone: str = "") -> None:
        for name in names:
            args = ("--zone", zone) if zone else ()
            self.run.add(
                name, str(SCRIPT), str(self.run.folder), STEP_TIME, args=args, env=self._env
            )

    def kill(self, *names: str) -> None:
        """As machines that vanish at one moment: their agents, workers and daemons."""
        vanish(*(self.run.nodes[name] for name in names))

    def finishes(self, *names: str) -> None:
        """All end well, once they are told to."""
        (self.run.folder / "stop").touch()
        assert [self.run.nodes[name].wait() for name in names] == [0] * len(names)

    def check(self) -> None:
        """What was computed and what is stored, when the run is over."""
        last = exactly.check(self.run.folder)
        assert max(verified(self.run.storage)).step == last
        nothing_is_half_uploaded(self.run.storage)


@pytest.mark.soak
def test_a_job_trains_on_while_its_object_store_is_away_and_commits_when_it_is_back(
    etcd: EtcdMember, s3: FaultyS3, tmp_path: Path
) -> None:
    with running(
        etcd.endpoint, uuid.uuid4().hex, tmp_path, nnodes="2", storage=s3.url, flags=FLAGS
    ) as run:
        job = Job(run, s3)
        job.add("a", "b")
        before = run.trains("a", "b", beyond=10)
        run.commits(beyond=0)
        s3.away = True
        away = run.newest()
        for failures in (1, 2):
            seen = run.trains("a", "b", beyond=run.step() + 20)
            os.kill(run.nodes["b"].workers()[0], signal.SIGKILL)
            run.wait(partial(is_later, seen.number), "a new round")
            after = run.trains("a", "b", beyond=run.step())
            assert (after.resume.kind, after.number) == ("memory", before.number + failures)
            assert after.resume.step > away.step
        assert run.newest() == away
        s3.away = False
        back = run.step()
        run.commits(beyond=back)
        job.finishes("a", "b")
        job.check()
        never_went_back(s3.latest)
        assert "checkpoints: " in run.nodes["a"].output, "the outage was told"


@pytest.mark.soak
def test_a_node_that_is_lost_in_mid_commit_leaves_no_half_of_it(
    etcd: EtcdMember, s3: FaultyS3, tmp_path: Path
) -> None:
    with running(
        etcd.endpoint, uuid.uuid4().hex, tmp_path, nnodes="1:2", storage=s3.url, flags=FLAGS
    ) as run:
        job = Job(run, s3)
        job.add("a", "b")
        before = run.trains("a", "b", beyond=10)
        hold = s3.hold("PUT", "manifests/1.json")
        assert hold.there.wait(PATIENT)
        half = run.newest()
        job.kill(before.members[1].node)
        hold.go_on.set()
        alone = run.trains(before.members[0].node, beyond=run.step())
        assert alone.resume.kind == "memory"
        run.commits(beyond=alone.resume.step)
        assert run.newest().epoch > half.epoch
        job.add("c")
        both = run.trains(before.members[0].node, "c", beyond=run.step())
        run.commits(beyond=both.resume.step)
        job.finishes(before.members[0].node, "c")
        job.check()
        never_went_back(s3.latest)


@pytest.mark.soak
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGHUP])
def test_nodes_with_several_workers_come_and_go(
    etcd: EtcdMember, tmp_path: Path, ending: signal.Signals
) -> None:
    flags = (*FLAGS, "--nproc-per-node", "2")
    with running(etcd.endpoint, uuid.uuid4().hex, tmp_path, nnodes="2:3", flags=flags) as run:
        job = Job(run)
        job.add("a", "b")
        run.trains("a", "b", beyond=5)
        job.add("c")
        arrived = run.trains("a", "b", "c", beyond=run.step())
        assert arrived.world_size == 6
        assert run.record(arrived.number - 1).last_step == arrived.resume.step
        os.kill(run.nodes["b"].workers()[1], signal.SIGKILL)
        run.wait(lambda s: s.round and s.round.cause == "worker", "a new round")
        failed = run.trains("a", "b", "c", beyond=run.step())
        assert failed.resume.kind == "memory"
        run.nodes["c"].signal(ending)
        assert run.nodes["c"].wait() == 128 + ending
        left = run.trains("a", "b", beyond=run.step())
        assert run.record(left.number - 1).last_step == left.resume.step
        job.kill("a")
        job.add("d")
        replaced = run.trains("b", "d", beyond=run.step())
        assert replaced.resume.kind == "memory"
        job.finishes("b", "d")
        job.check()


@pytest.mark.soak
def test_jobs_that_share_an_etcd_leave_each_other_alone(etcd: EtcdMember, tmp_path: Path) -> None:
    for name in ("1", "2"):
        (tmp_path / name).mkdir()
    with (
        running(etcd.endpoint, "one", tmp_path / "1", nnodes="1:2", flags=FLAGS) as first,
        running(etcd.endpoint, "two", tmp_path / "2", nnodes="1:2", flags=FLAGS) as second,
    ):
        jobs = Job(first), Job(second)
        jobs[0].add("a", "b")
        jobs[1].add("a", "c")
        first.trains("a", "b", beyond=5)
        apart = second.trains("a", "c", beyond=5)
        jobs[0].kill("a")
        first.trains("b", beyond=first.step() + 10)
        jobs[0].finishes("b")
        assert second.trains("a", "c", beyond=second.step() + 5).incarnation == apart.incarnation
        jobs[1].finishes("a", "c")
        for job in jobs:
            job.check()


@pytest.mark.soak
def test_a_claim_that_comes_late_from_a_replaced_round_stops_no_commits(
    etcd: EtcdMember, tmp_path: Path
) -> None:
    with running(etcd.endpoint, uuid.uuid4().hex, tmp_path, nnodes="2", flags=FLAGS) as run:
        job = Job(run)
        job.add("a", "b")
        before = run.trains("a", "b", beyond=5)
        run.commits(beyond=0)
        late = Commits(open_storage(run.storage), run.run).claim().epoch
        run.wait(lambda s: s.round and s.round.epoch > late, "another claim")
        run.commits(beyond=run.step())
        assert run.trains("a", "b").incarnation == before.incarnation, "no restart"
        job.finishes("a", "b")
        job.check()


@pytest.mark.soak
def test_a_zone_that_is_lost_with_its_member_of_etcd_costs_no_committed_step(
    etcd_cluster: EtcdCluster, tmp_path: Path
) -> None:
    endpoints = ",".join(etcd_cluster.endpoints)
    with running(endpoints, uuid.uuid4().hex, tmp_path, nnodes="1:3", flags=FLAGS) as run:
        job = Job(run)
        job.add("a", "b", zone="z1")
        job.add("c", zone="z2")
        before = run.seals("a", "b", "c")
        gone = etcd_cluster.leader()
        etcd_cluster.kill(gone)
        job.kill("a", "b")
        left = run.trains("c", beyond=run.step())
        assert (left.cause, left.charged) == ("loss", ()), "nothing of it was the script's fault"
        assert left.resume.kind == "memory", "replicated state is whole on every node"
        lost = run.record(before.number).last_step - left.resume.step
        assert lost <= before.schedule.snapshot_every
        etcd_cluster.start(gone)
        job.add("d", zone="z1")
        run.trains("c", "d", beyond=run.step() + 10)
        job.finishes("c", "d")
        job.check()


@pytest.mark.soak
def test_a_job_whose_etcd_forgets_goes_on_from_what_is_stored(
    etcd: EtcdMember, tmp_path: Path
) -> None:
    """Rolled back to an earlier day, then emptied: epochs are the store's, not etcd's."""
    data, copy, empty = etcd.config.data_dir, tmp_path / "copy", tmp_path / "empty"
    empty.mkdir(mode=0o700)
    with running(
        etcd.endpoint, uuid.uuid4().hex, tmp_path, nnodes="2", flags=FLAGS, forgets=True
    ) as run:
        job = Job(run)
        job.add("a", "b")
        run.trains("a", "b", beyond=5)
        run.commits(beyond=0)
        first = run.newest()
        etcd.kill()
        shutil.copytree(data, copy)
        etcd.start()
        etcd.await_service(PATIENT)
        os.kill(run.nodes["b"].workers()[0], signal.SIGKILL)
        for state in (copy, empty):
            newest = run.newest()
            wait_until(partial(has_a_new_epoch, run, newest), "a commit of a new round")
            etcd.kill()
            shutil.rmtree(data)
            state.rename(data)
            etcd.start()
            etcd.await_service(PATIENT)
        newest = run.newest()
        wait_until(partial(has_a_new_epoch, run, newest), "a commit of a new round")
        assert min(resumed_steps(run.nodes["a"].output)[1:]) >= first.step
        job.finishes("a", "b")
        job.check()


@pytest.mark.soak
def test_a_run_that_finds_nothing_of_itself_at_first_goes_on_from_what_is_stored(
    etcd: EtcdMember, s3: FaultyS3, tmp_path: Path
) -> None:
    """On new nodes and an emptied etcd, while the object store is away."""
    with running(
        etcd.endpoint,
        uuid.uuid4().hex,
        tmp_path,
        nnodes="2",
        storage=s3.url,
        flags=FLAGS,
        forgets=True,
    ) as run:
        job = Job(run, s3)
        job.add("a", "b")
        run.trains("a", "b")
        run.commits(beyond=300)
        s3.away = True
        job.kill("a", "b")
        etcd.kill()
        shutil.rmtree(etcd.config.data_dir)
        etcd.start()
        etcd.await_service(PATIENT)
        kept, lost = run.newest(), max(exactly.executed(tmp_path / "steps"))
        job.add("c", "d")
        assert run.trains("c", "d", beyond=5).resume.kind == "fresh"
        s3.away = False
        run.wait(lambda s: s.round and s.round.phase == "started" and s.round.number > 1, "another")
        again = run.trains("c", "d", beyond=kept.step)
        assert (again.cause, again.resume.kind, again.resume.step) == ("commit", "store", kept.step)
        run.commits(beyond=kept.step)
        run.trains("c", "d", beyond=lost)  # of which all are compared
        job.finishes("c", "d")
        job.check()
        never_went_back(s3.latest)


@pytest.mark.soak
def test_a_run_whose_newest_commit_is_damaged_is_resumed_from_the_one_before(
    etcd: EtcdMember, tmp_path: Path
) -> None:
    with running(etcd.endpoint, uuid.uuid4().hex, tmp_path, nnodes="2", flags=FLAGS) as run:
        job = Job(run)
        job.add("a", "b")
        run.trains("a", "b")
        run.commits(beyond=20)
        job.kill("a", "b")
        [*_, before, newest] = verified(run.storage)
        damaged = flip_a_byte(run.storage, newest)
        job.add("c", "d")
        run.trains("c", "d")
        said = run.nodes["c"].output + run.nodes["d"].output
        problem = f"({damaged} does not match its checksum)"
        told = f"step {newest.step} cannot be restored {problem}: going back to {before.step}"
        assert told in said
        assert {*resumed_steps(said)} == {before.step}
        # Until it is none of those that are kept.
        run.commits(beyond=newest.step + 20)
        job.finishes("c", "d")
        job.check()


def flip_a_byte(storage: str, commit: Commit) -> str:
    """Of the first tensor; which that is, and where."""
    found = Catalog(open_storage(storage)).find(commit.step, commit.epoch)
    placed = next(placed for placed in found.items if placed.item.is_tensor)
    with (Path(storage) / placed.key).open("rb+") as file:
        file.seek(placed.item.offset + placed.item.length - 1)
        [last] = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([last ^ 1]))
    return f"{placed.key}: {placed.item.fqn}"
