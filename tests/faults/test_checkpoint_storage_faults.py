"""Stores that fail, truncate or are away, and memory or disks that are full: saves wait, training
goes on, and what is committed in the end is complete."""

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import boto3
import pytest
from spotelastic_checkpoints.commits import Commits
from spotelastic_checkpoints.errors import ArenaFull, RestoreFailed
from spotelastic_checkpoints.storage.open import open_storage
from spotelastic_checkpoints.wire import Commit, Resume
from support.checkpoints import Node, Worker, cluster, fetched, is_content_of, plan_of, round_info
from support.faulty_s3 import FaultyS3
from support.s3 import s3_server, use_s3

pytestmark = pytest.mark.faults


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with s3_server() as endpoint:
        yield endpoint


@pytest.fixture
def s3(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyS3]:
    bucket = use_s3(monkeypatch, endpoint)
    with FaultyS3(endpoint, f"s3://{bucket}/run") as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        yield proxy


def eventually(check: Callable[[], bool], within: float = 30.0) -> None:
    """Waits for another process; the bound is generous because it is not what is tested."""
    deadline = time.monotonic() + within
    while not check():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.02)


def started(node: Node, round_: str = "r1") -> tuple[int, Worker]:
    epoch = node.agent.claim("test", timeout=20).epoch
    node.begin(round_info(round_, 0, [node.name], 1, epoch))
    return epoch, Worker(str(node.socket), round_, 0, 0, plan_of(1, 1))


def committed(storage: str) -> Commit | None:
    """What LATEST names, after a check that it is complete."""
    commits = Commits(open_storage(storage), "test")
    latest = commits.latest()
    if latest is not None:
        commits.checkpoint(latest)
    return latest


def test_a_store_that_comes_back_gets_the_newest_save(tmp_path: Path, s3: FaultyS3) -> None:
    with cluster(tmp_path, storage=s3.url) as [node]:
        epoch, worker = started(node)
        worker.save(1)
        assert worker.client.flush(30.0)
        s3.away = True
        for step in range(2, 12):
            worker.step(step)
        eventually(lambda: node.agent.status().error != "")
        assert max(s.step for s in node.agent.status().snapshots) == 11, "training went on"
        s3.away = False
        eventually(lambda: node.agent.status().commit == Commit(epoch, 11))
        assert committed(s3.url) == Commit(epoch, 11)
        assert node.agent.status().error == ""
        worker.client.leave(clean=True)


@pytest.mark.parametrize("status", [409, 503])
@pytest.mark.parametrize("part", ["distcp", "manifest", ".metadata", "LATEST"])
def test_an_answer_that_asks_to_try_again_costs_no_commit(
    tmp_path: Path, s3: FaultyS3, part: str, status: int
) -> None:
    with cluster(tmp_path, storage=s3.url) as [node]:
        epoch, worker = started(node)
        s3.answer("PUT", part, status)
        worker.save(1)
        assert worker.client.flush(30.0)
        assert committed(s3.url) == Commit(epoch, 1)
        worker.client.leave(clean=True)


@pytest.mark.parametrize("part", ["distcp", "manifest", ".metadata", "LATEST"])
def test_an_answer_that_was_lost_costs_no_commit(tmp_path: Path, s3: FaultyS3, part: str) -> None:
    with cluster(tmp_path, storage=s3.url) as [node]:
        epoch, worker = started(node)
        s3.lose_answer("PUT", part)
        worker.save(1)
        assert worker.client.flush(30.0)
        assert committed(s3.url) == Commit(epoch, 1)
        worker.client.leave(clean=True)


def test_a_restore_reads_again_what_came_cut_short(tmp_path: Path, s3: FaultyS3) -> None:
    with cluster(tmp_path, storage=s3.url) as [node]:
        epoch, worker = started(node)
        worker.save(1)
        assert worker.client.flush(30.0)
        s3.truncate("GET", "distcp", 1000)
        s3.answer("GET", "distcp", 503)
        assert is_content_of(fetched(worker.client, Resume("store", 1, epoch=epoch)), 1)
        worker.client.leave(clean=True)


def test_a_shard_that_has_lost_its_end_is_found_and_named(tmp_path: Path) -> None:
    with cluster(tmp_path) as [node]:
        epoch, worker = started(node)
        worker.save(1)
        assert worker.client.flush(30.0)
        [shard] = Path(node.storage).rglob("*.distcp")
        os.truncate(shard, 1000)
        with pytest.raises(RestoreFailed, match=r"__0_0\.distcp is shorter"):
            fetched(worker.client, Resume("store", 1, epoch=epoch))
        worker.client.leave(clean=True)


def test_an_upload_that_died_with_its_daemon_is_ended_by_the_next_epoch(
    tmp_path: Path, s3: FaultyS3
) -> None:
    with cluster(tmp_path, storage=s3.url) as [node]:
        epoch, worker = started(node)
        worker.client.leave(clean=True)
        # What a daemon that is killed between two parts leaves.
        bucket, _, prefix = s3.url.removeprefix("s3://").partition("/")
        key = f"{prefix}/{epoch}/step-00000001/__0_0.distcp"
        boto3.client("s3").create_multipart_upload(Bucket=bucket, Key=key)
        storage = open_storage(s3.url)
        assert len(storage.unfinished()) == 1

        node.agent.end()
        _, worker = started(node, "r2")
        worker.save(2)
        assert worker.client.flush(30.0)
        eventually(lambda: storage.unfinished() == [])
        worker.client.leave(clean=True)


# -- full -----------------------------------------------------------------------------------------


@contextmanager
def small_disk(folder: Path, mib: int) -> Iterator[Path]:
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={mib}m", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("only root may mount")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Not a byte is left."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            pass
    return ballast


def test_a_full_disk_delays_commits_and_nothing_else(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 4) as disk, cluster(tmp_path, storage=str(disk)) as [node]:
        epoch, worker = started(node)
        worker.save(1)
        assert worker.client.flush(30.0)
        ballast = fill(disk)
        for step in range(2, 6):
            worker.step(step)
        eventually(lambda: "No space left" in node.agent.status().error)
        assert committed(str(disk)) == Commit(epoch, 1)
        assert max(s.step for s in node.agent.status().snapshots) == 5
        ballast.unlink()
        eventually(lambda: node.agent.status().commit == Commit(epoch, 5))
        assert committed(str(disk)) == Commit(epoch, 5)
        assert open_storage(str(disk)).unfinished() == []
        worker.client.leave(clean=True)


def test_shared_memory_that_others_fill_up_takes_no_slot_away(tmp_path: Path) -> None:
    with small_disk(tmp_path / "shm", 8) as shm, cluster(tmp_path) as [node]:
        node.stop()
        node.arena = shm / "arena"
        node.start()
        epoch, worker = started(node)
        assert worker.client.ready.wait(30.0)
        fill(shm)
        for step in range(1, 6):
            worker.save(step)
        assert worker.client.flush(30.0)
        assert committed(node.storage) == Commit(epoch, 5)

        with pytest.raises(ArenaFull, match=r"two slots of 6 MiB .* SPOTELASTIC_SLOTS=1"):
            worker.client.prepare(6 << 20)
        # There is no room for a copy of what lies in the store; what is sealed here still serves.
        with pytest.raises(ArenaFull, match="are free"):
            fetched(worker.client, Resume("store", 5, epoch=epoch))
        [newest] = [s for s in node.agent.status().snapshots if s.step == 5]
        memory = Resume("memory", 5, "r1", newest.layout)
        assert is_content_of(fetched(worker.client, memory), 5)
        worker.client.leave(clean=True)


def test_one_slot_is_enough_where_it_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPOTELASTIC_SLOTS", "1")
    with cluster(tmp_path) as [node]:
        epoch, worker = started(node)
        assert worker.client.ready.wait(30.0)
        for step in range(1, 5):
            worker.save(step)
        assert worker.client.flush(30.0)
        assert committed(node.storage) == Commit(epoch, 4)
        assert len(list(node.arena.glob("slot-*"))) == 1
        worker.client.leave(clean=True)
