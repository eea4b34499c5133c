"""Runs all cases in which workers rest, from one process that has imported torch. Argument: FOLDER.

Writes FOLDER/CASE.json: by worker what it has told, and what it said when it rested. Further
arguments choose cases.
"""

import json
import os
import sys
import traceback
from pathlib import Path

import torch._dynamo  # noqa: F401  # which optimizers import: once for all workers
from support import (
    losing_ranks,
    resting_built,
    resting_device,
    resting_lines,
    resting_loops,
    resting_often,
    resting_restored,
    resting_variants,
)
from support.resting_agent import Case

TRIES = 5
"""Of cases that close many groups: gloo wakes about one in a hundred waiting ranks not at all. An
agent kills these.
"""
CASES = (
    losing_ranks.CASES
    | resting_often.CASES
    | resting_restored.CASES
    | resting_lines.CASES
    | resting_loops.CASES
    | resting_variants.CASES
    | resting_device.CASES
)

OFTEN = resting_often.CASES | resting_loops.CASES | resting_built.CASES


def written(folder: Path, name: str, case: Case) -> None:
    agent = case(folder)
    rested = [
        [[each.standing.step, each.standing.change, each.broken] for each in round_]
        for round_ in agent.rested
    ]
    told = {worker.number: worker.told for worker in agent.workers}
    found = {"told": told, "rested": rested, "rounds": agent.rounds, "heard": agent.heard}
    (folder / f"{name}.json").write_text(json.dumps(found))


def main() -> None:
    folder = Path(sys.argv[1])
    for name in sys.argv[2:] or CASES:
        tries = TRIES if name in OFTEN else 1
        if all(in_a_child(folder / str(turn), folder, name) for turn in range(tries)):
            sys.exit(f"{name}: failed")


def in_a_child(own: Path, folder: Path, name: str) -> int:
    """Return the exit status of one try: 0 for a success, which is written down."""
    own.mkdir(exist_ok=True)
    if os.fork():
        return os.wait()[1]
    code = 1
    try:
        written(own, name, (CASES | OFTEN | resting_device.GPU_CASES)[name])
        (own / f"{name}.json").rename(folder / f"{name}.json")
        code = 0
    except BaseException:
        traceback.print_exc()
    os._exit(code)


if __name__ == "__main__":
    main()
