"""A script that saves twice into a folder with dcp.async_save's separate process."""

import sys
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from support.processes.patience import PATIENT
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

import spotelastic as se


def main(folder: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=0, world_size=1)
    writer = se.dcp.CheckpointWriter(folder / "1")
    for step in (1, 2):
        state: dict[str, Any] = {"weight": torch.full((1000,), float(step)), "step": step}
        future = dcp.async_save(
            state,
            storage_writer=writer,
            checkpoint_id=folder / str(step),
            async_checkpointer_type=AsyncCheckpointerType.PROCESS,
        )
        state["weight"].zero_()
        assert isinstance(future, Future)
        future.result(timeout=PATIENT)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
