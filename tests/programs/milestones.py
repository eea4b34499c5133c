"""What a program of this folder has, and one in the wild has not: it can be met at a step.

Outside of a test, without PROGRAM_FOLDER, nothing here does anything but `finished`, which prints.
"""

import json
import os
import time
from collections.abc import Iterable
from pathlib import Path

import torch
from torch.distributed.tensor import DTensor

MILESTONES = (7, 15)
"""Steps at which workers wait until the test lets them pass."""


def reached(step: int) -> None:
    """Call it once a step, before anything is computed. Steps may be repeated after a restart."""
    folder = _folder()
    if folder is None or step not in MILESTONES or "PROGRAM_WAITS" not in os.environ:
        return
    passed = folder / f"passed-{step}"
    if not passed.exists():
        (folder / f"at-{step}-rank-{os.environ['RANK']}").touch()
    while not passed.exists():
        time.sleep(0.02)


def finished(parameters: Iterable[torch.Tensor], history: object = None) -> None:
    """Every rank leaves the parameters that it ends with, and what it has kept of the run."""
    values = [_whole(value).detach().clone() for value in parameters]
    folder = _folder()
    if folder is None:
        print(f"parameters add up to {sum(value.double().sum() for value in values)}")
        return
    torch.save(values, folder / f"final-{os.environ['RANK']}.pt")
    (folder / f"history-{os.environ['RANK']}.json").write_text(json.dumps(history))


def _whole(value: torch.Tensor) -> torch.Tensor:
    return value.full_tensor() if isinstance(value, DTensor) else value


def _folder() -> Path | None:
    named = os.environ.get("PROGRAM_FOLDER")
    return Path(named) if named else None
