"""What one process of `benchmarks/checkpoint.py` does: save or restore with us, or with a peer.

Each function is a whole process's work, so that nobody measures what another left behind. Sizes
are in bytes, times in seconds.
"""

import contextlib
import mmap
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import obstore
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from obstore.store import S3Store
from spotelastic_checkpoints import service, shards, wire
from spotelastic_checkpoints.client import DaemonClient
from spotelastic_checkpoints.launch import start_daemon
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

import spotelastic as se

DEADLINE = 600.0
State = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Shape:
    """A state: so many bytes in so many float32 tensors, of which every tenth is ten times larger
    than the others."""

    nbytes: int
    tensors: int

    def make(self, seed: int = 0) -> State:
        generator = torch.Generator().manual_seed(seed)
        weights = [10 if number % 10 == 0 else 1 for number in range(self.tensors)]
        unit = self.nbytes // 4 // sum(weights)
        return {
            f"layer{number}.weight": torch.rand(unit * weight, generator=generator)
            for number, weight in enumerate(weights)
        }


@dataclass(frozen=True, slots=True)
class Saves:
    """Of one process that saved several times, each until committed."""

    copy: float
    """One warm copy of the state in memory."""
    stalls: tuple[float, ...]
    committed: tuple[float, ...]
    """Until the save could be loaded by anybody."""
    cpu: float = 0.0
    """The daemon's, per GiB saved."""
    own_memory: int = 0
    """The daemon's peak, without the slots."""

    @property
    def steady(self) -> float:
        return min(self.stalls[1:])

    @property
    def until_committed(self) -> float:
        """The best of the saves but the first."""
        return min(self.committed[1:])


def warm_copy(state: State) -> float:
    targets = [tensor.clone() for tensor in state.values()]
    sources = list(state.values())
    times = []
    for _ in range(7):
        begun = time.perf_counter()
        torch._foreach_copy_(targets, sources)
        times.append(time.perf_counter() - begun)
    return min(times)


# -- ours -----------------------------------------------------------------------------------------


class Node:
    """A daemon and what an agent tells it."""

    def __init__(
        self, storage: str, name: str = "n0", slot: int = 0, workers: int = 1, slots: int = 3
    ) -> None:
        os.environ["SPOTELASTIC_SLOTS"] = str(slots)
        self.name, self.slot, self.workers = name, slot, workers
        self._folder = tempfile.TemporaryDirectory(prefix="spotelastic-bench-", dir="/dev/shm")
        self.socket = Path(self._folder.name) / "daemon.sock"
        self.process = start_daemon(
            socket=self.socket,
            arena=Path(self._folder.name) / "arena",
            storage=storage,
            owner="bench",
            node=name,
            workers=workers,
            token="bench",
        )
        self.client = DaemonClient(str(self.socket))

    def begin(
        self, round_: str, nodes: int = 1, resume: wire.Resume | None = None, epoch: int = 0
    ) -> dict[str, str]:
        """What a worker of the round finds in its environment; it is set here, too."""
        resume = resume or wire.Resume()
        schedule = wire.Schedule(1, 1)
        self.client.begin(
            wire.RoundInfo(
                incarnation=round_,
                number=1,
                world_size=nodes * self.workers,
                slot=self.slot,
                members=tuple(
                    wire.Member(slot, f"n{slot}", slot * self.workers, self.workers)
                    for slot in range(nodes)
                ),
                epoch=epoch,
                schedule=schedule,
                resume=resume,
                lineage=(wire.Branch(resume.incarnation, resume.step),),
            )
        )
        environment = {
            "SPOTELASTIC_DAEMON": str(self.socket),
            "SPOTELASTIC_ROUND": round_,
            "SPOTELASTIC_NODE": self.name,
            "SPOTELASTIC_RESUME": msgspec.json.encode(resume).decode(),
        }
        os.environ.update(environment)
        return environment

    def claim(self) -> wire.Claim:
        return self.client.claim("bench", timeout=30)

    def make_ready(self, checkpoint: se.Checkpointer, *, flush: bool = True) -> None:
        """The first step makes the layout known; the slots come into memory after it."""
        checkpoint.step(1)
        assert checkpoint._client is not None
        if not checkpoint._client.ready.wait(DEADLINE):
            raise RuntimeError("the arena never became ready")
        if flush:
            self.flush()

    def flush(self) -> None:
        if not self.client.flush(DEADLINE):
            raise RuntimeError(f"not committed: {self.client.status().error}")

    def cpu(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory(self) -> int:
        """Bytes of its own, without shared memory: the slots are counted elsewhere."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        sizes = {line.split()[0]: int(line.split()[1]) << 10 for line in lines if "kB" in line}
        return sizes["RssAnon:"] + sizes["RssFile:"]

    def shared_memory(self) -> int:
        """Bytes that its folder takes: slots, and copies that are being restored."""
        return sum(path.stat().st_blocks * 512 for path in Path(self._folder.name).rglob("*"))

    def close(self) -> None:
        self.client.close()
        self.process.terminate()
        self.process.wait(30)
        self._folder.cleanup()


@contextlib.contextmanager
def node(storage: str, **options: Any) -> Iterator[Node]:
    opened = Node(storage, **options)
    try:
        yield opened
    finally:
        opened.close()


def save_ours(storage: str, shape: Shape, times: int) -> Saves:
    state = shape.make()
    copy = warm_copy(state)
    with node(storage) as here:
        here.begin("r1", epoch=here.claim().epoch)
        with se.Checkpointer(state) as checkpoint:
            stalls, committed, memory = [], [], 0
            here.make_ready(checkpoint)
            before = here.cpu()
            for step in range(2, times + 2):
                begun = time.perf_counter()
                checkpoint.step(step)
                stalls.append(time.perf_counter() - begun)
                here.flush()
                committed.append(time.perf_counter() - begun)
                memory = max(memory, here.memory())
            spent = (here.cpu() - before) / (times * shape.nbytes / (1 << 30))
    return Saves(copy, tuple(stalls), tuple(committed), spent, memory)


def first_stall(storage: str, shape: Shape) -> float:
    """Of a process that has not saved before; nothing is committed."""
    state = shape.make()
    with node(storage) as here:
        here.begin("r1")
        with contextlib.suppress(Crash), se.Checkpointer(state) as checkpoint:
            here.make_ready(checkpoint, flush=False)
            begun = time.perf_counter()
            checkpoint.step(2)
            seconds = time.perf_counter() - begun
            raise Crash
    return seconds


def send(storage: str, shape: Shape, times: int = 3) -> float:
    """Seconds that the server takes for so many bytes, in as many objects as a save would make,
    from a client that has nothing else to do."""
    bucket, _, prefix = storage.removeprefix("s3://").partition("/")
    store = S3Store(
        bucket,
        prefix=prefix,
        endpoint=os.environ["AWS_ENDPOINT_URL"],
        virtual_hosted_style_request=False,
        unsigned_payload=True,
        client_options={"allow_http": True},
    )
    data = memoryview(b"\1" * shards.FILE)
    sizes = [min(shards.FILE, shape.nbytes - at) for at in range(0, shape.nbytes, shards.FILE)]
    took = []
    for _ in range(times):
        begun = time.perf_counter()
        with ThreadPoolExecutor(service.UPLOADS) as pool:
            sent = [
                pool.submit(obstore.put, store, str(number), data[:size], use_multipart=False)
                for number, size in enumerate(sizes)
            ]
            for answer in sent:
                answer.result(DEADLINE)
        took.append(time.perf_counter() - begun)
    return min(took)


def memory_over(storage: str, shape: Shape, saves: int) -> tuple[int, int]:
    """The daemon's own memory after a tenth of the saves, and after all."""
    state = shape.make()
    memory = []
    with node(storage) as here:
        here.begin("r1", epoch=here.claim().epoch)
        with se.Checkpointer(state) as checkpoint:
            here.make_ready(checkpoint)
            for step in range(2, saves + 2):
                checkpoint.step(step)
                here.flush()
                memory.append(here.memory())
    return memory[len(memory) // 10], memory[-1]


@dataclass(frozen=True, slots=True)
class Trained:
    """Steps per second on one core."""

    alone: float
    beside: float
    """While an upload is under way,"""
    sent: float
    """of so many bytes per second."""
    loop: float
    """While the other cores do no more than count."""


def train_beside_uploads(storage: str, shape: Shape, seconds: float) -> Trained:
    """The first core trains, the daemon runs on the others. The stalls of the saves themselves are
    not counted."""
    cores = sorted(os.sched_getaffinity(0))
    torch.set_num_threads(1)
    weights = torch.rand(384, 384)
    state = shape.make()
    os.sched_setaffinity(0, cores[1:])
    with node(storage) as here:
        here.begin("r1", epoch=here.claim().epoch)
        os.sched_setaffinity(0, cores[:1])
        with se.Checkpointer(state) as checkpoint:
            here.make_ready(checkpoint)
            alone = [_train(weights, seconds / 2)]
            steps, spent, step = 0, 0.0, 1
            with _counting(cores[1:]):
                loop = _train(weights, seconds / 2)
            while spent < seconds:
                step += 1
                checkpoint.step(step)
                committed = threading.Event()
                waiter = threading.Thread(target=lambda done=committed: (here.flush(), done.set()))
                waiter.start()
                begun = time.perf_counter()
                while not committed.is_set():
                    _train_step(weights)
                    steps += 1
                spent += time.perf_counter() - begun
                waiter.join()
            alone.append(_train(weights, seconds / 2))
    sent = (step - 1) * shape.nbytes / spent
    return Trained(statistics.mean(alone), steps / spent, sent, loop)


@contextlib.contextmanager
def _counting(cores: list[int]) -> Iterator[None]:
    """A process for each of these cores that keeps it busy with next to nothing."""
    counts = "import os,sys\nos.sched_setaffinity(0,[int(sys.argv[1])])\nwhile True: pass"
    started = [subprocess.Popen([sys.executable, "-c", counts, str(core)]) for core in cores]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def _train_step(weights: torch.Tensor) -> None:
    for _ in range(10):
        torch.mm(weights, weights)


def _train(weights: torch.Tensor, seconds: float) -> float:
    steps, begun = 0, time.perf_counter()
    while (spent := time.perf_counter() - begun) < seconds:
        _train_step(weights)
        steps += 1
    return steps / spent


class Crash(Exception):
    """Of a worker: nothing is saved on the way out."""


def _seal(here: Node, round_: str, state: State) -> wire.Snapshot:
    """Step 2 in the node's slots; the worker dies then."""
    here.begin(round_)
    with contextlib.suppress(Crash), se.Checkpointer(state) as checkpoint:
        here.make_ready(checkpoint)
        checkpoint.step(2)
        raise Crash
    return here.client.status().snapshots[-1]


def _restored(state: State) -> float:
    with contextlib.suppress(Crash), se.Checkpointer(state) as checkpoint:
        begun = time.perf_counter()
        if checkpoint.restore() != 2:
            raise RuntimeError("not what was saved")
        seconds = time.perf_counter() - begun
        raise Crash
    return seconds


@dataclass(frozen=True, slots=True)
class InPlace:
    """A restart in place, beside what it is made of: seconds."""

    copy: float
    """One warm copy of the state,"""
    read: float
    """one of the same bytes out of a file in shared memory, by as many threads as there are cores,
    as the kernel does it,"""
    mapped: float
    """and one out of a fresh map of that file."""
    restore: float


def restore_from_slots(shape: Shape) -> InPlace:
    state = shape.make()
    with tempfile.TemporaryDirectory() as storage, node(storage, slots=1) as here:
        snapshot = _seal(here, "r1", state)
        resume = wire.Resume("memory", 2, "r1", snapshot.layout)
        times = []
        for number in range(5):
            here.begin(f"r{number + 2}", resume=resume)
            times.append(_restored(state))
    return InPlace(warm_copy(state), *from_shared_memory(shape.nbytes), min(times))


def from_shared_memory(nbytes: int) -> tuple[float, float]:
    """What the kernel takes for a copy out of a file in shared memory: read, and mapped."""
    target = torch.zeros(nbytes, dtype=torch.uint8)
    memory, piece = memoryview(target.numpy()), 8 << 20
    reads, maps = [], []
    with tempfile.TemporaryFile(dir="/dev/shm") as file:
        file.write(memory)
        file.flush()
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for _ in range(5):
                begun = time.perf_counter()
                list(
                    pool.map(
                        lambda start: os.preadv(file.fileno(), [memory[start:][:piece]], start),
                        range(0, nbytes, piece),
                    )
                )
                reads.append(time.perf_counter() - begun)
        for _ in range(5):
            begun = time.perf_counter()
            with mmap.mmap(file.fileno(), nbytes, access=mmap.ACCESS_COPY) as mapped:
                source = torch.frombuffer(mapped, dtype=torch.uint8)
                target.copy_(source)
                maps.append(time.perf_counter() - begun)
                del source
    return min(reads), min(maps)


def from_store(commit: wire.Commit) -> wire.Resume:
    return wire.Resume("store", commit.step, epoch=commit.epoch)


@dataclass(frozen=True, slots=True)
class FromPeers:
    """A newcomer that is filled by two nodes which hold the same."""

    seconds: float
    memory: int
    """The most that it took meanwhile, shared and its daemon's own;"""
    slots: int
    """and what slots it will need to train, two of each worker at least."""
    store_touched: bool


def restore_from_peers(shape: Shape) -> FromPeers:
    state = shape.make()
    with (
        tempfile.TemporaryDirectory() as storage,
        node(storage, slots=1) as one,
        node(storage, name="n1", slots=1) as other,
    ):
        snapshots = []
        for holder in (one, other):
            holder.name = "n0"
            snapshots.append(_seal(holder, "r1", state))
        holders = tuple(
            wire.Holder(name, holder.client.status().listen, (0,))
            for name, holder in (("n0", one), ("n1", other))
        )
        resume = wire.Resume("memory", 2, "r1", snapshots[0].layout, holders)
        times, memory = [], 0
        for _ in range(3):
            with node(storage, name="n2") as newcomer, _peak(newcomer) as peak:
                newcomer.begin("r2", resume=resume)
                times.append(_restored(state))
            memory = max(memory, *peak)
        return FromPeers(min(times), memory, 2 * shape.nbytes, any(Path(storage).iterdir()))


@contextlib.contextmanager
def _peak(here: Node) -> Iterator[list[int]]:
    """Samples of the memory that a node takes, beside its workers."""
    samples, over = [0], threading.Event()

    def sample() -> None:
        while not over.wait(0.02):
            with contextlib.suppress(FileNotFoundError):
                samples.append(here.memory() + here.shared_memory())

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield samples
    finally:
        over.set()
        thread.join()


def _meet(rank: int, world: int, port: int) -> None:
    torch.set_num_threads(1)
    os.environ.update(LOCAL_RANK=str(rank), SPOTELASTIC_LOCAL_RANK=str(rank))
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)


def rank_saves(rank: int, world: int, port: int, shape: Shape) -> None:
    """One of several ranks that save the same state with us, and crash once it is committed."""
    _meet(rank, world, port)
    with contextlib.suppress(Crash), se.Checkpointer(shape.make()) as checkpoint:
        checkpoint.step(1)
        assert checkpoint._client is not None
        checkpoint._client.ready.wait(DEADLINE)
        checkpoint.step(2)
        dist.barrier()
        if rank == 0:
            client = DaemonClient(os.environ["SPOTELASTIC_DAEMON"])
            if not client.flush(DEADLINE):
                raise RuntimeError(client.status().error)
        dist.barrier()
        raise Crash


def rank_restores(rank: int, world: int, port: int, shape: Shape) -> float:
    """Seconds until all ranks have the state."""
    _meet(rank, world, port)
    state = shape.make(seed=1)
    with contextlib.suppress(Crash), se.Checkpointer(state) as checkpoint:
        dist.barrier()
        begun = time.perf_counter()
        checkpoint.restore()
        dist.barrier()
        seconds = time.perf_counter() - begun
        raise Crash
    if any(
        not torch.equal(a, b) for a, b in zip(state.values(), shape.make().values(), strict=True)
    ):
        raise RuntimeError("not what was saved")
    return seconds


def _sharded(shape: Shape, world: int, seed: int) -> dict[str, DTensor]:
    """As FSDP shards it: every rank has a part of each tensor."""
    mesh = init_device_mesh("cpu", (world,))
    return {
        name: distribute_tensor(tensor, mesh, [Shard(0)], src_data_rank=None)
        for name, tensor in shape.make(seed).items()
    }


def rank_saves_shards(
    rank: int, world: int, port: int, shape: Shape, environments: list[dict[str, str]]
) -> None:
    """One of several ranks, each on a node of its own."""
    os.environ.update(environments[rank])
    _meet(rank, world, port)
    os.environ.update(LOCAL_RANK="0", SPOTELASTIC_LOCAL_RANK="0")
    state: dict[str, Any] = dict(_sharded(shape, world, seed=0))
    with contextlib.suppress(Crash), se.Checkpointer(state) as checkpoint:
        checkpoint.step(1)
        checkpoint.save()
        if not checkpoint.wait(DEADLINE):
            raise RuntimeError("not committed")
        dist.barrier()
        raise Crash


def rank_restores_shards(
    rank: int, world: int, port: int, shape: Shape, environments: list[dict[str, str]]
) -> float:
    """Seconds until all ranks have their parts."""
    os.environ.update(environments[rank])
    _meet(rank, world, port)
    os.environ.update(LOCAL_RANK="0", SPOTELASTIC_LOCAL_RANK="0")
    state: dict[str, Any] = dict(_sharded(shape, world, seed=1))
    with contextlib.suppress(Crash), se.Checkpointer(state) as checkpoint:
        dist.barrier()
        begun = time.perf_counter()
        checkpoint.restore()
        dist.barrier()
        seconds = time.perf_counter() - begun
        raise Crash
    expected = _sharded(shape, world, seed=0)
    if any(not torch.equal(state[n].to_local(), expected[n].to_local()) for n in expected):
        raise RuntimeError("not what was saved")
    return seconds


# -- peers ----------------------------------------------------------------------------------------


def _writer(kind: str, url: str) -> Any:
    if kind == "s3fs":
        return _fsspec().FsspecWriter(url)
    from s3torchconnector import S3ClientConfig
    from s3torchconnector.dcp import S3StorageWriter

    return S3StorageWriter("us-east-1", url, s3client_config=S3ClientConfig(force_path_style=True))


def _fsspec() -> Any:
    from torch.distributed.checkpoint import _fsspec_filesystem

    return _fsspec_filesystem


def save_theirs(kind: str, url: str, shape: Shape, times: int) -> Saves:
    """`dcp.save` through s3fs or s3torchconnector; each save stalls for all of it."""
    state = shape.make()
    copy = warm_copy(state)
    took = []
    for step in range(1, times + 1):
        writer = _writer(kind, f"{url}/{step}")
        begun = time.perf_counter()
        try:
            dcp.save(state, storage_writer=writer, no_dist=True)
        except CheckpointException as error:
            # It is a BaseException, which would end the process; and what s3torchconnector leaves
            # behind prints a page when the interpreter ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            raise RuntimeError(str(error).strip().rpartition("\n")[2]) from None
        took.append(time.perf_counter() - begun)
    return Saves(copy, tuple(took), tuple(took))


def save_async(url: str, shape: Shape, times: int) -> Saves:
    """`dcp.async_save` to the same place; each save is over before the next begins."""
    state = shape.make()
    copy = warm_copy(state)
    stalls, committed = [], []
    for step in range(1, times + 1):
        writer = _writer("s3fs", f"{url}/{step}")
        begun = time.perf_counter()
        done = dcp.async_save(state, storage_writer=writer, no_dist=True)
        stalls.append(time.perf_counter() - begun)
        done.result()
        committed.append(time.perf_counter() - begun)
    return Saves(copy, tuple(stalls), tuple(committed))


def rank_loads(rank: int, world: int, port: int, url: str, shape: Shape) -> float:
    """`dcp.load` through s3fs by each of several ranks: seconds until all have the state."""
    _meet(rank, world, port)
    state = shape.make(seed=1)
    reader = _fsspec().FsspecReader(url)
    dist.barrier()
    begun = time.perf_counter()
    dcp.load(state, storage_reader=reader)
    dist.barrier()
    seconds = time.perf_counter() - begun
    if any(
        not torch.equal(a, b) for a, b in zip(state.values(), shape.make().values(), strict=True)
    ):
        raise RuntimeError("not what was saved")
    return seconds


def rank_saves_stock(rank: int, world: int, port: int, url: str, shape: Shape) -> None:
    _meet(rank, world, port)
    dcp.save(shape.make(), storage_writer=_fsspec().FsspecWriter(url))
