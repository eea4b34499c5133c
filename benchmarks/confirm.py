"""Compares `spotelastic replay` with reality: the same spot market, once with real processes, once
simulated.

The real one is a job of one to three nodes on the local cloud. In six minutes it meets what every
tenth node of a public trace met in three hours: eleven times a node goes or comes. The run itself
measures how long a node boots, how long training pauses until new workers step, and how long a step
takes (means, as few nodes boot). These are what `--boot`, `--start-time` and `--step-time` tell a
replay. Goodput is judged by one function, once from the training script's notes and once from the
replay.
"""

import argparse
import contextlib
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

from common.measuring import Stuck, conduct, until, where
from spotelastic_checkpoints.types import Schedule

from spotelastic.aws.base.clients import Aws
from spotelastic.aws.clusters import lifecycle as clusters
from spotelastic.aws.clusters.lifecycle import ClusterRecord
from spotelastic.aws.compute import autoscaling
from spotelastic.cloud.model import ALIVE, Instance
from spotelastic.local import cloud
from spotelastic.local.cloud import CloudInfo
from spotelastic.local.fault_client import FaultClient
from spotelastic.replay.outcome import Bill, ReplayOutcome, RunSpan, allowed_anywhere, judge
from spotelastic.replay.play import play
from spotelastic.replay.scenario import NodeTimings, Scenario
from spotelastic.replay.trace import Span, Trace, read

NAME, TYPE = "confirm", "g5.xlarge"
SCRIPT = Path(__file__).parent / "jobs" / "paced.py"
LEAST, MOST = 1, 3
STEP, NOTICE, SAVES_EVERY = 0.25, 12.0, 20
TRACE = Path(__file__).parent / "traces" / "bamboo-p3.csv"
FIRST, EVERY = 2, 10
"""Which nodes of the trace are used: at most three at a time, and always one."""
SINCE, HOURS, SPEED = 180.0, 3.0, 30.0
"""The part of the trace: from which second on, for how many hours, and how much faster."""
BAR = 5.0
"""Allowed difference in goodput, in percentage points."""


@dataclass(frozen=True, slots=True)
class Change:
    """A change of the market: this many nodes get their notice, and this many appear."""

    after: float
    """Seconds after all nodes train."""
    taken: int
    appear: int


def plan() -> list[Change]:
    """Return the part of the trace that is carried out; its last change is the end."""
    nodes = read(TRACE).spans[FIRST::EVERY]
    until = SINCE + HOURS * 3600.0
    moments = sorted({at for node in nodes for at in (node.start, node.end) if SINCE < at <= until})
    changes = [
        Change(
            (at - SINCE) / SPEED,
            sum(node.end == at for node in nodes),
            sum(node.start == at for node in nodes),
        )
        for at in moments
    ]
    return [*changes, Change((until - SINCE) / SPEED, 0, 0)]


@dataclass
class Market:
    """The local cloud's spot market, with as many nodes as the trace has."""

    cluster: ClusterRecord
    faults: FaultClient
    zones: tuple[str, ...]
    capacity: int = 0
    spans: dict[str, Span] = field(default_factory=dict)
    """When each instance existed, in epoch seconds."""

    def running(self) -> list[Instance]:
        found = autoscaling.instances(self.cluster.aws, NAME, "worker")
        return sorted((m for m in found if m.state in ALIVE), key=lambda m: m.id)

    def look(self) -> list[Instance]:
        running = self.running()
        for machine in running:
            new = Span(machine.id, machine.launched_at, float("inf"))
            self.spans.setdefault(machine.id, new)
        return running

    def offer(self, count: int, elsewhere: int) -> None:
        """Offer this many nodes, all in one zone except those that are `elsewhere`.

        The capacity of a whole region cannot be set.
        """
        self.capacity = count
        for zone in self.zones:
            here = zone == self.zones[0]
            self.faults.set_capacity(TYPE, zone, max(0, count - elsewhere) if here else 0)

    def change(self, change: Change) -> None:
        """Apply a change; nodes that are to go but were never had are ignored."""
        staying = [m for m in self.look() if self.spans[m.id].end == float("inf")]
        goes = max(0, change.taken - max(0, self.capacity - len(staying)))
        left = staying[goes:]
        elsewhere = sum(machine.zone != self.zones[0] for machine in left)
        self.offer(self.capacity + change.appear - change.taken, elsewhere)
        for machine in staying[:goes]:
            self.faults.interrupt(machine.id, NOTICE)
            self.spans[machine.id] = replace(self.spans[machine.id], end=time.time() + NOTICE)


# -- the run -------------------------------------------------------------------------------------


@contextlib.contextmanager
def job(folder: Path) -> Iterator[CloudInfo]:
    """Yield a local cloud that trains `jobs/paced.py`."""
    work, steps = folder / "work", folder / "steps"
    work.mkdir()
    steps.mkdir()
    (work / "train.py").write_bytes(SCRIPT.read_bytes())
    os.environ["SPOTELASTIC_HOME"] = str(folder / "home")
    flags = ["--min", LEAST, "--max", MOST, "--name", NAME, "--instance-types", TYPE]
    flags += ["--zones", "spread"]  # a trace names no zones
    flags += ["--snapshot-every", SAVES_EVERY, "--checkpoint-every", SAVES_EVERY]
    command = [sys.executable, "-m", "spotelastic", "up", "--local", *map(str, flags), "train.py"]
    with (folder / "up.log").open("wb") as log:
        up = subprocess.Popen(
            [*command, "--", str(steps), str(STEP)], cwd=work, stdout=log, stderr=log
        )
    try:
        info = until(cloud.find, "a local cloud")
        assert info is not None
        os.environ.update(cloud.environment(info))
        yield info
    finally:
        up.send_signal(signal.SIGINT)
        try:
            up.wait(60)
        except subprocess.TimeoutExpired:
            up.kill()
            up.wait()


@dataclass(frozen=True, slots=True)
class Line:
    what: str
    at: float
    nodes: int
    step: int


def lines(folder: Path) -> list[list[Line]]:
    """Return what each incarnation of rank 0 has noted, in the order in which they began."""
    found = []
    for file in folder.glob("*.steps"):
        rows = [
            row.split() for row in file.read_text().splitlines(keepends=True) if row[-1] == "\n"
        ]
        found.append([Line(what, float(at), int(n), int(step)) for what, at, n, step in rows])
    return sorted((each for each in found if len(each) > 1), key=lambda each: each[0].at)


class Boots:
    """Measures how long nodes take from launch to registration."""

    def __init__(self, market: Market) -> None:
        self._market = market
        self._known = {machine.id for machine in market.running()}
        self.seconds: list[float] = []

    def look(self) -> None:
        status = self._market.cluster.objects.status()
        launched = {machine.id: machine.launched_at for machine in self._market.look()}
        for node in status.nodes if status else ():
            there = node.state in ("waiting", "training", "draining")
            if there and node.id in launched and node.id not in self._known:
                self._known.add(node.id)
                self.seconds.append(time.time() - launched[node.id])


def follow(market: Market, boots: Boots, began: float) -> float:
    """Carry out the plan; return when it ended."""
    for change in plan():
        while (left := began + change.after - time.time()) > 0:
            boots.look()
            time.sleep(min(0.2, left))
        market.change(change)
    return time.time()


# -- beside it -----------------------------------------------------------------------------------


def compare(
    noted: list[list[Line]], market: Market, boots: list[float], began: float, ended: float
) -> tuple[ReplayOutcome, ReplayOutcome]:
    """Print the real run and the replay side by side."""
    gaps = [
        after.at - before.at
        for each in noted
        for before, after in pairwise(line for line in each if line.what == "step")
    ]
    step = statistics.median(gaps)
    starts = [after[1].at - before[-1].at - step for before, after in pairwise(noted)]
    machines = NodeTimings(boot=statistics.mean(boots), start=statistics.mean(starts))
    scenario = Scenario(
        LEAST, MOST, step=step, state=1e5, notice=NOTICE, machines=machines,
        schedule=Schedule(SAVES_EVERY, SAVES_EVERY),
    )  # fmt: skip
    # The first nodes exist from the beginning, and train once they have booted.
    zero = began - machines.boot - machines.start
    spans = tuple(
        Span(span.node, max(0.0, span.start - zero) if span.start > began else 0.0, span.end - zero)
        for span in market.spans.values()
    )
    trace = Trace("confirm", tuple(sorted(spans, key=lambda span: span.start)), ended - zero)
    stretches = [
        RunSpan(
            each[1].at - step - zero,
            min(each[-1].at, ended) - zero,
            each[0].nodes,
            each[1].step - 1,
            max(line.step for line in each if line.at <= ended),
        )
        for each in noted
        if began - step <= each[-1].at and each[1].at <= ended
    ]
    print(
        f"a step takes {step:.3f} s, a node boots in {machines.boot:.1f} s, "
        f"new workers step within {machines.start:.1f} s"
    )
    return judge("as run", stretches, Bill(), allowed_anywhere((trace,), scenario), scenario), play(
        trace, scenario
    )


def main() -> None:
    argparse.ArgumentParser(description="A replay beside what it plays.").parse_args()
    print(where(), flush=True)
    with tempfile.TemporaryDirectory(prefix="spotelastic-confirm-") as name:
        folder = Path(name)
        with job(folder) as info:

            def all_train() -> list[Line]:
                found = [each for each in lines(folder / "steps") if each[0].nodes == MOST]
                return found[-1] if found else []

            first = until(all_train, f"{MOST} nodes that train")
            began = first[1].at - STEP
            cluster = clusters.find(NAME, Aws(info.region))
            assert cluster is not None
            market = Market(cluster, FaultClient(info), info.zones)
            market.change(Change(0.0, 0, MOST))
            boots = Boots(market)
            ended = follow(market, boots, began)
            noted = [each for each in lines(folder / "steps") if each[0].at >= first[0].at]
        if not boots.seconds:
            raise Stuck("no replacement was ever seen to register")
        outcomes = compare(noted, market, boots.seconds, began, ended)
    for outcome in outcomes:
        print(
            f"{outcome.policy:12} goodput {outcome.goodput:6.1%}, {outcome.steps} steps, "
            f"{outcome.steps_lost} of them lost, {outcome.starts} starts"
        )
    apart = abs(outcomes[0].goodput - outcomes[1].goodput) * 100
    verdict = "met" if apart <= BAR else "MISSED"
    print(f"{'apart':12} {apart:.1f} points of goodput <= {BAR:g}: {verdict}")


if __name__ == "__main__":
    conduct(main)
