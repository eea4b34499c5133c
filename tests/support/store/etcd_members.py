"""Runs real etcd members on loopback for tests, as fixtures.

A test folder imports what it needs into its conftest:
`from support.store.etcd_members import etcd_store`.
"""

import contextlib
import os
import signal
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import grpc
import pytest
from pyetcd import etcdrpc as rpc
from support.processes.patience import PATIENT
from support.processes.ports import HOST, held_ports

from spotelastic.clock import steady
from spotelastic.store.etcd import EtcdStore
from spotelastic.store.etcd_server.process import (
    MINIMUM,
    EtcdMember,
    MemberConfig,
    find_binary,
    find_leader,
    standalone,
)
from spotelastic.store.etcd_watch import range_request
from spotelastic.store.members import REQUIRE_LEADER

MEMBERS = 3


def wait_until(condition: Callable[[], object], what: str, timeout: float = PATIENT) -> None:
    """For states outside this process that announce themselves to nobody."""
    deadline = steady() + timeout
    pause = threading.Event()
    while not condition():
        assert steady() < deadline, f"{what}: not so within {timeout:g} s"
        pause.wait(0.02)


class EtcdCluster:
    """Members whose processes can be killed, frozen and started again; each takes two ports."""

    def __init__(self, folder: Path, ports: Sequence[int]) -> None:
        self._folder = folder
        names = [chr(ord("a") + index) for index in range(len(ports) // 2)]
        at = [f"{HOST}:{port}" for port in ports]
        self._clients = dict(zip(names, at[::2], strict=True))
        self._peers = dict(zip(names, at[1::2], strict=True))
        self._binary = find_binary()
        self._frozen: set[str] = set()
        self.members = {name: self._member(name, "data") for name in names}

    @property
    def endpoints(self) -> list[str]:
        return list(self._clients.values())

    def leader(self) -> str:
        """The leading member's name, once one leads: on a slow machine they may elect again."""
        found: list[str] = []

        def leads() -> bool:
            seen = find_leader(self.endpoints)
            found.extend([seen] if seen else [])
            return bool(found)

        wait_until(leads, "a member leads")
        return self._at(found[0])

    def followers(self) -> list[str]:
        leader = self.leader()
        return [name for name in self.members if name != leader]

    def in_use(self, store: EtcdStore) -> str:
        """The name of the member that a store talks to."""
        return self._at(store.endpoint)

    def start(self, *names: str) -> None:
        """Starts them (all by default) and waits until they serve."""
        chosen = [self.members[name] for name in names or self.members]
        for member in chosen:
            member.start()
        for member in chosen:
            member.await_service(PATIENT)

    def kill(self, *names: str) -> None:
        """By SIGKILL. What was written before is in the members' files, see `_save`."""
        chosen = names or tuple(self.members)
        if self._binary.version < MINIMUM:
            for name in chosen:
                if self.members[name].running and name not in self._frozen:
                    _save(self._clients[name])
        self.end(*chosen)

    def end(self, *names: str) -> None:
        """Kills them for good: nobody will miss what they have not saved."""
        for name in names or self.members:
            self.members[name].kill()
            self._frozen.discard(name)

    def freeze(self, name: str) -> None:
        """Returns when it stands still: the signal reaches its threads one by one."""
        self._frozen.add(name)
        pid = self.members[name].pid
        os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: _stands_still(pid), f"{name} stands still")

    def thaw(self, name: str) -> None:
        os.kill(self.members[name].pid, signal.SIGCONT)
        self._frozen.discard(name)

    def wipe(self) -> None:
        """Kills all and lets them start from nothing, under the same names and addresses."""
        self.end()
        fresh = uuid.uuid4().hex
        self.members = {name: self._member(name, fresh) for name in self.members}

    def _at(self, endpoint: str) -> str:
        return next(name for name, at in self._clients.items() if at == endpoint)

    def _member(self, name: str, data: str) -> EtcdMember:
        config = MemberConfig(
            name,
            self._folder / f"{name}-{data}",
            self._clients[name],
            self._peers[name],
            cluster=self._peers,
            heartbeat_ms=50,
            election_ms=500,
            fsync=False,
        )
        return EtcdMember(config, log=self._folder / f"{name}.log", binary=self._binary)


def _save(endpoint: str) -> None:
    """Lets a member write all that it has applied into its files.

    Before 3.5.6 it may write that it has applied a change, but not the change (etcd issue 13766).
    Killed then, it lacks that change for ever, and its watches wait in vain for what follows from
    it. It writes every 100 ms, so a machine with much to do gets there in one of some hundred
    kills. Now it has nothing to write, unless somebody goes on changing keys. That etcd survives
    such kills is for etcd to prove; what these tests ask is what its clients do.
    """
    with grpc.insecure_channel(endpoint) as channel, contextlib.suppress(grpc.RpcError):
        applied = range_request("/", count_only=True)
        rpc.KVStub(channel).Range(applied, timeout=1.0, metadata=REQUIRE_LEADER)
        rpc.MaintenanceStub(channel).Hash(rpc.HashRequest(), timeout=1.0)  # of what it has written


def _stands_still(pid: int) -> bool:
    threads = Path(f"/proc/{pid}/task").iterdir()
    return all((t / "stat").read_text().rpartition(")")[2].split()[0] == "T" for t in threads)


@pytest.fixture(scope="session")
def etcd_member(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdMember]:
    """One member for everything that does not break it."""
    with standalone(tmp_path_factory.mktemp("etcd")) as member:
        yield member


@pytest.fixture
def etcd_store(etcd_member: EtcdMember) -> Iterator[EtcdStore]:
    """A store on the shared member; take `prefix` to stay apart from other tests."""
    with contextlib.closing(EtcdStore([etcd_member.endpoint], timeout=PATIENT)) as store:
        yield store


@pytest.fixture
def prefix() -> str:
    """A part of the key space that no other test uses."""
    return f"/test/{uuid.uuid4().hex}/"


@pytest.fixture
def etcd_cluster(tmp_path: Path) -> Iterator[EtcdCluster]:
    """Members of the test's own, all serving."""
    with held_ports(2 * MEMBERS) as ports:
        cluster = EtcdCluster(tmp_path, ports)
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.end()


@pytest.fixture
def no_leftover_threads() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    left = [thread.name for thread in set(threading.enumerate()) - before if thread.is_alive()]
    assert not left, f"threads left behind: {left}"
