"""Stock torchrun with `--rdzv-backend=spotelastic`: real agents, workers, and a real etcd."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.etcd import wait_until
from support.patience import PATIENT

from spotelastic.model.job import Job, Settings
from spotelastic.model.node import Fingerprint, Node
from spotelastic.rendezvous import membership
from spotelastic.store.codec import decode
from spotelastic.store.etcd import EtcdStore
from spotelastic.store.etcd_server.process import EtcdMember, standalone
from spotelastic.store.keys import Keys
from spotelastic.store.port import StoredValue

SCRIPT = Path(__file__).parent.parent / "support" / "train_plain.py"


class Torchruns:
    """Nodes of one job, each a stock torchrun, and the lives of their workers."""

    def __init__(self, endpoint: str, folder: Path, *, nnodes: str, max_restarts: int) -> None:
        self.folder = folder
        self.run = uuid.uuid4().hex
        self._endpoint = endpoint
        self._args = [
            *("--rdzv-backend", "spotelastic", "--rdzv-endpoint", endpoint),
            *("--rdzv-id", self.run, "--nnodes", nnodes, "--max-restarts", str(max_restarts)),
            *("--nproc-per-node", "1"),
        ]
        self.agents: dict[str, subprocess.Popen[bytes]] = {}

    def add(self, node: str) -> subprocess.Popen[bytes]:
        env = {**os.environ, "NODE": node, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
        with (self.folder / f"{node}.out").open("wb") as output:
            self.agents[node] = subprocess.Popen(
                [
                    *(sys.executable, "-m", "torch.distributed.run", *self._args),
                    *("--rdzv-conf", f"node_id={node}", str(SCRIPT), str(self.folder)),
                ],
                env=env,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return self.agents[node]

    def lives(self, node: str) -> list[dict[str, Any]]:
        with contextlib.suppress(FileNotFoundError):
            text = (self.folder / f"{node}.lives").read_text()
            return [json.loads(line) for line in text.splitlines()]
        return []

    def trains(self, *nodes: str, after: int = 0) -> int:
        """Waits until the newest workers of these nodes form one world, in another store than the
        one with port `after`; returns the port of theirs."""

        def so() -> bool:
            for node in nodes:
                assert self.agents[node].poll() is None, f"{node} has ended"
            lives = [self.lives(node) for node in nodes]
            if not all(lives):
                return False
            newest = [each[-1] for each in lives]
            ports = {each["port"] for each in newest}
            ranks = sorted(each["rank"] for each in newest)
            return (
                {each["world"] for each in newest} == {len(nodes)}
                and ranks == list(range(len(nodes)))
                and len(ports) == 1
                and ports != {after}
            )

        try:
            wait_until(so, f"{nodes} train")
        except AssertionError as error:
            told = "\n".join(f"--- {n}: {self.lives(n)}\n{self.output(n)}" for n in self.agents)
            raise AssertionError(f"{error}\n{told}") from None
        return int(self.lives(nodes[0])[-1]["port"])

    def until_live(self, *names: str) -> None:
        keys = Keys(self.run)
        wait_until(lambda: all(self._get(keys.live(n)) for n in names), f"{names} are there")

    def job(self) -> Job:
        value = self._get(Keys(self.run).job)
        assert value is not None
        return decode(value.data, Job)

    def _get(self, key: str) -> StoredValue | None:
        with contextlib.closing(EtcdStore([self._endpoint], timeout=PATIENT)) as store:
            return store.get(key)

    def output(self, node: str) -> str:
        return (self.folder / f"{node}.out").read_text(errors="replace")[-4000:]

    def close(self) -> None:
        for agent in self.agents.values():
            if agent.poll() is None:
                agent.kill()
                agent.wait()
        for node in self.agents:
            for life in self.lives(node):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(life["pid"], signal.SIGKILL)


@contextlib.contextmanager
def torchruns(
    member: EtcdMember, folder: Path, *, nnodes: str, max_restarts: int
) -> Iterator[Torchruns]:
    started = Torchruns(member.endpoint, folder, nnodes=nnodes, max_restarts=max_restarts)
    try:
        yield started
    finally:
        started.close()


@pytest.mark.soak
def test_a_vanished_node_and_an_arrival_cost_no_restart(
    etcd_member: EtcdMember, tmp_path: Path
) -> None:
    with torchruns(etcd_member, tmp_path, nnodes="1:2", max_restarts=0) as nodes:
        for name in ("a", "b"):
            nodes.add(name)
        nodes.trains("a", "b")

        # As a machine that vanishes: its connections stay open, and nobody answers.
        os.kill(nodes.lives("b")[-1]["pid"], signal.SIGSTOP)
        nodes.agents["b"].kill()
        nodes.trains("a")

        nodes.add("c")
        nodes.trains("a", "c")
        assert {life["restarts"] for life in nodes.lives("a")} == {0}
        ports = [life["port"] for life in nodes.lives("a")]
        assert len(set(ports)) == len(ports), "every round has a store of its own"

        nodes.add("spare")
        nodes.until_live("spare")
        (tmp_path / "stop").touch()
        ends = {name: nodes.agents[name].wait(PATIENT) for name in ("a", "c", "spare")}
        assert ends == {"a": 0, "c": 0, "spare": 0}, nodes.output("spare")
        assert nodes.job().state == "succeeded"


def test_torchrun_is_refused_in_a_run_of_another_launcher(
    etcd_member: EtcdMember, tmp_path: Path
) -> None:
    with torchruns(etcd_member, tmp_path, nnodes="1:2", max_restarts=0) as nodes:
        with contextlib.closing(EtcdStore([etcd_member.endpoint], timeout=PATIENT)) as store:
            native = Node("native", "1", "127.0.0.1", "", Fingerprint(launcher="spotelastic"))
            lease = store.grant(600)
            assert membership.join(store, Keys(nodes.run), native, Settings(1, 2), lease) is None
            assert nodes.add("stock").wait(PATIENT) != 0
            store.revoke(lease)
        told = "node stock does not match node native of this run: started by torchrun here"
        assert told in nodes.output("stock")


@pytest.mark.soak
def test_training_goes_on_while_the_store_is_frozen(tmp_path: Path) -> None:
    member = standalone(tmp_path / "etcd")
    try:
        with torchruns(member, tmp_path, nnodes="2", max_restarts=0) as nodes:
            for name in ("a", "b"):
                nodes.add(name)
            port = nodes.trains("a", "b")

            os.kill(member.pid, signal.SIGSTOP)
            for name in ("a", "b"):
                wait_until(lambda name=name: "is lost" in nodes.output(name), f"{name}'s lease")
            os.kill(member.pid, signal.SIGCONT)
            nodes.until_live("a", "b")
            (tmp_path / "stop").touch()
            assert [nodes.agents[name].wait(PATIENT) for name in ("a", "b")] == [0, 0]
            assert [life["port"] for n in ("a", "b") for life in nodes.lives(n)] == [port, port]
    finally:
        member.stop()


@pytest.mark.soak
def test_a_node_that_leaves_closes_nothing_and_a_spent_budget_ends_all(
    etcd_member: EtcdMember, tmp_path: Path
) -> None:
    with torchruns(etcd_member, tmp_path, nnodes="1:2", max_restarts=1) as nodes:
        for name in ("a", "b", "spare"):
            nodes.add(name)
            nodes.until_live(name)
        nodes.trains("a", "b")

        nodes.agents["b"].send_signal(signal.SIGTERM)
        port = nodes.trains("a", "spare")
        assert nodes.agents["b"].wait(PATIENT) != 0

        # The survivor's worker may have failed before it was stopped: torchrun then counts that.
        if nodes.lives("a")[-1]["restarts"] == 0:
            os.kill(nodes.lives("a")[-1]["pid"], signal.SIGKILL)
            nodes.trains("a", "spare", after=port)
        os.kill(nodes.lives("a")[-1]["pid"], signal.SIGKILL)
        assert nodes.agents["a"].wait(PATIENT) != 0
        assert nodes.agents["spare"].wait(PATIENT) != 0
        assert nodes.job().state == "failed"
