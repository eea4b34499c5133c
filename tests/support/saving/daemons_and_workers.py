"""Runs checkpoint daemons and torch-free workers, for tests in which one of them dies.

Run as a script it is one worker: `python -m support.saving.daemons_and_workers SOCKET ROUND`, then
rank, local rank, world size, workers per node, steps, and what it resumes from, if anything.
"""

import hashlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.json import decode, encode
from spotelastic_checkpoints.errors import DaemonUnavailable
from spotelastic_checkpoints.format import encoding, layout
from spotelastic_checkpoints.format.layout import Declaration, Declared, JobLayout
from spotelastic_checkpoints.memory import arena
from spotelastic_checkpoints.protocol.agent_client import DaemonClient
from spotelastic_checkpoints.protocol.launch import start_daemon
from spotelastic_checkpoints.protocol.worker_client import OpenSlot, WorkerClient
from spotelastic_checkpoints.restore.contents import Contents
from spotelastic_checkpoints.types import Branch, MemberRanks, Resume, RoundInfo, Schedule, Ward
from support.places import TESTS
from support.processes.patience import PATIENT

if TYPE_CHECKING:
    import pytest

WIDTH = 4096
TENSORS = 6
TOKEN = "the cluster's own"


def plan_of(world_size: int, per_node: int) -> JobLayout:
    """A replicated state of a few tensors and one value, plus one value per rank."""
    shared = [
        Declared(f"w{i}", (f"w{i}",), "float32", (WIDTH,), (0,), (WIDTH,)) for i in range(TENSORS)
    ]
    shared.append(Declared("step", ("step",), room=256))
    return layout.plan(
        [
            Declaration(
                rank,
                f"n{rank // per_node}",
                (*shared, Declared(f"own-{rank}", (f"own-{rank}",), rank=rank, room=256)),
            )
            for rank in range(world_size)
        ]
    )


def sharded_plan_of(world_size: int, per_node: int) -> JobLayout:
    """Each rank has a shard of each tensor; all have one value, and each one of its own."""
    return layout.plan(
        [
            Declaration(
                rank,
                f"n{rank // per_node}",
                (
                    *(
                        Declared(
                            f"w{i}", (f"w{i}",), "float32",
                            (world_size * WIDTH,), (rank * WIDTH,), (WIDTH,),
                        )
                        for i in range(TENSORS)
                    ),
                    Declared("step", ("step",), room=256),
                    Declared(f"own-{rank}", (f"own-{rank}",), rank=rank, room=256),
                ),
            )
            for rank in range(world_size)
        ]
    )  # fmt: skip


def content(fqn: str, step: int) -> bytes:
    """What tensor `fqn` holds after `step`: the raw bytes."""
    block = hashlib.blake2b(f"{fqn}/{step}".encode(), digest_size=64).digest()
    return block * (WIDTH * 4 // len(block))


def fetched(client: WorkerClient, resume: Resume, within: float = PATIENT) -> Contents:
    """A source, opened within these seconds, with all of it here that is not some rank's own."""
    found = client.open(resume, within)
    shared = [item for item in found.items if item.rank == layout.SHARED]
    client.fetch(found.id, [(i.offset, i.offset + i.length) for i in shared], PATIENT)
    return Contents(found)


def is_content_of(restored: Contents, step: int) -> bool:
    """Whether it is exactly the shared state of that step."""
    found = {}
    for piece in restored.pieces():
        item = piece.item
        if item.rank != layout.SHARED:
            continue
        data = Path(piece.file).read_bytes()[item.offset : item.offset + item.length]
        if item.is_tensor:
            expected = encoding.tensor_prefix(item.dtype, item.sizes) + content(item.fqn, step)
        else:
            expected = encoding.plain_value((item.fqn, step))
        if data != expected:
            return False
        found[item.fqn] = True
    return set(found) >= {*(f"w{i}" for i in range(TENSORS)), "step"}


class Worker:
    """Saves the made-up state; `client` is the real thing."""

    def __init__(
        self,
        socket: str,
        round_: str,
        rank: int,
        local_rank: int,
        plan: JobLayout,
        *,
        prepare: bool = True,
    ) -> None:
        self.client = WorkerClient(socket, round=round_, rank=rank, local_rank=local_rank)
        self.rank, self.round, self.plan = rank, round_, plan
        own = plan.slots[rank]
        self.index = arena.encode_index(own.items)
        self.values = sum(not item.is_tensor for item in own.items)
        self.client.page.enter(0)
        if prepare:
            self.prepare()

    def prepare(self) -> None:
        own = self.plan.slots[self.rank]
        self.client.prepare(arena.slot_bytes(own.nbytes, self.index, self.values))

    def save(self, step: int, *, waiting: bool = False, due: bool = False) -> OpenSlot:
        """By the schedule, or by `due`, it is to be committed."""
        every = self.client.page.schedule.checkpoint_every
        due = due or (every > 0 and step % every == 0)
        slot = self.client.open_slot(PATIENT)
        if slot is None:
            raise DaemonUnavailable(f"no slot for step {step}")
        own = self.plan.slots[self.rank]
        slot.write_index(own.nbytes, self.index)
        lengths = []
        for item in own.items:
            if item.is_tensor:
                data = encoding.tensor_prefix(item.dtype, item.sizes) + content(item.fqn, step)
            else:
                data = encoding.plain_value((item.fqn, step))
                lengths.append(len(data))
            slot.data[item.offset : item.offset + len(data)] = data
        node = next(node for node, ranks in self.plan.nodes.items() if self.rank in ranks)
        slot.seal(
            arena.SlotHeader(
                owner=slot.owner,
                incarnation=self.round,
                step=step,
                layout=self.plan.hash,
                rank=self.rank,
                world_size=self.plan.world_size,
                ranks=self.plan.nodes[node],
                whole=node in self.plan.whole,
                chunks=self.plan.chunks,
                shared=self.plan.shared,
                owned=own.owned,
                owned_bytes=own.owned_bytes,
                data_bytes=own.nbytes,
                index_bytes=len(self.index),
                values=self.values,
                due=due,
                alone=own.alone,
                alone_bytes=own.alone_bytes,
                covers=self.plan.covers.get(node, ()),
            ),
            lengths,
        )
        self.client.sealed(slot, step, waiting=waiting, due=due)
        return slot

    def step(self, step: int) -> None:
        """As Checkpointer.step: publish, then look at the target, then save."""
        self.client.page.publish(step, float(step), time.time())
        target = self.client.page.target
        self.save(step, waiting=step == target, due=step == target)
        if step == target:
            self.client.wait(step)


@dataclass
class Node:
    """A daemon with its arena, and a client of it."""

    name: str
    folder: Path
    arena: Path
    storage: str
    workers: int
    token: str = TOKEN
    lifeline: int | None = None
    process: "subprocess.Popen[bytes] | None" = None
    client: DaemonClient | None = None
    failure: str = ""
    """What it said when it did not start."""

    @property
    def socket(self) -> Path:
        return self.folder / f"{self.name}.sock"

    @property
    def agent(self) -> DaemonClient:
        assert self.client is not None
        return self.client

    def start(self, die_at: str = "") -> None:
        environment = dict(os.environ)
        os.environ["SPOTELASTIC_DIE_AT"] = die_at
        self.process, self.failure = None, ""
        try:
            self.process = start_daemon(
                socket=self.socket,
                arena=self.arena,
                storage=self.storage,
                owner="test",
                node=self.name,
                workers=self.workers,
                token=self.token,
                lifeline=self.lifeline,
            )
        except DaemonUnavailable as error:
            self.failure = str(error)
            raise
        finally:
            os.environ.clear()
            os.environ.update(environment)
        self.client = DaemonClient(str(self.socket))

    def died(self) -> bool:
        """By SIGKILL."""
        if self.process is None:
            return f"code {-signal.SIGKILL}:" in self.failure
        return self.process.poll() == -signal.SIGKILL

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait(PATIENT)
        self.agent.close()

    def begin(self, round_: RoundInfo) -> None:
        self.agent.begin(round_)

    def spawn(
        self,
        round_: str,
        rank: int,
        plan: tuple[int, int],
        steps: int,
        die_at: str,
        resume: Resume | None = None,
    ) -> int:
        """Runs a worker process to its end; its exit code."""
        world_size, per_node = plan
        child = subprocess.run(
            [sys.executable, "-m", "support.saving.daemons_and_workers", str(self.socket), round_]
            + [str(n) for n in (rank, rank % per_node, world_size, per_node, steps)]
            + ([] if resume is None else [encode(resume).decode()]),
            env={**os.environ, "SPOTELASTIC_DIE_AT": die_at},
            cwd=TESTS,
            timeout=PATIENT,
            check=False,
        )
        return child.returncode

    def stop(self) -> None:
        if self.client is not None:
            self.client.close()
        if self.process is not None:
            self.process.terminate()
            self.process.wait(PATIENT)


def round_info(
    incarnation: str,
    slot: int,
    nodes: Sequence[str],
    per_node: int,
    epoch: int,
    *,
    schedule: Schedule | None = None,
    lineage: Sequence[Branch] = (),
    ward: Ward | None = None,
) -> RoundInfo:
    return RoundInfo(
        incarnation=incarnation,
        number=1,
        world_size=len(nodes) * per_node,
        slot=slot,
        members=tuple(
            MemberRanks(number, name, tuple(range(number * per_node, (number + 1) * per_node)))
            for number, name in enumerate(nodes)
        ),
        epoch=epoch,
        lineage=tuple(lineage),
        schedule=schedule or Schedule(1, 1),
        ward=ward,
    )


def started(node: Node, round_: str = "r1") -> tuple[int, Worker]:
    """A round of this node alone under a new storage epoch, and its worker."""
    epoch = node.agent.claim("test", timeout=PATIENT).epoch
    node.begin(round_info(round_, 0, [node.name], 1, epoch))
    return epoch, Worker(str(node.socket), round_, 0, 0, plan_of(1, 1))


@contextmanager
def under_agent(
    node: Node,
    incarnation: str,
    resume: Resume,
    monkeypatch: "pytest.MonkeyPatch",
    schedule: Schedule = Schedule(2, 0),  # noqa: B008
    **more: Any,
) -> Iterator[None]:
    """What an agent does around its worker."""
    from support.training import open_checkpointer as inside  # which imports torch

    inside.slots_are_waited_for(monkeypatch)
    epoch = node.agent.claim("test", timeout=PATIENT).epoch
    node.begin(round_info(incarnation, 0, [node.name], 1, epoch, schedule=schedule, **more))
    monkeypatch.setenv("SPOTELASTIC_DAEMON", str(node.socket))
    monkeypatch.setenv("SPOTELASTIC_ROUND", incarnation)
    monkeypatch.setenv("SPOTELASTIC_RESUME", encode(resume).decode())
    monkeypatch.setenv("SPOTELASTIC_NODE", node.name)
    yield
    node.agent.end()


@contextmanager
def cluster(
    folder: Path, count: int = 1, workers: int = 1, storage: str = ""
) -> Iterator[list[Node]]:
    """Daemons on one machine, each with an arena in /dev/shm; all gone at the end."""
    with tempfile.TemporaryDirectory(prefix="se-test-", dir="/dev/shm") as shm:
        nodes = [
            Node(f"n{i}", folder, Path(shm) / f"n{i}", storage or str(folder / "store"), workers)
            for i in range(count)
        ]
        try:
            for node in nodes:
                node.start()
            yield nodes
        finally:
            for node in nodes:
                node.stop()


def main() -> None:
    socket, round_ = sys.argv[1:3]
    rank, local_rank, world_size, per_node, steps = map(int, sys.argv[3:8])
    worker = Worker(socket, round_, rank, local_rank, plan_of(world_size, per_node))
    for told in sys.argv[8:]:
        resume = decode(told, type=Resume)
        restored = fetched(worker.client, resume)
        assert is_content_of(restored, resume.step)
        worker.client.restored(restored.id)
    for step in range(1, steps + 1):
        worker.step(step)
    worker.client.flush(PATIENT)
    worker.client.leave(clean=True)


if __name__ == "__main__":
    try:
        main()
    except DaemonUnavailable as error:
        print(error, file=sys.stderr)
        sys.exit(3)
