"""A worker script that trains FSDP2, tensor parallel and DDP models on two ranks with saves beside
training.

Argument: FOLDER. It compares what is committed with what the ranks held.
"""

import sys
from pathlib import Path
from typing import Any

import support.training.forked
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from support.scripts.shardings import distribute
from support.training.open_checkpointer import tensors_copied, wait_for_slots
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict
from torch.distributed.tensor import DTensor

import spotelastic as se

WIDTH, STEPS = 768, 6
KINDS = ("ddp", "fsdp", "tensor")


def build(world: int) -> dict[str, Any]:
    state: dict[str, Any] = {}
    for kind in KINDS:
        torch.manual_seed(0)
        model: nn.Module = nn.Sequential(
            nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH)
        )
        state[kind] = model = distribute(model, kind, world)
        state[f"{kind}_optimizer"] = torch.optim.AdamW(model.parameters(), lr=0.01)
    return state


def one_step(state: dict[str, Any], step: int) -> None:
    rows = torch.rand(4, WIDTH, generator=torch.Generator().manual_seed(step))
    for kind in KINDS:
        (state[kind](rows) - rows).square().mean().backward()
        state[f"{kind}_optimizer"].step()
        state[f"{kind}_optimizer"].zero_grad()


def for_dcp(state: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for kind in KINDS:
        optimizer = state[f"{kind}_optimizer"]
        found[kind] = get_model_state_dict(state[kind])
        found[f"{kind}_optimizer"] = get_optimizer_state_dict(state[kind], optimizer)
    return found


def tensors(state: dict[str, Any]) -> list[torch.Tensor]:
    """This rank's, as they are now."""
    found = []
    for kind in KINDS:
        optimizer = state[f"{kind}_optimizer"]
        of_all = [*state[kind].parameters()]
        of_all += [value for kept in optimizer.state.values() for value in kept.values()]
        found += [t.to_local() if isinstance(t, DTensor) else t for t in of_all]
    return [tensor.detach().clone() for tensor in found]


def train(rank: int, world: int, folder: Path) -> None:
    wait_for_slots()
    state, expected, overlapped = build(world), {}, 0
    with se.Checkpointer(
        state, storage=str(folder), snapshot_every=2, checkpoint_every=2
    ) as checkpoint:
        for step in range(1, STEPS + 1):
            one_step(state, step)
            checkpoint.step(step)
            if step % 2 == 0:
                expected[step] = tensors(state)
                # Weights and their two moments; those of DDP are shared between the ranks.
                overlapped += tensors_copied(checkpoint) >= 12
                continue
            assert checkpoint.wait(60)
    assert overlapped == len(expected)
    for step, wanted in expected.items():
        like = for_dcp(state)
        dcp.load(like, checkpoint_id=folder / "1" / f"step-{step:08d}")
        assert all(map(torch.equal, tensors(state), wanted)), step
    dist.barrier()


if __name__ == "__main__":
    support.training.forked.run(2, train, Path(sys.argv[1]))
