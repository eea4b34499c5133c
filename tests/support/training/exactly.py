"""Checks, step by step, that an interrupted job computed what an uninterrupted one does.

The job is `support.scripts.train_exactly`; its output is compared here.
"""

import json
import math
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from support.places import SCRIPTS

ROWS, BATCH = 60, 8
"""An epoch is seven whole batches and one of four."""
PER_EPOCH = -(-ROWS // BATCH)
SCRIPT = SCRIPTS / "train_exactly.py"


@dataclass(frozen=True)
class Execution:
    """Of one step in one round, by all its ranks."""

    world: int
    samples: tuple[int, ...]
    loss: float


Curve = dict[int, list[Execution]]
"""Every execution of each step: one that was lost is executed again."""


def executed(file: Path) -> Curve:
    """A step was made when one rank has come to its end: all have told their samples then."""
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    by_round = defaultdict(list)
    for line in lines:
        by_round[line["step"], line["round"]].append(line)
    curve: Curve = defaultdict(list)
    for (step, _), told in by_round.items():
        losses = {line["loss"] for line in told if "loss" in line}
        if not losses:
            continue
        assert len(losses) == 1, f"step {step}: the ranks differ: {told}"
        shares = {line["rank"]: line["samples"] for line in told if "samples" in line}
        world = told[0]["world"]
        assert shares.keys() == set(range(world)), f"step {step}: {told}"
        samples = tuple(sorted(sample for share in shares.values() for sample in share))
        curve[step].append(Execution(world, samples, float.fromhex(losses.pop())))
    return curve


def check(folder: Path) -> int:
    """Compares every execution of every step with the uninterrupted run's; the last step.

    Bit for bit if there was only one world size, up to rounding otherwise. A job may end before it
    has made all steps again that it had lost. The uninterrupted run begins anew where a node joins
    it: the last one counts.
    """
    curve = executed(folder / "steps")
    whole = {step: made[-1:] for step, made in executed(folder / "whole").items()}
    last = max(whole)
    assert sorted(whole) == list(range(1, last + 1))
    assert curve.keys() >= whole.keys(), "no step was left out"
    worlds = {each.world for steps in (curve, whole) for made in steps.values() for each in made}
    within = 0.0 if len(worlds) == 1 else 1e-9
    for step, [expected] in whole.items():
        for execution in curve[step]:
            assert execution.samples == expected.samples, f"step {step}"
            assert math.isclose(execution.loss, expected.loss, rel_tol=within), f"step {step}"
    for first in range(1, last - PER_EPOCH + 2, PER_EPOCH):
        epoch = [s for step in range(first, first + PER_EPOCH) for s in curve[step][-1].samples]
        assert sorted(epoch) == list(range(ROWS)), f"the epoch from step {first} on"
    return last
