"""Benchmarks a thousand agents on one etcd of three members: time until all hold a round, and
etcd's load.

The agents are simulated (`light/agent.py`: real decisions, leases, watches and keys; no instances
and no workers), in a few processes beside their etcd, all on this machine. One has a process of its
own, and is the holder. What is sent to all alike is parsed once per process, because a thousand
nodes would parse at once. A line at the end shows what parsing costs each of them. The events:

* join: one agent starts and becomes the holder, then all others at once, with a fixed size; until
  the last one has seen that round 1 with it has started; processes and connections exist before
* leave: one gets SIGTERM, all agree on a save and go on without it in round 2
* loss: one vanishes, and its lease has run out; round 3

"Events" are changes that etcd delivered to the watches of all agents together; "keys" are all
writes that etcd carried out for the run. Both must grow no faster than the number of nodes. Bytes
cannot: every node gets the round, and the round names every node. The time is the best of several,
because disturbances only ever make it longer.

At the end the holder's decisions are timed by themselves, for more nodes than fit on one machine
(`light/large_run.py`).
"""

import argparse
import contextlib
import functools
import gc
import multiprocessing
import os
import signal
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path

from common.etcd import Identities, etcd
from common.measuring import PATIENCE, Stuck, conduct, rest, where
from light.agent import LightAgent, light_node, parse_once
from light.crew import Crew
from light.large_run import LargeRun
from light.store import LightStore

from spotelastic.agent.state.events import Signalled
from spotelastic.model.ids import new_id
from spotelastic.model.job import Settings
from spotelastic.model.round import Member, Round
from spotelastic.store import etcd_access
from spotelastic.store.codec import decode, encode
from spotelastic.store.etcd import EtcdStore
from spotelastic.store.etcd_server.process import EtcdMember
from spotelastic.store.keys import Keys
from spotelastic.store.port import Change, WatchItem
from spotelastic.store.tls import TlsFiles

RUN = "scale"
LEASE = 10.0
LIMIT = 3.0
LIMIT_AT = 1000
DECIDE_LIMIT = 0.1
DECIDE_AT = 10_000
PROCESSES = 2
"""Processes with agents, beside the holder's."""
THREADS = 32
"""Threads of each process, and so the calls in progress at once."""
HOLDER = 0
"""Index of the agent that becomes the holder."""
QUIET = 1.0
"""Seconds without a write after which nothing is in progress any more."""


# -- what the agents' processes do ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Start:
    """Answered with None by the holder's process, once it is that."""


@dataclass(frozen=True, slots=True)
class Leave:
    index: int


@dataclass(frozen=True, slots=True)
class Vanish:
    index: int


@dataclass(frozen=True, slots=True)
class Await:
    """Answered with `Standing` when all agents but those gone hold the round, or time is up."""

    number: int
    gone: frozenset[int]


@dataclass(frozen=True, slots=True)
class Standing:
    missing: int
    last_at: float
    """When the last agent held the round, on the monotonic clock that all processes share."""
    events: int
    nbytes: int
    cpu: float
    """CPU seconds of this process since it started."""
    holder_cpu: float = 0.0
    """The same of the holder's process, where it is another one."""


@dataclass(frozen=True, slots=True)
class Served:
    """The etcd that agents use."""

    endpoints: tuple[str, ...]
    tls: TlsFiles | None = None
    """Files of their certificate."""


class Host:
    """The agents of one process."""

    def __init__(self, etcd: Served, indices: Sequence[int], settings: Settings):
        self._stores = [LightStore(each, timeout=5.0, tls=etcd.tls) for each in etcd.endpoints]
        for store in self._stores:
            store.get(Keys(RUN).round)  # so that it is connected
        self._crew = Crew(THREADS)
        self._changed = threading.Condition()
        self._held: dict[int, dict[int, float]] = {}
        self._leads = threading.Event()
        self._agents = {
            index: LightAgent(
                light_node(index),
                self._stores[index % len(self._stores)],
                Keys(RUN),
                settings,
                self._crew,
                functools.partial(self._hold, index),
                self._leads.set,
            )
            for index in indices
        }

    def start(self) -> None:
        for agent in self._agents.values():
            agent.start()

    def lead(self) -> None:
        """Wait until one of them is the holder."""
        if not self._leads.wait(PATIENCE):
            self._crew.check()
            raise Stuck(f"no holder within {PATIENCE:g} s")

    def leave(self, index: int) -> None:
        if index in self._agents:
            self._agents[index].post(Signalled(signal.SIGTERM))

    def vanish(self, index: int) -> None:
        if index in self._agents:
            self._agents[index].vanish()

    def wait(self, number: int, gone: frozenset[int]) -> Standing:
        expected = self._agents.keys() - gone

        def missing() -> int:
            self._crew.check()
            return len(expected - self._held.get(number, {}).keys())

        with self._changed:
            self._changed.wait_for(lambda: not missing(), PATIENCE)
            left, held = missing(), self._held.get(number, {})
        agents = self._agents.values()
        return Standing(
            left,
            max(held.values(), default=0.0),
            sum(agent.events for agent in agents),
            sum(agent.nbytes for agent in agents),
            time.process_time(),
        )

    def close(self) -> None:
        for store in self._stores:
            store.close()
        self._crew.close()

    def _hold(self, index: int, number: int) -> None:
        with self._changed:
            self._held.setdefault(number, {})[index] = time.monotonic()
            self._changed.notify()


def serve(pipe: Connection, etcd: Served, indices: Sequence[int], settings: Settings) -> None:
    """Carry out commands until None comes."""
    if HOLDER not in indices:
        gc.disable()  # it would scan the memory of all agents whenever one of them allocates
    parse_once()
    host = Host(etcd, indices, settings)
    pipe.send(None)
    try:
        while (command := pipe.recv()) is not None:
            match command:
                case Start():
                    host.start()
                    if HOLDER in indices:
                        host.lead()
                        pipe.send(None)
                case Leave(index):
                    host.leave(index)
                case Vanish(index):
                    host.vanish(index)
                case Await(number, gone):
                    pipe.send(host.wait(number, gone))
    finally:
        host.close()


class Crowd:
    """All agents, in their processes. The first process has the holder alone."""

    def __init__(self, etcd: Served, size: int, settings: Settings) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._pipes: list[Connection] = []
        self._processes = []
        parts = [range(first, size, PROCESSES) for first in range(1, PROCESSES + 1)]
        for indices in (range(HOLDER, HOLDER + 1), *parts):
            mine, theirs = spawn.Pipe()
            process = spawn.Process(target=serve, args=(theirs, etcd, indices, settings))
            process.start()
            theirs.close()
            self._pipes.append(mine)
            self._processes.append(process)
        for pipe in self._pipes:
            pipe.recv()

    def tell(self, command: Start | Leave | Vanish) -> None:
        for pipe in self._pipes:
            pipe.send(command)
            if isinstance(command, Start) and pipe is self._pipes[0]:
                pipe.recv()

    def wait(self, number: int, gone: frozenset[int]) -> Standing:
        for pipe in self._pipes:
            pipe.send(Await(number, gone))
        parts: list[Standing] = [pipe.recv() for pipe in self._pipes]
        missing = sum(part.missing for part in parts)
        if missing:
            raise Stuck(f"{missing} agents did not hold round {number} within {PATIENCE:g} s")
        return Standing(
            0,
            max(part.last_at for part in parts),
            sum(part.events for part in parts),
            sum(part.nbytes for part in parts),
            sum(part.cpu for part in parts[1:]),
            parts[0].cpu,
        )

    def close(self) -> None:
        for pipe in self._pipes:
            with contextlib.suppress(BrokenPipeError):
                pipe.send(None)
        for process in self._processes:
            process.join(20)
            if process.is_alive():
                process.kill()
                process.join()


class Written:
    """Counts the writes that etcd carried out for the run."""

    def __init__(self, store: EtcdStore) -> None:
        self.keys = 0
        self._watch = store.watch(Keys(RUN).root, self._deliver)

    def _deliver(self, items: Sequence[WatchItem]) -> None:
        self.keys += sum(isinstance(item, Change) for item in items)


# -- measuring -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Measured:
    seconds: float
    events: int
    keys: int
    nbytes: int
    agents_cpu: float
    holder_cpu: float
    etcd_cpu: float


def measure(size: int, callers: str) -> dict[str, Measured]:
    settings = Settings(min_nodes=size, max_nodes=size, workers=8, lease=LEASE)
    with contextlib.ExitStack() as stack:
        identities = None
        if callers != "open":
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="spotelastic-tls-"))
            identities = Identities.made(Path(folder))
        ours = identities.member if identities else None
        members = stack.enter_context(etcd(3, ours))
        endpoints = tuple(member.endpoint for member in members)
        if identities and callers == "roles":
            etcd_access.restrict(endpoints, identities.member, Keys(RUN))
        store = stack.enter_context(contextlib.closing(EtcdStore(endpoints, tls=ours)))
        written = Written(store)
        served = Served(endpoints, identities.worker if identities else None)
        crowd = stack.enter_context(contextlib.closing(Crowd(served, size, settings)))

        def event(number: int, command: Start | Leave | Vanish, gone: frozenset[int]) -> Measured:
            keys, spent = written.keys, cpu(members)
            before = crowd.wait(0, gone=frozenset(range(size)))
            started = time.monotonic()
            crowd.tell(command)
            after = crowd.wait(number, gone)
            return Measured(
                after.last_at - started,
                after.events - before.events,
                written.keys - keys,
                after.nbytes - before.nbytes,
                after.cpu - before.cpu,
                after.holder_cpu - before.holder_cpu,
                cpu(members) - spent,
            )

        measured = {"join": event(1, Start(), frozenset())}
        store.put(Keys(RUN).settings, encode(replace(settings, min_nodes=size // 2)))
        # What follows from one event must not count for the next.
        rest(lambda: written.keys, QUIET, "agents that rest after the start")
        leaver, victim = size // 2, size // 3
        measured["leave"] = event(2, Leave(leaver), frozenset({leaver}))
        rest(lambda: written.keys, QUIET, "agents that rest after the leave")
        measured["loss"] = event(3, Vanish(victim), frozenset({leaver, victim}))
        return measured


def parsing(size: int) -> float:
    """Return the seconds that a node takes to read a round of `size` nodes."""
    nodes = [light_node(index) for index in range(size)]
    members = tuple(
        Member(node.id, new_id(), slot, node.address, node.zone, 8)
        for slot, node in enumerate(nodes)
    )
    data = encode(Round(1, new_id(), "proposed", members, "start", "first round"))
    times = []
    for _ in range(20):
        started = time.perf_counter()
        decode(data, Round)
        times.append(time.perf_counter() - started)
    return min(times)


def cpu(members: Sequence[EtcdMember]) -> float:
    """Return the CPU seconds that all members have used."""
    total = 0
    for member in members:
        fields = Path(f"/proc/{member.pid}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


def show(size: int, measured: dict[str, Measured]) -> None:
    for name, one in measured.items():
        print(
            f"{size:>6} {name:6} {one.seconds:>8.2f} {one.events:>8} {one.events / size:>9.1f} "
            f"{one.keys:>7} {one.keys / size:>9.1f} {one.nbytes / 1e6:>7.1f} "
            f"{one.agents_cpu:>8.2f} {one.holder_cpu:>8.2f} {one.etcd_cpu:>8.2f}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description="Rounds of a thousand simulated agents.")
    parser.add_argument("--nodes", type=int, nargs="+", default=[250, 500, LIMIT_AT])
    parser.add_argument("--times", type=int, default=3, help=f"for {LIMIT_AT} nodes")
    parser.add_argument(
        "--callers",
        choices=["open", "certificates", "roles"],
        default="open",
        help="who may call etcd: anybody, holders of a certificate, or by the roles of a cluster",
    )
    parser.add_argument("--decide", type=int, default=DECIDE_AT, help="nodes to decide about")
    options = parser.parse_args()
    print(f"{where()}; lease {LEASE:g} s; callers of etcd: {options.callers}")
    print(
        f"{'agents':>6} {'event':6} {'seconds':>8} {'events':>8} {'per node':>9} "
        f"{'keys':>7} {'per node':>9} {'MB':>7} {'agents s':>8} {'holder s':>8} {'etcd s':>8}"
    )
    best: dict[str, float] = {}
    for size in [*options.nodes, *[LIMIT_AT] * (options.times - 1)]:
        measured = measure(size, options.callers)
        show(size, measured)
        if size == LIMIT_AT:
            best = {
                what: min(one.seconds, best.get(what, one.seconds))
                for what, one in measured.items()
            }
    for what, seconds in best.items():
        verdict = f"<= {LIMIT:g} s: {met(seconds, LIMIT)}"
        print(f"{LIMIT_AT} {what}, best of {options.times}: {seconds:.2f} s, {verdict}")
    size = options.nodes[-1]
    print(f"each node reads a round of {size} in {parsing(size) * 1e3:.1f} ms")
    slowest = max(LargeRun(options.decide).events(), key=lambda decided: decided.seconds)
    print(
        f"a decision about {options.decide} nodes takes {slowest.seconds * 1e3:.0f} ms at most "
        f"({slowest.what}), <= {DECIDE_LIMIT * 1e3:g} ms: {met(slowest.seconds, DECIDE_LIMIT)}"
    )


def met(measured: float, limit: float) -> str:
    return "met" if measured <= limit else "MISSED"


if __name__ == "__main__":
    conduct(main)
