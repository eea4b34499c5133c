"""Three hosts (addresses of this machine) that run the etcd of their job, and lose some."""

import os
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.processes.ports import free_pair
from support.processes.run_launcher import NodeProcess, Run, comm, descendants, running
from support.store.etcd_members import wait_until

from spotelastic.store.etcd_server import roster
from spotelastic.store.etcd_server.process import find_leader

pytestmark = pytest.mark.faults

HOSTS = {name: f"127.0.0.{number}" for number, name in enumerate("abc", 1)}


class Hosts:
    """The nodes of one run; those called a, b and c run a member each."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def add(self, name: str, *script: str) -> NodeProcess:
        # Without TLS, the test can ask the members itself.
        conf = "protocol=http" if name in HOSTS else "protocol=http,is_host=false"
        way = ["--rdzv-backend", "c10d", "--local-addr", HOSTS.get(name, "127.0.0.9")]
        way += ["--rdzv-conf", conf]
        return self.run.add(name, *script, args=way)

    @property
    def endpoints(self) -> list[str]:
        return self.run.endpoint.split(",")

    def leader(self) -> str:
        """The host whose member leads."""
        found = find_leader(self.endpoints)
        assert found
        return next(name for name, host in HOSTS.items() if found.startswith(host))

    def members(self) -> dict[str, int]:
        """The ids of those that serve or have served, by their endpoint."""
        seen = roster.ask(self.endpoints)
        return {each.name: each.id for each in seen.members if each.served} if seen else {}

    def etcd(self, name: str) -> int:
        """Its pid; 0 while there is none."""
        pids = descendants(self.run.nodes[name].process.pid)
        return next((pid for pid in pids if comm(pid) == "etcd"), 0)


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    port = free_pair(HOSTS.values())
    endpoints = ",".join(f"{host}:{port}" for host in HOSTS.values())
    with running(endpoints, uuid.uuid4().hex, tmp_path, nnodes="2:3", served=False) as run:
        yield Hosts(run)


@pytest.mark.soak
def test_a_job_on_its_own_members_outlives_the_loss_of_each_host(hosts: Hosts) -> None:
    run = hosts.run
    for name in HOSTS:
        hosts.add(name)
    run.trains(*HOSTS, beyond=10)

    lost = hosts.leader()
    left = [name for name in HOSTS if name != lost]
    pid, before = hosts.etcd(lost), set(hosts.members().values())
    run.nodes[lost].kill()
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), "no etcd without its agent")
    run.trains(*left, beyond=run.step())

    hosts.add("guest")
    run.trains(*left, "guest", beyond=run.step())

    # A machine in the place of the lost one knows nothing; with it, another one may be lost.
    hosts.add(lost)
    wait_until(lambda: len(set(hosts.members().values()) & before) == 2, "it was removed")
    wait_until(lambda: len(hosts.members()) == 3, "the replacement serves")
    run.nodes[left[0]].kill()
    run.trains(lost, left[1], "guest", beyond=run.step())


@pytest.mark.soak
def test_a_killed_member_comes_back_with_its_data(hosts: Hosts) -> None:
    run = hosts.run
    for name in HOSTS:
        hosts.add(name)
    before = run.trains(*HOSTS, beyond=5)
    leader = hosts.leader()
    first = hosts.etcd(leader)
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: hosts.etcd(leader) not in (0, first), "another process")
    # The others' loss is then survived by the one that came back.
    other = next(name for name in HOSTS if name != leader)
    wait_until(lambda: len(hosts.members()) == 3, "three members")
    run.nodes[other].signal(signal.SIGTERM)
    assert run.nodes[other].wait() == 128 + signal.SIGTERM
    after = run.trains(*(name for name in HOSTS if name != other), beyond=run.step())
    assert after.parent == before.incarnation, "an etcd that is restarted changes nothing"
    assert len(hosts.members()) == 2, "who leaves does not count for the quorum"


@pytest.mark.soak
def test_all_hosts_and_guests_hear_how_the_job_ended(hosts: Hosts) -> None:
    script = str(Path(__file__).parent.parent / "support/scripts/train_small.py")
    guest = hosts.add("guest", script, "30")
    wait_until(lambda: "waiting for" in guest.output, "a guest says what it waits for")
    nodes = [guest, *(hosts.add(name, script, "30") for name in ("c", "b", "a"))]
    assert [node.wait() for node in nodes] == [0, 0, 0, 0], [node.output for node in nodes]
