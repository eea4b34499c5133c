"""The debug model of torchtitan before 0.3, sharded by FSDP2. The loop is ours: torchtitan's own
trainer needs a GPU, and from 0.3 on its models do (flex attention has no backward pass on a CPU).

torchrun --nproc-per-node 2 tests/programs/torchtitan_model.py
"""

import torch
import torch._utils
import torch.distributed as dist
from milestones import finished, reached
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import spotelastic as se

# torchtitan takes a machine without a GPU for one with CUDA.
torch._utils._get_available_device_type = lambda: "cpu"
from torchtitan.models.llama3 import Transformer, llama3_args  # noqa: E402

STEPS, BATCH, LENGTH = 20, 4, 16


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = Transformer(llama3_args["debugmodel"])
    with torch.no_grad():
        model.init_weights()
    mesh = init_device_mesh("cpu", (world,))
    for layer in model.layers.values():
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=8e-4, foreach=False)
    with se.Checkpointer({"model": model, "optimizer": optimizer}) as checkpoint:
        step = checkpoint.restore()
        while step < STEPS:
            reached(step)
            generator = torch.Generator().manual_seed(1000 * step + rank)
            tokens = torch.randint(2048, (BATCH, LENGTH + 1), generator=generator)
            logits = model(tokens[:, :-1])
            loss = torch.nn.functional.cross_entropy(
                logits.flatten(0, 1).float(), tokens[:, 1:].flatten()
            )
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            step += 1
            checkpoint.step(step, loss=loss.detach())
    finished(parameter.full_tensor() for parameter in model.parameters())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
