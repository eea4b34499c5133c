"""Trains each kind of loop with virtual ranks on several numbers of ranks, and prints a digest for
each: `python -m support.scripts.virtual_ranks FOLDER KIND,... NUMBER...`.
"""

import os
import sys
from typing import Any

import support.training.forked
from support.training.virtual_loops import KINDS, LeavesOut, Poisoned, Throttled

import spotelastic as se

OTHERS = Throttled, Poisoned, LeavesOut


def train(rank: int, world: int, name: str, folder: str) -> None:
    kind = {**KINDS, **{each.__name__: each for each in OTHERS}}[name]()
    place = f"{folder}/{name}-{world}"
    given: dict[str, Any] = {"storage": place, "build": kind.build, "guard": kind.guards}
    with se.Checkpointer(kind.state, **given) as checkpoint:
        kind.checkpoint = checkpoint
        losses = ""
        for step in checkpoint.steps(kind.steps):
            with step:
                step.loss = kind.block(step.number)
            losses += "" if kind.guards else f" {step.loss.item():.9g}"
    line = f"{name} {world} {kind.computed} {kind.digest()}{losses}\n"
    os.write(1, line.encode())  # in one piece, beside those of other ranks


for kind in sys.argv[2].split(","):
    for ranks in map(int, sys.argv[3:]):
        support.training.forked.run(ranks, train, kind, sys.argv[1])
