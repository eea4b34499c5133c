"""A worker script whose ranks, on separate nodes, restore per-rank values from memory.

Arguments: FOLDER STEP WORLD.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import support.training.forked
import torch

import spotelastic as se


def all_of_them(saved: list[Any], rank: int, world: int) -> Any:
    return {"of": torch.cat([each["of"] for each in saved])}


def live(rank: int, world: int, folder: Path, step: int) -> None:
    os.environ.update(json.loads((folder / f"environment-{rank}.json").read_text()))
    os.environ.update(LOCAL_RANK="0", LOCAL_WORLD_SIZE="1")
    own = se.PerRank({"of": torch.tensor([-1])}, all_of_them)
    with se.Checkpointer({"own": own, "shared": torch.zeros(1000)}) as checkpoint:
        begun = checkpoint.restore()
        (folder / f"restored-{rank}.json").write_text(json.dumps([begun, own.value["of"].tolist()]))
        own.value["of"] = torch.tensor([10 * (step + 1) + rank])
        checkpoint.step(begun + 1)


if __name__ == "__main__":
    support.training.forked.run(int(sys.argv[3]), live, Path(sys.argv[1]), int(sys.argv[2]))
