"""Pods that run the etcd of their job: each comes back under its name, with another address and
without its data."""

import signal
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.kubernetes.pod_names import Names, why_not
from support.processes.ports import free_pair
from support.processes.run_launcher import NodeProcess, Run, running, vanish
from support.store.etcd_members import wait_until

from spotelastic.store.etcd_server import roster

pytestmark = pytest.mark.faults

PODS = ("train-0", "train-1", "train-2")


class Pods:
    """Nodes of one run as pods: `spotelastic run` with the flags of a rendered manifest."""

    def __init__(self, run: Run, names: Names, port: int) -> None:
        self.run, self.names = run, names
        self.port = port
        self.addresses: dict[str, str] = {}
        self._last = 0

    def add(self, name: str, *script: str) -> NodeProcess:
        """Start a pod of this name at an address that none had before; its name comes later."""
        self._last += 1
        self.addresses[name] = address = f"127.0.7.{self._last}"
        flags = ("--rdzv-backend", "c10d", "--rdzv-conf", "await_names=true")
        known = ("--local-addr", address, "--grace-period", "60")
        inside = self.names.inside(name)
        return self.run.add(name, *script, args=(*flags, *known), inside=inside)

    def publish(self, name: str) -> None:
        """The name server knows the pod's address."""
        self.names.set(f"{name}.train", self.addresses[name])

    def serving(self) -> dict[str, int]:
        """The ids of the etcd members that have served, by the pod's name."""
        seen = roster.ask([f"{at}:{self.port}" for at in self.addresses.values()])
        members = seen.members if seen else ()
        return {each.peer.partition(".")[0]: each.id for each in members if each.served}


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[Pods]:
    if reason := why_not(tmp_path):
        pytest.skip(reason)
    hosts = [f"127.0.7.{number}" for number in range(1, 6)]
    port = free_pair(hosts)
    endpoints = ",".join(f"{name}.train:{port}" for name in PODS)
    names = Names(tmp_path / "hosts")
    with running(
        endpoints,
        uuid.uuid4().hex,
        tmp_path,
        nnodes="2:3",
        view=",".join(f"{host}:{port}" for host in hosts),
        served=False,
    ) as run:
        yield Pods(run, names, port)


@pytest.mark.soak
def test_a_pod_comes_back_with_another_address_and_the_next_may_be_lost(pods: Pods) -> None:
    run = pods.run
    first = pods.add("train-0")
    wait_until(lambda: "no address is known for train-1" in first.output, "it waits for names")
    assert not pods.serving(), "and founds nothing while it may only not find the others"
    for name in ("train-1", "train-2"):
        pods.add(name)
    for name in PODS:
        pods.publish(name)
    run.trains(*PODS, beyond=10)
    before = pods.serving()

    vanish(run.nodes["train-0"])
    pods.names.remove("train-0.train")
    run.trains("train-1", "train-2", beyond=run.step())
    pods.add("train-0")
    pods.publish("train-0")
    run.trains(*PODS, beyond=run.step())
    wait_until(lambda: len(pods.serving()) == 3, "its member serves")
    after = pods.serving()
    assert after["train-0"] != before["train-0"], "a new member: the old one's promises are lost"
    assert {name: after[name] for name in PODS[1:]} == {name: before[name] for name in PODS[1:]}

    # The others reach the new member at its new address: without it there is no quorum now.
    vanish(run.nodes["train-1"])
    run.trains("train-0", "train-2", beyond=run.step())
    run.nodes["train-2"].signal(signal.SIGTERM)
    assert run.nodes["train-2"].wait() == 128 + signal.SIGTERM
