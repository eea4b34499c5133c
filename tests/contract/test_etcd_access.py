"""A real etcd with a cluster's certificates: what members and workers may do, and nothing else."""

import contextlib
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

import grpc
import pytest
from pyetcd import etcdrpc as rpc
from support.processes.patience import PATIENT
from support.processes.ports import HOST, held_ports
from support.store.watch_sinks import Recorder

from spotelastic.certificates import (
    MEMBER_NAME,
    WORKER_NAME,
    Certificate,
    Subject,
    issue,
    make_authority,
)
from spotelastic.errors import EnvironmentFailure, Unavailable
from spotelastic.store import etcd_access, keys
from spotelastic.store.etcd import EtcdStore
from spotelastic.store.etcd_server.process import EtcdMember, MemberConfig
from spotelastic.store.keys import Keys
from spotelastic.store.members import MemberChannel
from spotelastic.store.port import Compare, Delete, Put
from spotelastic.store.session import Session
from spotelastic.store.tls import TlsFiles, files_in

RUN, OTHER = Keys("run"), Keys("other")
OF_CONTROLLERS = (RUN.ending, RUN.leader, RUN.controller("i-1"))
REFUSED = re.compile("permission denied|user name not found|user not found")
FOREIGN = (OTHER.round, OTHER.live("n"), "/elsewhere", "/spotelastic/run", "/spotelastic/runs/x")


@dataclass(frozen=True)
class Doors:
    """A member, and the files of those who call it."""

    endpoint: str
    member: TlsFiles
    worker: TlsFiles
    nameless: TlsFiles
    """A certificate of the authority's for a user that etcd does not know."""

    def restrict(self) -> None:
        etcd_access.restrict([self.endpoint], self.member, RUN, PATIENT)

    @contextlib.contextmanager
    def store(self, tls: TlsFiles) -> Iterator[EtcdStore]:
        with contextlib.closing(EtcdStore([self.endpoint], timeout=PATIENT, tls=tls)) as store:
            yield store

    @contextlib.contextmanager
    def channel(self, tls: TlsFiles) -> Iterator[MemberChannel]:
        with contextlib.closing(MemberChannel(self.endpoint, tls)) as channel:
            yield channel


def files(folder: Path, name: str, authority: Certificate, *hosts: str) -> TlsFiles:
    issue(authority, Subject(name, hosts), datetime.now(UTC)).write(folder)
    return files_in(folder)


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[Doors]:
    authority = make_authority("run", datetime.now(UTC))
    member = files(folder / "member", MEMBER_NAME, authority, HOST)
    with held_ports(2) as (client, peer):
        at = (f"{HOST}:{client}", f"{HOST}:{peer}")
        config = MemberConfig("m", folder / "data", *at, fsync=False, tls=member)
        with EtcdMember(config, log=folder / "log") as started:
            started.start()
            started.await_service(PATIENT)
            worker = files(folder / "worker", WORKER_NAME, authority)
            yield Doors(started.endpoint, member, worker, files(folder / "x", "x", authority))


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Doors]:
    with serving(tmp_path) as doors:
        yield doors


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    with serving(tmp_path_factory.mktemp("etcd")) as doors:
        doors.restrict()
        yield doors


def test_the_table_of_keys_is_what_workers_may_write() -> None:
    """Each row of the table in `keys.py`: allowed where an agent writes it."""
    rows = re.findall(r"^\| (\S+) +\| (.*?) +\| (.*?) +\|", keys.__doc__ or "", re.MULTILINE)
    assert len(rows) > 20
    for name, _, by in rows[2:]:
        key = RUN.root + re.sub(r"<[^>]*>.*", "", name)
        covered = any(
            key.startswith(each) if each.endswith("/") else key == each for each in RUN.of_agents
        )
        agents = any(who in by for who in ("agent", "holder", "node", "launcher"))
        assert covered == agents, f"{name}, written by {by}"


def test_workers_write_what_agents_write_and_read_the_run(doors: Doors) -> None:
    with doors.store(doors.worker) as store, doors.store(doors.member) as members:
        lease = store.grant(60.0)
        for name in RUN.of_agents:
            key = name + ("x" if name.endswith("/") else "")
            store.put(key, b"1", lease)
            held = store.get(key)
            assert held is not None
            compare = Compare(key, "modified", held.modified)
            assert store.commit(
                [compare], [Put(key, b"2", lease), Delete(RUN.drain("n"))]
            ).succeeded
            assert store.delete(key)
        assert store.refresh(lease) > 0
        store.put(RUN.live("n"), b"1", lease)
        store.revoke(lease)
        assert store.get(RUN.live("n")) is None
        for key in OF_CONTROLLERS:
            members.put(key, b"1")
            held = store.get(key)
            assert held is not None and held.data == b"1"
        values, _ = store.range(RUN.root)
        assert {value.key for value in values} == set(OF_CONTROLLERS)


@pytest.mark.parametrize("key", [*OF_CONTROLLERS, *FOREIGN])
def test_workers_write_nothing_else(doors: Doors, key: str) -> None:
    with doors.store(doors.worker) as store, doors.store(doors.member) as members:
        members.put(key, b"theirs")
        with pytest.raises(EnvironmentFailure, match="does not let"):
            store.put(key, b"mine")
        with pytest.raises(EnvironmentFailure, match="does not let"):
            store.commit([], [Put(RUN.commit, b"mine"), Delete(key)])
        held = members.get(key)
        assert held is not None and held.data == b"theirs"
        assert members.get(RUN.commit) is None


@pytest.mark.parametrize("key", FOREIGN)
def test_workers_read_no_other_run(doors: Doors, key: str) -> None:
    with doors.store(doors.worker) as store:
        with pytest.raises(EnvironmentFailure, match="does not let"):
            store.get(key)
        with pytest.raises(EnvironmentFailure, match="does not let"):
            store.range(key)


@pytest.mark.parametrize("who", ["worker", "nameless"])
def test_only_members_administer_etcd(doors: Doors, who: str) -> None:
    with doors.channel(getattr(doors, who)) as channel:
        auth, asked = channel.auth, dict[str, tuple[Any, Any]]()
        asked["remove"] = channel.remove, rpc.MemberRemoveRequest(ID=1)
        asked["add"] = channel.add, rpc.MemberAddRequest(peerURLs=["http://127.0.0.1:1"])
        asked["disable"] = auth.AuthDisable, rpc.AuthDisableRequest()
        grants = rpc.AuthUserGrantRoleRequest(user=WORKER_NAME, role=etcd_access.ROOT)
        asked["grant"] = auth.UserGrantRole, grants
        asked["user"] = auth.UserAdd, rpc.AuthUserAddRequest(name="mine", password="mine")
        for name, (method, request) in asked.items():
            with pytest.raises(grpc.RpcError) as refused:
                method(request, timeout=PATIENT)
            assert REFUSED.search(refused.value.details()), name
        with pytest.raises(grpc.RpcError) as refused:
            for _ in channel.snapshot(rpc.SnapshotRequest(), timeout=PATIENT):
                pass
        assert REFUSED.search(refused.value.details())


def test_a_certificate_of_nobody_reads_nothing(doors: Doors) -> None:
    with (
        doors.store(doors.nameless) as store,
        pytest.raises(EnvironmentFailure, match="does not let"),
    ):
        store.get(RUN.round)


def test_one_that_dies_on_the_way_locks_nobody_out(fresh: Doors) -> None:
    """After each number of steps a worker and a member go on, and the next controller completes."""
    with fresh.channel(fresh.member) as channel:
        count = 0
        while True:
            todo = etcd_access.steps(channel.auth, RUN, PATIENT)
            done = [do() for do in islice(todo, count)]
            with fresh.store(fresh.worker) as store, fresh.store(fresh.member) as members:
                store.put(RUN.round, str(count).encode())
                members.put(RUN.ending, b"1")
            if len(done) < count:
                break
            count += 1
        assert count > 8
    fresh.restrict()
    with fresh.store(fresh.worker) as store, pytest.raises(EnvironmentFailure):
        store.put(RUN.ending, b"mine")


def test_several_controllers_at_once_and_calls_under_way(fresh: Doors) -> None:
    """Nothing that workers do meanwhile fails, and their watches see all of it."""
    ended, failed, written = threading.Event(), list[BaseException](), list[int]()
    seen = Recorder()

    def work() -> None:
        try:
            with fresh.store(fresh.worker) as store:
                number = 0
                while not ended.is_set():
                    number += 1
                    assert store.commit([], [Put(RUN.commit, str(number).encode())]).succeeded
                written.append(number)
        except BaseException as error:
            failed.append(error)

    with fresh.store(fresh.worker) as watching:
        watching.watch(RUN.root, seen)
        seen.wait(lambda seen: seen.resets)
        session = Session(watching, 60.0, lambda reason: failed.append(AssertionError(reason)))
        workers = [threading.Thread(target=work) for _ in range(3)]
        for thread in workers:
            thread.start()
        problems = list[BaseException]()

        def control() -> None:
            try:
                fresh.restrict()
            except Unavailable:
                fresh.restrict()  # as a controller does, which tries again
            except BaseException as error:
                problems.append(error)

        controllers = [threading.Thread(target=control) for _ in range(3)]
        for thread in controllers:
            thread.start()
        for thread in controllers:
            thread.join(PATIENT)
        ended.set()
        for thread in workers:
            thread.join(PATIENT)
        assert failed == problems == []
        assert len(written) == 3
        with fresh.store(fresh.member) as members:
            members.put(RUN.ending, b"1")
        seen.wait(lambda seen: RUN.ending in seen.state())
        session.close()


def test_rights_that_a_version_no_longer_gives_are_taken_back(fresh: Doors) -> None:
    fresh.restrict()
    with fresh.channel(fresh.member) as channel:
        perm = rpc.auth_pb2.Permission(
            permType=rpc.auth_pb2.Permission.Type.Value("READWRITE"), key=RUN.ending.encode()
        )
        channel.auth.RoleGrantPermission(
            rpc.AuthRoleGrantPermissionRequest(name=etcd_access.WORKERS, perm=perm), timeout=PATIENT
        )
    with fresh.store(fresh.worker) as store:
        store.put(RUN.ending, b"mine")
        fresh.restrict()
        with pytest.raises(EnvironmentFailure):
            store.put(RUN.ending, b"mine")
