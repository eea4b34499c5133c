"""Benchmarks replicas: how fast a node's shards reach its partner's memory, and come back from it.

Two checkpoint daemons on this machine, each with one worker's shard. The limit is the same bytes
through a plain connection over the loopback interface. A restore from the replica is beside one
from a folder in shared memory, which stands for a store: S3 is slower than that.
"""

import argparse
import json
import os
import socket
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from common.measuring import Stuck, conduct, until, where
from spotelastic_checkpoints.format import encoding, layout
from spotelastic_checkpoints.format.layout import Declaration, Declared, JobLayout
from spotelastic_checkpoints.memory import arena
from spotelastic_checkpoints.protocol.agent_client import DaemonClient
from spotelastic_checkpoints.protocol.launch import start_daemon
from spotelastic_checkpoints.protocol.worker_client import WorkerClient
from spotelastic_checkpoints.types import (
    Branch,
    Holder,
    MemberRanks,
    Resume,
    RoundInfo,
    Schedule,
    Ward,
)

MIB = 1 << 20
SHARD = 16 * MIB
UNPACED = 1e12
WITHIN = 600.0
PACED = 100e6
"""Bytes per second of the paced run."""
FROZEN = 0.9
"""Share of the state that does not change, as with a LoRA."""


@dataclass(frozen=True)
class Pull:
    """One replica."""

    what: str
    seconds: float
    mib_per_s: float
    cpu_s_per_gib: float
    """Of both daemons."""


class Node:
    """A daemon, and the one worker of its node."""

    def __init__(self, folder: Path, slot: int, plan: JobLayout) -> None:
        self.slot, self.plan, self.folder = slot, plan, folder / f"n{slot}"
        self.folder.mkdir()
        self.process = start_daemon(
            socket=self.folder / "socket",
            arena=self.folder / "arena",
            storage=str(folder / "store"),
            owner="bench",
            node=f"n{slot}",
            token="bench",
        )
        self.agent = DaemonClient(str(self.folder / "socket"))
        self.worker: WorkerClient | None = None

    @property
    def address(self) -> str:
        return self.agent.status().listen

    def begin(self, round_: str, epoch: int, ward: Ward | None, nodes: int = 2) -> None:
        if self.worker is not None:
            self.worker.close()
            self.agent.end()
        members = tuple(MemberRanks(slot, f"n{slot}", (slot,)) for slot in range(nodes))
        self.agent.begin(
            RoundInfo(
                round_, 1, nodes, self.slot, members, epoch, (Branch("r1", 1 << 40),),
                Schedule(1, 0), ward=ward,
            )
        )  # fmt: skip
        self.worker = WorkerClient(
            str(self.folder / "socket"), round=round_, rank=self.slot, local_rank=0
        )
        self.worker.page.enter(0)

    def prepare(self) -> None:
        assert self.worker is not None
        own = self.plan.slots[self.slot]
        self.worker.prepare(arena.slot_bytes(own.nbytes, arena.encode_index(own.items), 0))
        if not self.worker.ready.wait(WITHIN):
            raise RuntimeError("the slots never came into memory")

    def save(self, step: int, content: Sequence[bytes], *, due: bool = False) -> None:
        """Seal a save: of each item, `content` has its elements."""
        assert self.worker is not None
        slot = self.worker.open_slot(WITHIN)
        assert slot is not None
        own, index = (
            self.plan.slots[self.slot],
            arena.encode_index(self.plan.slots[self.slot].items),
        )
        slot.write_index(own.nbytes, index)
        for item, elements in zip(own.items, content, strict=True):
            data = encoding.tensor_prefix(item.dtype, item.sizes) + elements
            slot.data[item.offset : item.offset + len(data)] = data
        slot.seal(
            arena.SlotHeader(
                slot.owner, "r1", step, self.plan.hash, self.slot, 2, (self.slot,), False,
                self.plan.chunks, self.plan.shared, own.owned, own.owned_bytes, own.nbytes,
                len(index), 0, due, own.alone, own.alone_bytes,
            ),
            [],
        )  # fmt: skip
        self.worker.sealed(slot, step, waiting=False, due=due)

    def has_replica(self, step: int) -> bool:
        return any(s.replica and s.step == step for s in self.agent.status().snapshots)

    def cpu(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory(self) -> int:
        return sum(path.stat().st_blocks * 512 for path in (self.folder / "arena").iterdir())

    def close(self) -> None:
        self.agent.close()
        self.process.terminate()
        self.process.wait(30)


def plan_of(mib: int) -> JobLayout:
    """Return shards of 16 MiB each, of two ranks on two nodes."""
    count, rows = max(1, mib * MIB // SHARD), SHARD
    return layout.plan(
        [
            Declaration(
                rank,
                f"n{rank}",
                tuple(
                    Declared(f"w{i}", (f"w{i}",), "uint8", (2 * rows,), (rank * rows,), (rows,))
                    for i in range(count)
                ),
            )
            for rank in range(2)
        ]
    )


@contextmanager
def pair(mib: int) -> Iterator[list[Node]]:
    os.environ["SPOTELASTIC_SLOTS"] = "2"
    with tempfile.TemporaryDirectory(prefix="spotelastic-bench-", dir="/dev/shm") as folder:
        plan = plan_of(mib)
        nodes = [Node(Path(folder), slot, plan) for slot in range(2)]
        try:
            yield nodes
        finally:
            for node in nodes:
                node.close()


def loopback(nbytes: int) -> float:
    """Return the MiB/s of one plain connection, from a file in shared memory into memory."""
    with tempfile.TemporaryFile(dir="/dev/shm") as file, socket.create_server(("", 0)) as server:
        file.write(os.urandom(MIB) * (nbytes // MIB))
        file.flush()

        def send() -> None:
            connection, _ = server.accept()
            with connection:
                file.seek(0)
                connection.sendfile(file)

        sending = threading.Thread(target=send, daemon=True)
        sending.start()
        target = memoryview(bytearray(nbytes))
        with socket.create_connection(server.getsockname()) as client:
            begun, got = time.perf_counter(), 0
            while got < nbytes:
                got += client.recv_into(target[got:])
            took = time.perf_counter() - begun
        sending.join()  # it still has the file
        return nbytes / MIB / took


def pulled(nodes: list[Node], step: int, content: Sequence[bytes], what: str) -> Pull:
    """Return how long it takes until n1 has what n0 saves."""
    size = sum(map(len, content))
    before = sum(node.cpu() for node in nodes)
    nodes[0].save(step, content)
    begun = time.perf_counter()
    until(
        lambda: nodes[1].has_replica(step), f"a replica of step {step}", within=WITHIN, every=0.002
    )
    took = time.perf_counter() - begun
    cpu = sum(node.cpu() for node in nodes) - before
    return Pull(what, took, size / MIB / took, cpu / (size / (1 << 30)))


def _until_replicated(node: Node, step: int) -> None:
    until(lambda: node.has_replica(step), f"a replica of {step}", within=WITHIN, every=0.002)


def restored(node: Node, resume: Resume) -> float:
    """Return the seconds until all items of a source are in the node's memory."""
    assert node.worker is not None
    begun = time.perf_counter()
    found = node.worker.open(resume, WITHIN)
    node.worker.fetch(found.id, [(i.offset, i.offset + i.length) for i in found.items], WITHIN)
    took = time.perf_counter() - begun
    node.worker.restored(found.id)
    return took


def begin_keeping(nodes: Sequence[Node], epoch: int, rate: float) -> None:
    """Have n1 keep what n0 holds alone."""
    nodes[1].begin("r1", epoch, Ward("n0", nodes[0].address, rate))
    nodes[1].prepare()


def measure_pulls(nodes: list[Node], epoch: int, count: int) -> list[Pull]:
    """Return what replicas of the same size cost, by what has changed and how fast they may be."""
    few = max(1, round(count * (1 - FROZEN)))
    found = [pulled(nodes, 1, content(1, count), "the first, memory included")]
    pulled(nodes, 2, content(2, count), "the second set")
    found.append(pulled(nodes, 3, content(3, count), "all changed"))
    pulled(nodes, 4, content(4, count, few), "what the next is compared with")
    found.append(pulled(nodes, 5, content(5, count, few), f"{1 - few / count:.0%} unchanged"))
    begin_keeping(nodes, epoch, PACED)
    found.append(pulled(nodes, 6, content(6, count), f"paced at {PACED / 1e6:.0f} MB/s"))
    begin_keeping(nodes, epoch, UNPACED)
    return found


def measure_restores(nodes: list[Node], epoch: int, count: int) -> tuple[float, float]:
    """Return the seconds in which a third node has all shards, from memory after the loss of n0,
    and from a store.
    """
    for node in nodes:
        node.save(7, content(7, count), due=True)
    _until_replicated(nodes[1], 7)
    for node in nodes:
        if not node.agent.flush(WITHIN):
            raise Stuck(f"not committed: {node.agent.status().error}")
    keeper = nodes[1].agent.status()
    held = [each for each in keeper.snapshots if (each.incarnation, each.step) == ("r1", 7)]
    newcomer = Node(nodes[0].folder.parent, 2, nodes[0].plan)
    try:
        nodes[0].process.kill()
        newcomer.begin("r2", 0, None, nodes=3)
        holders = tuple(
            Holder("n1", keeper.listen, each.ranks, replica=each.replica) for each in held
        )
        memory = restored(newcomer, Resume("memory", 7, "r1", held[0].layout, holders))
        return memory, restored(newcomer, Resume("store", 7, epoch=epoch))
    finally:
        newcomer.close()


def content(step: int, count: int, changed: int | None = None) -> list[bytes]:
    """Return the elements of each item, of which the first ones are those of the step."""
    of_step = count if changed is None else changed
    return [bytes([step if number < of_step else 0]) * SHARD for number in range(count)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=512, help="what one node holds alone")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    count = max(1, options.mib * MIB // SHARD)
    limit = loopback(count * SHARD)
    with pair(options.mib) as nodes:
        epoch = nodes[0].agent.claim("bench", timeout=30).epoch
        nodes[0].begin("r1", epoch, None)
        nodes[0].prepare()
        begin_keeping(nodes, epoch, UNPACED)
        pulls = measure_pulls(nodes, epoch, count)
        shared = nodes[1].memory() / MIB
        memory, store = measure_restores(nodes, epoch, count)
    if options.json:
        rows = [asdict(pull) for pull in pulls]
        measured = {"loopback": limit, "pulls": rows, "shared_memory_mib": shared}
        print(json.dumps({**measured, "from_memory_s": memory, "from_store_s": store}))
        return
    print(f"replicas of {count * SHARD // MIB} MiB; {where()}\n")
    print(f"{'a plain connection':28} {'':>8} {limit:8,.0f} MiB/s")
    for pull in pulls:
        print(
            f"{pull.what:28} {pull.seconds:6.2f} s {pull.mib_per_s:8,.0f} MiB/s "
            f"{pull.cpu_s_per_gib:6.2f} CPU s/GiB"
        )
    print(f"\nshared memory of the keeper: {shared:,.0f} MiB (two slots and two replicas)")
    print(
        f"all shards restored on a third node: {memory:.2f} s from the keeper's memory, "
        f"{store:.2f} s from a folder in shared memory"
    )


if __name__ == "__main__":
    conduct(main)
