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
from support import losing_ranks, resting_often, resting_restored
from support.resting_agent import Case

CASES = losing_ranks.CASES | resting_often.CASES | resting_restored.CASES


def written(folder: Path, name: str, case: Case) -> None:
    agent = case(folder)
    rested = [
        [[each.standing.step, each.standing.change, each.broken] for each in round_]
        for round_ in agent.rested
    ]
    told = {worker.number: worker.told for worker in agent.workers}
    found = {"told": told, "rested": rested, "rounds": agent.rounds}
    (folder / f"{name}.json").write_text(json.dumps(found))


def main() -> None:
    folder = Path(sys.argv[1])
    for name in sys.argv[2:] or CASES:
        if os.fork():
            _, status = os.wait()
            if status:
                sys.exit(f"{name}: failed")
            continue
        code = 1
        try:
            written(folder, name, CASES[name])
            code = 0
        except BaseException:
            traceback.print_exc()
        os._exit(code)


if __name__ == "__main__":
    main()
