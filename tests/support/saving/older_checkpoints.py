"""The checkpoints in tests/contract/checkpoints that each later version has to read.

    python -m support.saving.older_checkpoints v2     trains as two ranks, and keeps what they saved

A folder that is there is never written again. `expected.json` in it says what was saved.
"""

import json
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from support.places import TESTS
from torch import nn

import spotelastic as se

FOLDER = TESTS / "contract" / "checkpoints"
OF_THE_MACHINE = {"in-use", "spotelastic-run.json", ".lock", ".spotelastic.lock"}
"""What tells of the machine that it was made on; none of it is needed to restore."""
STEPS = 6
RUN = "kept"


def state() -> dict[str, Any]:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    return {"model": model, "optimizer": optimizer, "note": ["kept", 1, 2.5]}


def one_step(state: dict[str, Any], step: int) -> torch.Tensor:
    loss: torch.Tensor = (state["model"](torch.full((1, 3), float(step))) - 1).square().mean()
    state["optimizer"].zero_grad()
    loss.backward()
    state["optimizer"].step()
    return loss.detach()


def told(state: dict[str, Any]) -> dict[str, Any]:
    """As JSON, which holds 32-bit floats exactly."""
    model, moments = state["model"], state["optimizer"].state_dict()["state"]
    return {
        "weight": model.weight.tolist(),
        "bias": model.bias.tolist(),
        "exp_avg": [moments[i]["exp_avg"].tolist() for i in range(2)],
        "exp_avg_sq": [moments[i]["exp_avg_sq"].tolist() for i in range(2)],
        "steps": [float(moments[i]["step"]) for i in range(2)],
        "note": state["note"],
    }


def train(folder: Path) -> None:
    dist.init_process_group("gloo")
    mine = state()
    with se.Checkpointer(mine, snapshot_every=1, checkpoint_every=STEPS) as checkpoint:
        for step in range(checkpoint.restore() + 1, STEPS + 1):
            checkpoint.step(step, loss=one_step(mine, step))
    if dist.get_rank() == 0:
        (folder / "expected.json").write_text(json.dumps(told(mine), indent=1) + "\n")
    dist.destroy_process_group()


def write(version: str) -> int:
    folder = FOLDER / version
    if folder.exists():
        print(f"{folder} is there: what it holds is never written again", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as made:
        command = [sys.executable, "-m", "spotelastic", "run", "--standalone"]
        command += ["--nproc-per-node", "2", "--rdzv-id", RUN, "--storage", f"{made}/checkpoints"]
        command += ["--module", "support.saving.older_checkpoints", made]
        subprocess.run(command, check=True)
        folder.mkdir(parents=True)
        with tarfile.open(folder / "checkpoints.tar.gz", "w:gz") as archive:
            for path in sorted(Path(made, "checkpoints").rglob("*")):
                if path.is_file() and path.name not in OF_THE_MACHINE:
                    archive.add(path, path.relative_to(made), filter=_anybodys)
        Path(made, "expected.json").rename(folder / "expected.json")
    return 0


def _anybodys(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mode = 0o644
    return member


if __name__ == "__main__":
    if "RANK" in os.environ:
        train(Path(sys.argv[1]))
    else:
        sys.exit(write(sys.argv[1]))
