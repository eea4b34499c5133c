"""Benchmarks the loss of a node whose shards no other node trains with: seconds until the survivors
make their next step, from a replica in its partner's memory and from S3.

Four nodes of one worker on this machine hold a state that is sharded over them. An S3 server on
this machine (rclone, else moto) stands for S3. The network is the loopback interface in both cases.

`--costs` tells instead what a step costs while replicas are pulled, beside a job without replicas:
the two take turns.
"""

import argparse
import contextlib
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path

from common.agents import HOST, Job
from common.losses import Ended, begin, settle, strike
from common.measuring import Stuck, conduct, machine_at_rest, until, where
from common.step_costs import Cost, step_costs
from common.systems import JOBS
from jobs import s3_servers
from jobs.s3_servers import Server
from spotelastic_checkpoints.protocol.agent_client import DaemonClient
from spotelastic_checkpoints.types import DaemonStatus

from spotelastic.store.etcd_server.process import standalone

WITHIN = 300.0
SOURCES = ("replica", "s3")
EVERY = 40
"""Steps from one snapshot to the next."""
NEVER = 1_000_000
TURNS, TURN = 6, 10.0
"""Turns of each job for each length of a step, and their seconds: each has several pulls."""


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


@dataclass(frozen=True)
class Setup:
    """What all jobs of a run have in common."""

    nodes: int
    device: str
    backend: str
    folder: Path
    etcd: str
    """Its endpoint."""
    server: Server


def lose(setup: Setup, gib: float, source: str) -> Loss:
    """Have a node be lost as soon as its shards are safe at the source."""
    run = f"{source}{gib:g}".replace(".", "-")
    replicate, commits = ("10GB", NEVER) if source == "replica" else ("off", EVERY)
    with job(setup, setup.folder / run, gib, replicate, commits, "--pause", "0.05") as running:
        try:
            begin(running, setup.nodes)
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


def costs(setup: Setup, gib: float, replicate: str, lengths: list[float]) -> list[Cost]:
    """Return what steps cost while their shards are pulled, where a pull takes about all the time
    from one snapshot to the next.
    """

    def opens(folder: Path, replicate: str) -> AbstractContextManager[Job]:
        return job(setup, folder, gib, replicate, NEVER, "--turns")

    return step_costs(("off", replicate), opens, setup.folder, setup.nodes, lengths, TURNS, TURN)


@contextlib.contextmanager
def job(
    setup: Setup, folder: Path, gib: float, replicate: str, commits: int, *more: str
) -> Iterator[Job]:
    """Open a job that commits every so many steps. The folder's name is that of its run."""
    least = setup.nodes - 1

    def command(node: str) -> list[str]:
        return [
            *(sys.executable, "-m", "spotelastic", "run", "--nnodes", f"{least}:{setup.nodes}"),
            *("--rdzv-endpoint", setup.etcd, "--rdzv-id", folder.name, "--max-restarts", "1000"),
            *("--node-id", node, "--local-addr", HOST, "--storage", setup.server.url(folder.name)),
            *("--snapshot-every", str(EVERY), "--checkpoint-every", str(commits)),
            *("--replicate", replicate, "--log-dir", str(folder / "logs")),
        ]

    script = [str(JOBS / "of_shards.py"), str(folder), "--mib", str(round(gib * 1024))]
    script += ["--device", setup.device, "--backend", setup.backend, *more]
    # Two slots each: memory is what such a job has least of on one machine.
    variables = {**setup.server.environment, "SPOTELASTIC_SLOTS": "2"}
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


def show_costs(gib: float, replicate: str, found: Sequence[Cost]) -> None:
    for cost in found:
        print(
            f"{gib:5g} GiB, --replicate {replicate}: a step of {1000 * cost.without:.1f} ms takes "
            f"{1000 * cost.with_it:.1f} ms: {cost.percent:+.2f} %"
        )


def main() -> None:
    options = _options()
    servers = s3_servers.rclone if s3_servers.find_rclone() else s3_servers.moto
    losses: list[Loss] = []
    found: list[tuple[float, list[Cost]]] = []
    with (
        tempfile.TemporaryDirectory(prefix="spotelastic-bench-") as folder,
        standalone(Path(folder) / "etcd") as etcd,
        servers() as server,
    ):
        setup = Setup(
            options.nodes, options.device, options.backend, Path(folder), etcd.endpoint, server
        )
        for gib in options.gib:
            if options.costs:
                found.append((gib, costs(setup, gib, options.replicate, options.costs)))
                continue
            for source in SOURCES:
                machine_at_rest()
                loss = lose(setup, gib, source)
                losses.append(loss)
                print(f"  {gib:g} GiB, {source}: {loss.seconds:.2f} s", file=sys.stderr, flush=True)
                server.empty()
    if options.json:
        told = {"losses": [asdict(loss) for loss in losses], "costs": dict(found)}
        print(json.dumps({"machine": where(), **told}, default=asdict))
        return
    print(
        f"{options.nodes} nodes on {options.device} by {options.backend}; S3 is {server.name} on "
        f"this machine; {where()}\n"
    )
    if losses:
        show(losses)
    for gib, each in found:
        show_costs(gib, options.replicate, each)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A lost node's shards, from memory and from S3.")
    parser.add_argument("--gib", type=float, nargs="+", default=[1.0], help="size of the state (1)")
    parser.add_argument("--nodes", type=int, default=4, help="nodes of one worker (4)")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="of the state")
    parser.add_argument("--backend", choices=["gloo", "nccl"], default="gloo", help="of the group")
    parser.add_argument(
        "--costs",
        type=float,
        nargs="+",
        metavar="SECONDS",
        help="lengths of steps: tell what each costs while replicas are pulled, and lose no node",
    )
    parser.add_argument("--replicate", default="auto", help="with --costs: auto, or RATE (auto)")
    parser.add_argument("--json", action="store_true", help="print JSON in place of a table")
    return parser.parse_args()


if __name__ == "__main__":
    conduct(main)
