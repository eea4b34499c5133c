"""Runs all cases in which workers rest, from one process that has imported torch. Argument: FOLDER.

Writes FOLDER/CASE.json: by worker what it has told, and what it said when it rested. Further
arguments choose cases.
"""

import json
import os
import shutil
import sys
import tempfile
import traceback
from pathlib import Path

import torch._dynamo  # noqa: F401  # which optimizers import: once for all workers
from support.in_place import (
    resting_built,
    resting_device,
    resting_drawn,
    resting_kinds,
    resting_lines,
    resting_loops,
    resting_often,
    resting_restored,
    resting_variants,
)
from support.in_place.resting_agent import Case, NotWokenError
from support.training import losing_ranks, losing_votes

TRIES = 5
"""Of a case in which gloo does not wake a rank."""
NOT_WOKEN = 3
"""The exit status of such a try."""
CASES = (
    losing_ranks.CASES
    | resting_often.CASES
    | resting_restored.CASES
    | resting_lines.CASES
    | resting_loops.CASES
    | resting_variants.CASES
    | resting_device.CASES
    | losing_votes.CASES
)

KINDS = resting_kinds.CASES | resting_drawn.CASES
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
        for _ in range(TRIES):
            with tempfile.TemporaryDirectory() as own:  # whose path is short: sockets are in it
                status = in_a_child(Path(own), folder, name)
            if status != NOT_WOKEN:
                break
        if status != 0:
            sys.exit(f"{name}: failed")


def in_a_child(own: Path, folder: Path, name: str) -> int:
    """Return the exit status of one try: 0 for a success, which is written down."""
    if os.fork():
        return os.waitstatus_to_exitcode(os.wait()[1])
    code = 1
    try:
        written(own, name, (CASES | KINDS | OFTEN | resting_device.GPU_CASES)[name])
        shutil.copy(own / f"{name}.json", folder)
        code = 0
    except NotWokenError as error:
        print(f"{name}: gloo did not wake workers {error}", file=sys.stderr)
        code = NOT_WOKEN
    except BaseException:
        traceback.print_exc()
    os._exit(code)


if __name__ == "__main__":
    main()
