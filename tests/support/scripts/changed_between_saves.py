"""A worker script whose ranks save steps twice, change their state in between, and lack slots.

Arguments: FOLDER, and a seed. Each tensor is in the slots of one of the two ranks. They always have
the same value in all elements, so that values which differ are of two times. Rank 0 looks at what
can be put together of the slots, and writes the number of saves that it has seen to FOLDER/seen.
"""

import random
import sys
from pathlib import Path
from typing import Any

import support.training.forked
import torch
import torch.distributed as dist
from spotelastic_checkpoints.memory import slots
from spotelastic_checkpoints.memory.arena import Arena
from support.training.open_checkpointer import client_of, wait_for_slots

import spotelastic as se
from spotelastic.training.save.saver import tensor_at

STEPS, WORLD = 24, 2


def looked_at(folder: Path | None) -> int:
    """The number of complete saves in memory. Each is of one time."""
    dist.barrier()
    count = 0
    if dist.get_rank() == 0 and folder is not None:
        sealed = Arena(folder, WORLD).sealed()
        for found in slots.snapshots(header for _, header in sealed):
            members = slots.members(sealed, found.incarnation, found.step, found.layout)
            tensors = {
                item.fqn: tensor_at(slot.data, item)
                for slot, header in members
                for item in slot.items(header)
                if item.is_tensor
            }
            assert len(members) == WORLD and len(tensors) == 4
            values = {value for tensor in tensors.values() for value in tensor.tolist()}
            assert len(values) == 1, (found.step, found.layout, values)
            count += 1
    dist.barrier()
    return count


def ranks(rank: int, world: int, folder: Path, seed: int) -> None:
    wait_for_slots()
    alike, own = random.Random(seed), random.Random(f"{seed}/{rank}")
    tensors = [torch.zeros(1000) for _ in range(4)]
    state: dict[str, Any] = {f"t{number}": each for number, each in enumerate(tensors)}
    seen = 0
    arena: Path | None = None
    with se.Checkpointer(
        state, storage=str(folder / "store"), snapshot_every=2, checkpoint_every=5
    ) as checkpoint:
        client = client_of(checkpoint)
        opened = client.open_slot

        def opens(patience: float, *, urgent: bool = False) -> Any:
            nonlocal arena
            if own.random() < 0.3:
                return None
            slot = opened(60.0, urgent=urgent)
            assert slot is not None
            arena = Path(slot.path).parent
            return slot

        client.open_slot = opens  # type: ignore[method-assign]
        for step in range(1, STEPS + 1):
            for tensor in tensors:
                tensor.fill_(step)
            checkpoint.step(step)
            seen += looked_at(arena)
            for _ in range(alike.randrange(3)):
                if alike.random() < 0.6:
                    for tensor in tensors:
                        tensor.add_(0.25)
                checkpoint.save()
                seen += looked_at(arena)
        client.open_slot = opened  # type: ignore[method-assign]
    if rank == 0:
        (folder / "seen").write_text(str(seen))


if __name__ == "__main__":
    support.training.forked.run(WORLD, ranks, Path(sys.argv[1]), int(sys.argv[2]))
