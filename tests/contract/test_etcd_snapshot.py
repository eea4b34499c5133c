"""Snapshots of a real etcd: taken, restored, kept in number, and refused when they are damaged."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from support.clusters.memory_bucket import MemoryBucket
from support.processes.patience import PATIENT
from support.processes.ports import HOST, held_ports

from spotelastic.controller.etcd import snapshots
from spotelastic.controller.etcd.generations import GENERATIONS, Generation
from spotelastic.errors import EnvironmentFailure
from spotelastic.store.etcd import EtcdStore
from spotelastic.store.etcd_server.process import EtcdMember, MemberConfig, find_binary
from spotelastic.store.etcd_server.snapshot import restore, take


@pytest.fixture
def other(tmp_path: Path) -> Iterator[MemberConfig]:
    """A member that has not started."""
    with held_ports(2) as (client, peer):
        at = (f"{HOST}:{client}", f"{HOST}:{peer}")
        yield MemberConfig("r", tmp_path / "data", *at, fsync=False)


def test_what_was_saved_is_there_in_another_cluster(
    etcd_member: EtcdMember, etcd_store: EtcdStore, prefix: str, tmp_path: Path, other: MemberConfig
) -> None:
    etcd_store.put(f"{prefix}kept", b"1")
    snapshot = tmp_path / "snapshot"
    with snapshot.open("wb") as file:
        assert take(etcd_member.endpoint, file) == file.tell()
    restore(snapshot, other, find_binary())
    with EtcdMember(other, log=tmp_path / "log") as member:
        member.start()
        member.await_service(PATIENT)
        with contextlib.closing(EtcdStore([member.endpoint], timeout=5.0)) as store:
            value = store.get(f"{prefix}kept")
    assert value is not None and value.data == b"1"


def test_of_a_damaged_snapshot_nothing_is_restored(
    etcd_member: EtcdMember, tmp_path: Path, other: MemberConfig
) -> None:
    snapshot = tmp_path / "snapshot"
    with snapshot.open("wb") as file:
        size = take(etcd_member.endpoint, file)
    with snapshot.open("r+b") as file:
        file.seek(size // 2)
        file.write(b"damage")
    with pytest.raises(EnvironmentFailure, match="cannot restore a snapshot of etcd") as told:
        restore(snapshot, other, find_binary())
    assert "\n" not in str(told.value)
    assert not other.data_dir.exists()


def test_the_newest_are_kept_and_the_one_that_a_late_member_needs(etcd_member: EtcdMember) -> None:
    bucket = MemoryBucket("demo")
    saved = []
    for now in range(1, snapshots.KEPT + 4):
        saved.append(snapshots.save(bucket, [etcd_member.endpoint], None, float(now)))
        if now == 1:
            named = msgspec.json.encode(Generation(2, saved[0]))
            bucket.objects[f"{GENERATIONS}000002.json"] = named
    assert bucket.names(snapshots.PREFIX) == (saved[0], *saved[-snapshots.KEPT :])
    assert snapshots.newest(bucket) == saved[-1]
