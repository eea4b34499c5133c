"""Benchmarks the loss of a node whose shards no other node trains with: seconds until the survivors
make their next step, from a replica in its partner's memory and from S3.

Four nodes of one worker on this machine hold a state that is sharded over them. An S3 server on
this machine (rclone, else moto) stands for S3. The network is the loopback interface in both cases.
"""

import argparse
import contextlib
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from common.agents import HOST, Job
from common.losses import Ended, begin, settle, strike
from common.measuring import Stuck, conduct, machine_at_rest, until, where
from common.systems import JOBS
from jobs import s3_servers
from jobs.s3_servers import Server
from spotelastic_checkpoints.protocol.agent_client import DaemonClient
from spotelastic_checkpoints.types import DaemonStatus

from spotelastic.store.etcd_server.process import standalone

WITHIN = 300.0
SOURCES = ("replica", "s3")


@dataclass(frozen=True)
class Loss:
    """What the loss of one node cost."""

    gib: float
    """Of the whole state."""
    source: str
    seconds: float
    """Until all survivors have made another step."""
    lost: int
    """Steps that they made again."""
    shared_gib: float
    """Shared memory of all four nodes before: slots and replicas."""


def lose(gib: float, source: str, server: Server, endpoint: str, folder: Path, nodes: int) -> Loss:
    """Have a node be lost as soon as its shards are safe at the source."""
    run = f"{source}{gib:g}".replace(".", "-")
    with job(folder / run, endpoint, run, gib, source, server, nodes) as running:
        try:
            begin(running, nodes)
        except Ended as ended:
            raise Stuck(str(ended)) from ended
        safe = _is_replicated if source == "replica" else _is_committed
        until(lambda: all(map(safe, daemons(running))), "shards that are safe", within=WITHIN)
        settle(running)
        shared = sum(status.arena for status in daemons(running))
        victim = [*running.agents][-1]
        arenas = _options_of(running, "--arena", victim)
        sample = strike(running, "node", victim)
        for arena in arenas:  # with a machine, its memory goes
            shutil.rmtree(arena, ignore_errors=True)
        return Loss(gib, source, sample.seconds, sample.lost, shared / 2**30)


@contextlib.contextmanager
def job(
    folder: Path, endpoint: str, run: str, gib: float, source: str, server: Server, nodes: int
) -> Iterator[Job]:
    every = {"replica": ("40", "1000000"), "s3": ("40", "40")}[source]

    def command(node: str) -> list[str]:
        return [
            *(sys.executable, "-m", "spotelastic", "run", "--nnodes", f"{nodes - 1}:{nodes}"),
            *("--rdzv-endpoint", endpoint, "--rdzv-id", run, "--max-restarts", "1000"),
            *("--node-id", node, "--local-addr", HOST, "--storage", server.url(run)),
            *("--snapshot-every", every[0], "--checkpoint-every", every[1]),
            *("--replicate", "10GB" if source == "replica" else "off"),
            *("--log-dir", str(folder / "logs")),
        ]

    script = [str(JOBS / "of_shards.py"), str(folder), "--mib", str(round(gib * 1024))]
    script += ["--pause", "0.05"]
    # Two slots each: memory is what such a job has least of on one machine.
    variables = {**server.environment, "SPOTELASTIC_SLOTS": "2"}
    with contextlib.closing(Job(folder, command, script, lambda _: variables)) as running:
        yield running


def daemons(running: Job) -> list[DaemonStatus]:
    """What the checkpoint daemon of each node tells."""
    found = []
    for socket in _options_of(running, "--socket"):
        with contextlib.closing(DaemonClient(socket)) as client:
            found.append(client.status())
    if len(found) < len(running.agents):
        raise Stuck(f"{len(found)} of {len(running.agents)} daemons")
    return found


def _options_of(running: Job, option: str, node: str = "") -> list[str]:
    """Return the option's values of the daemons, of one node or of all."""
    mark = f"RECOVERY_NODE={running.folder}/{node}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_text().split("\0")
            if option in words and mark in (entry / "environ").read_bytes():
                found.append(words[words.index(option) + 1])
    return found


def _is_replicated(status: DaemonStatus) -> bool:
    return any(snapshot.replica for snapshot in status.snapshots)


def _is_committed(status: DaemonStatus) -> bool:
    return status.commit is not None and status.commit.step > 0


def show(losses: Sequence[Loss]) -> None:
    print(f"{'state':>8}  {'from':8}{'next step':>10}{'steps lost':>12}{'shared memory':>15}")
    for loss in losses:
        print(
            f"{loss.gib:5g} GiB  {loss.source:8}{loss.seconds:8.2f} s{loss.lost:12}"
            f"{loss.shared_gib:11.1f} GiB"
        )
    for gib in dict.fromkeys(loss.gib for loss in losses):
        took = {loss.source: loss.seconds for loss in losses if loss.gib == gib}
        if len(took) == len(SOURCES):
            print(f"{gib:5g} GiB: {took['s3'] / took['replica']:.1f} times as fast as from S3")


def main() -> None:
    parser = argparse.ArgumentParser(description="A lost node's shards, from memory and from S3.")
    parser.add_argument("--gib", type=float, nargs="+", default=[1.0], help="size of the state (1)")
    parser.add_argument("--nodes", type=int, default=4, help="nodes of one worker (4)")
    parser.add_argument("--json", action="store_true", help="print JSON in place of a table")
    options = parser.parse_args()
    servers = s3_servers.rclone if s3_servers.find_rclone() else s3_servers.moto
    losses = []
    with (
        tempfile.TemporaryDirectory(prefix="spotelastic-bench-") as folder,
        standalone(Path(folder) / "etcd") as etcd,
        servers() as server,
    ):
        for gib in options.gib:
            for source in SOURCES:
                machine_at_rest()
                losses.append(lose(gib, source, server, etcd.endpoint, Path(folder), options.nodes))
                server.empty()
    if options.json:
        print(json.dumps({"machine": where(), "losses": [asdict(loss) for loss in losses]}))
        return
    print(f"{options.nodes} nodes; S3 is {server.name} on this machine; {where()}\n")
    show(losses)


if __name__ == "__main__":
    conduct(main)
