"""Benchmarks in-place recovery: how long survivors wait for their next optimizer step, and how many
they repeat.

The job is like real ones (`jobs/recovering/`): it builds for some seconds, compiles its model, and
trains it with AdamW and DDP on gloo; four nodes of one worker, all on this machine. It runs under

* spotelastic in place (`checkpoint.steps()`): survivors keep their processes
* spotelastic in place with a model that is sharded by FSDP2 (`build=`)
* spotelastic by new processes (`checkpoint.restore()`), and torchrun (c10d)
* torchft, and the in-process wrapper of NVIDIA's resiliency extension (NVRx), with `--peers`

The events:

* worker: a worker is killed; from the kill to the next optimizer step of all survivors
* node: everything on a node is killed; the same
* freeze: everything on a node is frozen, connections stay open, as with a lost machine; the same
* arrival: a node comes; the longest gap between two optimizer steps of those that were there

A step that survivors make a second time is lost. `--kills N` kills that many workers at random
moments, and counts how often survivors ended. `--costs` tells what a step costs in place beside one
without the step vote: two jobs take turns.
"""

import argparse
import contextlib
import itertools
import json
import random
import shutil
import sys
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import torch
from common.agents import Job
from common.comparisons import Kills, Measured, Results, rows, show
from common.losses import Ended, Sample, arrive, begin, settle, strike
from common.measuring import Stuck, conduct, where
from common.rounds import Rounds
from common.step_costs import step_costs
from common.systems import HOW_TO_GET_PEERS, Setup, System, compile_once, spotelastic, systems

from spotelastic.store.etcd_server.process import standalone

LOSSES = ("worker", "node", "freeze")
NAMES = ("in-place", "built", "processes", "torchrun", "torchft", "nvrx")
QUICK = ("in-place", "built", "torchrun")
"""What is measured if nothing is asked for."""
TURNS, TURN = 2, 1.5
"""Turns of each job for each length of a step, per trial, and their seconds."""
KILLED = ("in-place", "torchft")
"""Systems of `--kills`: those that keep their processes, and can grow again."""


def is_gone(system: System, event: str) -> bool:
    """Return whether the node is lost with what the event has hit."""
    return event != "worker" or not system.has_agents


def following(system: System, endpoint: str, run: str) -> AbstractContextManager[Rounds | None]:
    return contextlib.closing(Rounds(endpoint, run)) if system.has_rounds else nullcontext()


def measure(system: System, folder: Path, endpoint: str, nodes: int, trials: int) -> Results:
    """Let all events happen. After each loss the job gets back what it has lost."""
    results = Results()
    losses = [event for event in LOSSES if event not in system.missing] * trials
    jobs = itertools.count()
    while losses:
        name = f"{system.name}{next(jobs)}"
        with following(system, endpoint, name) as rounds, system.opens(folder / name) as job:
            _begin(system, job, nodes)
            while losses and len(job.agents) == nodes:
                event, victim = losses.pop(0), [*job.agents][-1]
                if not _took(system, event, results, rounds, partial(strike, job, event, victim)):
                    break
                if not is_gone(system, event):
                    continue
                job.forget(victim)
                comes = partial(arrive, job)
                if system.grows and not _took(system, "arrival", results, rounds, comes):
                    break
    return results


def _took(
    system: System,
    event: str,
    results: Results,
    rounds: Rounds | None,
    happen: Callable[[], Sample],
) -> bool:
    """Note what an event took. Returns False if the job did not go on after it."""
    try:
        sample = happen()
    except (Ended, Stuck) as failure:
        results.failed[event].append(str(failure))
        _say(system, event, str(failure))
        return False
    results.samples[event].append(sample)
    if rounds is not None:
        proposed, started = rounds.between(sample.since, sample.until)
        marks = (sample.since, proposed, started, sample.until)
        results.stages[event].append([end - begin for begin, end in itertools.pairwise(marks)])
    _say(system, event, f"{sample.seconds:.2f} s, {sample.lost} steps lost")
    return True


def _begin(system: System, job: Job, nodes: int) -> None:
    try:
        begin(job, nodes)
    except (Ended, Stuck) as failure:
        told = "".join(f"\n{node}: {job.last_words(node)}" for node in job.agents)
        raise Stuck(f"{system.label}: {failure}{told}") from failure


def kill_many(system: System, folder: Path, nodes: int, count: int) -> Kills:
    """Kill workers at random moments, each when the job is whole again."""
    kills = Kills(system.label, count)
    left, jobs = count, itertools.count()
    while left:
        with system.opens(folder / f"{system.name}-kills{next(jobs)}") as job:
            _begin(system, job, nodes)
            while left:
                left -= 1
                victim = random.choice([*job.agents])
                try:
                    kills.samples.append(strike(job, "worker", victim))
                    if is_gone(system, "worker"):
                        job.forget(victim)
                        job.add()
                    settle(job)
                except (Ended, Stuck) as failure:
                    kills.ended += 1
                    _say(system, "kills", str(failure))
                    break
    return kills


def _say(system: System, event: str, what: str) -> None:
    print(f"  {system.label}: {event}: {what}", file=sys.stderr, flush=True)


def measure_all(options: argparse.Namespace, folder: Path, endpoint: str) -> Measured:
    """Measure all that was asked for."""
    setup = Setup(
        options.nodes,
        options.build,
        options.pause,
        options.compile,
        folder / "compiled",
        endpoint,
        options.peers,
        options.device,
        options.backend,
    )
    if options.compile:
        compile_once(setup)
    names = options.only or (NAMES if options.peers else QUICK)
    found = [
        (system, measure(system, folder, endpoint, options.nodes, options.trials))
        for system in systems(setup)
        if system.name in names
    ]
    # What costs a step, or ends a survivor, does not depend on what the job has built before.
    bare = replace(setup, build=0.0)
    kills = [
        kill_many(system, folder, options.nodes, options.kills)
        for system in systems(bare)
        if system.name in names and system.name in KILLED and options.kills
    ]
    costs = []
    if options.costs:

        def opens(where: Path, loop: str) -> AbstractContextManager[Job]:
            return spotelastic(bare, where, loop, "--turns")

        lengths, turns = options.costs, TURNS * options.trials
        costs = step_costs(("restore", "steps"), opens, folder, options.nodes, lengths, turns, TURN)
    return Measured([*rows(found)], kills, costs)


def main() -> None:
    options = _options()
    if options.device == "cuda" and not torch.cuda.is_available():
        print("no GPU: nothing was measured")
        return
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="spotelastic-bench-")))
        etcd = standalone(folder / "etcd")
        stack.callback(etcd.stop)
        machine = where()
        measured = measure_all(options, folder, etcd.endpoint)
    if options.json:
        told = {"machine": machine, "options": vars(options), **asdict(measured)}
        print(json.dumps(told, indent=2))
        return
    compiled = "compiled" if options.compile else "not compiled"
    print(
        f"{machine}\n\n{options.nodes} nodes of 1 worker on {options.device} by {options.backend}; "
        f"the job builds for {options.build:g} s, and is {compiled}; seconds: median (least to "
        "most, trials)"
    )
    show(measured)
    if not options.peers:
        print(f"not measured: torchft and NVRx. {HOW_TO_GET_PEERS}")
    print(f"at the end: {where()}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="In-place recovery beside its peers.")
    parser.add_argument("--nodes", type=int, default=4, help="nodes of one worker (4)")
    parser.add_argument("--trials", type=int, default=1, help="of each event (1)")
    parser.add_argument("--build", type=float, default=5.0, help="seconds that building takes (5)")
    parser.add_argument("--pause", type=float, default=0.03, help="seconds of a step (0.03)")
    parser.add_argument(
        "--only",
        nargs="+",
        choices=NAMES,
        metavar="SYSTEM",
        help=f"of {', '.join(NAMES)} (all with --peers; else {', '.join(QUICK)})",
    )
    parser.add_argument("--peers", metavar="PYTHON", help="interpreter with torchft and NVRx")
    parser.add_argument("--kills", type=int, default=0, help="workers to kill besides (0)")
    parser.add_argument(
        "--costs",
        type=float,
        nargs="*",
        default=[0.05, 0.005],
        metavar="SECONDS",
        help="steps whose vote is measured (0.05 0.005); nothing: none",
    )
    parser.add_argument(
        "--compile",
        action=argparse.BooleanOptionalAction,
        default=shutil.which("g++") is not None,
        help="compile the model (if there is a compiler)",
    )
    parser.add_argument(
        "--device",
        choices=["cpu", "cuda"],
        default="cpu",
        help="device of the model (cpu); with cuda all workers share one GPU: give --nodes 2",
    )
    parser.add_argument(
        "--backend", choices=["gloo", "nccl"], default="gloo", help="of the process group (gloo)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON in place of tables")
    return parser.parse_args()


if __name__ == "__main__":
    conduct(main)
