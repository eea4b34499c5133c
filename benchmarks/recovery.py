"""Benchmarks how long training pauses after interruptions: `spotelastic run` beside torchrun
(c10d).

All agents are on this machine, with gloo on loopback. The job (`jobs/allreduce.py`) imports torch
and does nothing but all-reduces. The events:

* crash: a worker is killed; from the kill to the first all-reduce of all
* loss: everything on the last node is killed; from the kill to the first all-reduce of the rest
* vanish: the same with the first node, frozen rather than killed: connections stay open, as with a
  lost machine; it is the node of rank 0 and of the round store (spotelastic only: torchrun's
  survivors wait for gloo, which takes half an hour)
* arrival: a node joins; the gap between two all-reduces of the workers that were there
* leave: a node gets SIGTERM; the same gap

Times are the workers' own, on the machine's monotonic clock. Those of spotelastic are medians of
all trials.
"""

import argparse
import contextlib
import itertools
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from common.agents import START_WITHIN, Job, Line, ours, torchruns
from common.measuring import Stuck, conduct, where
from common.rounds import Rounds

from spotelastic.store.etcd_server.process import standalone

LEASE = 2.0
PATIENCE = {"crash": 30.0, "loss": 90.0, "vanish": 30.0, "arrival": 60.0, "leave": 90.0}
"""Seconds after which an event counts as never recovered from."""
CRASH_ATTEMPTS = 2
"""Attempts at torchrun's crash, if training never goes on.

At times its workers find stale keys of the round before, again and again.
"""
SETTLED = 100
"""All-reduces of every node before each event."""


# -- events --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sample:
    """One event: its time, the last old and the first new all-reduces, and the new workers' first
    lines."""

    at: float
    last: float
    first: float
    lives: tuple[tuple[Line, ...], ...]

    @property
    def recovery(self) -> float:
        return self.first - self.at

    @property
    def pause(self) -> float:
        return self.first - self.last


def happen(
    job: Job, event: Callable[[], str | None], stay: Sequence[str], patience: float
) -> Sample:
    """Let `event` happen, which may add a node; the nodes `stay` were there and go on."""
    job.settle(SETTLED)
    known = {line.pid for node in job.agents for line in job.lines(node)}
    at = time.monotonic()
    joined = event()
    nodes = [*stay, joined] if joined else [*stay]
    first = job.resume(nodes, known, patience)
    old = [line.at for node in stay for line in job.lines(node) if line.pid in known]
    lives = tuple(
        tuple(line for line in job.lines(node) if line.pid == first[node].pid)[:4] for node in nodes
    )
    return Sample(at, max(old), max(line.at for line in first.values()), lives)


def begin(job: Job, size: int) -> None:
    for _ in range(size):
        job.add()
    job.resume([*job.agents], set(), START_WITHIN)


def crash(job: Job) -> Sample:
    nodes = [*job.agents]
    victim = job.worker(nodes[-1])
    kill = partial(os.kill, victim, signal.SIGKILL)
    return happen(job, kill, nodes, PATIENCE["crash"])


def loss(job: Job) -> Sample:
    *stay, victim = job.agents
    return happen(job, partial(job.forget, victim), stay, PATIENCE["loss"])


def vanish(job: Job) -> Sample:
    victim, *stay = job.agents
    freeze = partial(job.signal_all, victim, signal.SIGSTOP)
    try:
        return happen(job, freeze, stay, PATIENCE["vanish"])
    finally:
        job.forget(victim)


def arrival(job: Job) -> Sample:
    stay = [*job.agents]
    return happen(job, job.add, stay, PATIENCE["arrival"])


def leave(job: Job) -> Sample:
    *stay, victim = job.agents
    agent = job.agents[victim]
    sample = happen(job, agent.terminate, stay, PATIENCE["leave"])
    with contextlib.suppress(subprocess.TimeoutExpired):
        agent.wait(20)
    job.forget(victim)
    return sample


@dataclass(frozen=True, slots=True)
class Kind:
    """An event, the value of a sample that counts, and its bars: seconds, and a share of
    torchrun's."""

    label: str
    happen: Callable[[Job], Sample]
    value: Callable[[Sample], float]
    limit: float
    factor: int | None = None


EVENTS = {
    "crash": Kind("worker crash", crash, lambda s: s.recovery, 0.5, 5),
    "loss": Kind("node SIGKILL, survivors", loss, lambda s: s.recovery, LEASE + 1.0, 12),
    "vanish": Kind("node vanishes, survivors", vanish, lambda s: s.recovery, LEASE + 1.0),
    "arrival": Kind("node arrival: pause", arrival, lambda s: s.pause, 0.7),
    "leave": Kind("node leaves (SIGTERM): pause", leave, lambda s: s.pause, 0.7),
}
CYCLE = ("crash", "loss", "arrival", "vanish", "arrival", "leave", "arrival")
"""Events of spotelastic's trials: each trial goes through all of them.

Most events of torchrun get their own job. The arrival does not, because a job that is not full at
its start waits half a minute.
"""
PEER_CYCLES = (("crash",), ("loss", "arrival"), ("leave",))

Samples = dict[str, list[Sample]]


# -- measuring ours ------------------------------------------------------------------------------


STAGES = ("until proposed", "until started", "fork", "import torch", "join group", "all-reduce")


def stages(sample: Sample, rounds: Rounds) -> list[float]:
    """Return the seconds of each of STAGES; the slowest node counts."""
    proposed, started = rounds.between(sample.at, sample.first)
    marks = [sample.at, proposed, started]
    for index in range(4):
        marks.append(max([marks[-1], *(life[index].at for life in sample.lives)]))
    return [after - before for before, after in itertools.pairwise(marks)]


@dataclass(frozen=True, slots=True)
class Idle:
    """An agent whose workers train undisturbed."""

    megabytes: float
    percent: float
    """CPU time, in percent of one core."""


def idle(pid: int, seconds: float) -> Idle:
    before = cpu_time(pid)
    time.sleep(seconds)
    share = (cpu_time(pid) - before) / seconds
    status = Path(f"/proc/{pid}/status").read_text()
    rss = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    return Idle(int(rss.split()[1]) / 1024, 100 * share)


def cpu_time(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure_ours(
    folder: Path, size: int, trials: int, idle_seconds: float
) -> tuple[Samples, dict[str, list[list[float]]], Idle]:
    samples: Samples = {event: [] for event in EVENTS}
    run = uuid.uuid4().hex
    with contextlib.ExitStack() as stack:
        etcd = standalone(folder / "etcd")
        stack.callback(etcd.stop)
        rounds = stack.enter_context(contextlib.closing(Rounds(etcd.endpoint, run)))
        job = stack.enter_context(ours(folder / "ours", size, etcd.endpoint, run))
        begin(job, size)
        job.settle(3 * SETTLED)
        resting = idle(next(iter(job.agents.values())).pid, idle_seconds)
        for name in CYCLE * trials:
            samples[name].append(EVENTS[name].happen(job))
            say("ours", name, samples)
        split = {e: [stages(sample, rounds) for sample in samples[e]] for e in samples}
    return samples, split, resting


def measure_torchrun(
    folder: Path, size: int, trials: int, cycles: Sequence[Sequence[str]]
) -> tuple[Samples, Counter[str]]:
    """Return what was measured, and how often training never went on."""
    samples: Samples = {event: [] for event in EVENTS}
    never: Counter[str] = Counter()
    jobs = itertools.count()
    for cycle in [*cycles] * trials:
        for _attempt in range(CRASH_ATTEMPTS if cycle == ("crash",) else 1):
            with torchruns(folder / f"torchrun{next(jobs)}", size) as job:
                begin(job, size)
                for name in cycle:
                    try:
                        samples[name].append(EVENTS[name].happen(job))
                    except Stuck as stuck:
                        never[name] += 1
                        print(f"  torchrun {name}: {stuck}", file=sys.stderr, flush=True)
                        break
                    say("torchrun", name, samples)
                else:
                    break
    return samples, never


def say(who: str, event: str, samples: Samples) -> None:
    took = EVENTS[event].value(samples[event][-1])
    print(f"  {who} {event}: {took:.2f} s", file=sys.stderr, flush=True)


# -- the table -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. `bars`: each bar's text, and whether it was met."""

    label: str
    ours: str
    theirs: str
    ratio: str
    bars: tuple[tuple[str, bool], ...]


def rows(mine: Samples, theirs: Samples, never: Counter[str], resting: Idle) -> Iterator[Row]:
    for event, kind in EVENTS.items():
        times = [kind.value(sample) for sample in mine[event]]
        median = statistics.median(times)
        peers = [kind.value(sample) for sample in theirs[event]]
        peer = statistics.median(peers) if peers else PATIENCE[event] if never[event] else None
        told = [f"{peer:.1f}"] if peers else []
        if never[event]:
            told.append(f"never in {PATIENCE[event]:g} ({never[event]})")
        bars = [(f"<= {kind.limit:g} s", median <= kind.limit)]
        if kind.factor is not None and peer is not None:
            bars.append((f">= {kind.factor}x", peer >= kind.factor * median))
        yield Row(
            kind.label,
            f"{median:.2f} ({min(times):.2f} to {max(times):.2f}, {len(times)})",
            ", ".join(told) or "-",
            f"{'' if peers else '>'}{peer / median:.0f}x" if peer is not None else "-",
            tuple(bars),
        )
    memory, share = resting.megabytes, resting.percent
    yield Row("agent at rest: memory", f"{memory:.0f} MB", "-", "-", (("< 60 MB", memory < 60),))
    yield Row("agent at rest: of a core", f"{share:.2f} %", "-", "-", (("< 1 %", share < 1),))


def show(size: int, table: Iterator[Row]) -> None:
    print(f"\n{size} agents, 1 worker each; seconds: median (least to most, trials)")
    print(f"{'event':30} {'spotelastic':>24} {'torchrun':>22} {'ratio':>6}  {'bar':16} met")
    for row in table:
        bar = ", ".join(text for text, _ in row.bars)
        met = ", ".join("yes" if met else "MISSED" for _, met in row.bars)
        print(f"{row.label:30} {row.ours:>24} {row.theirs:>22} {row.ratio:>6}  {bar:16} {met}")


def show_stages(split: dict[str, list[list[float]]]) -> None:
    print("\nwhere the time goes, medians in s; the first stage counts from the event")
    print(f"{'event':30} " + " ".join(f"{stage:>14}" for stage in STAGES))
    for event, kind in EVENTS.items():
        medians = [statistics.median(column) for column in zip(*split[event], strict=True)]
        label = kind.label.partition(":")[0]
        print(f"{label:30} " + " ".join(f"{value:>14.3f}" for value in medians))


def main() -> None:
    parser = argparse.ArgumentParser(description="Recovery times beside torchrun's.")
    parser.add_argument("--agents", type=int, nargs="+", default=[2, 4], help="sizes (2 4)")
    parser.add_argument("--trials", type=int, default=2, help="of ours (2)")
    parser.add_argument("--peer-trials", type=int, default=1, help="of torchrun (1); 0: none")
    parser.add_argument("--quick", action="store_true", help="one trial, torchrun's crash only")
    options = parser.parse_args()
    trials = 1 if options.quick else options.trials
    print(where())
    for size in options.agents:
        with tempfile.TemporaryDirectory(prefix="spotelastic-bench-") as name:
            folder = Path(name)
            mine, split, resting = measure_ours(folder, size, trials, 3 if options.quick else 10)
            cycles = PEER_CYCLES[:1] if options.quick else PEER_CYCLES
            theirs, never = measure_torchrun(folder, size, options.peer_trials, cycles)
        show(size, rows(mine, theirs, never, resting))
        show_stages(split)
    print(f"at the end: {where()}")


if __name__ == "__main__":
    conduct(main)
