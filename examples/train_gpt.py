"""Trains a small byte-level GPT on the source text of Python's standard library.

    python examples/train_gpt.py --steps 100
    torchrun --nproc-per-node 2 examples/train_gpt.py
    spotelastic up --local --min 2 --max 4 examples/train_gpt.py --steps 400

The loss does not depend on the number of ranks: each step has the same global batch.
"""

import argparse
import os
import sysconfig
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import spotelastic as se

BATCH, CONTEXT, WIDTH, HEADS, LAYERS = 16, 128, 128, 4, 5


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(*qkv, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bytes, self.places = nn.Embedding(256, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 256, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1], device=x.device)
        return self.head(self.norm(self.blocks(self.bytes(x) + self.places(places))))


def read_text() -> Tensor:
    """Return all top-level modules of the standard library, one after the other."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    return torch.frombuffer(bytearray(b"".join(f.read_bytes() for f in files)), dtype=torch.uint8)


def batch(text: Tensor, seed: int, step: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the global batch of a step, which is the same for any number of ranks."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
    starts = torch.randint(len(text) - CONTEXT - 1, (BATCH, 1), generator=generator)
    rows = text[starts + torch.arange(CONTEXT + 1)].long().to(device)
    return rows[:, :-1], rows[:, 1:]


def place() -> tuple[int, int]:
    """Return rank and world size, which change when nodes come and go."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def loss_of(model: nn.Module, inputs: Tensor, targets: Tensor, rank: int, world: int) -> Tensor:
    """Return this rank's part of the loss.

    Each rank takes every world-th row, and DDP averages over ranks. So the sum over own rows times
    world / BATCH gives the mean over the global batch, however it is shared out.
    """
    mine = slice(rank, BATCH, world)
    logits = model(inputs[mine])
    sums = F.cross_entropy(logits.flatten(0, 1), targets[mine].flatten(), reduction="sum")
    return sums / CONTEXT * world / BATCH


def mean_of_ranks(loss: Tensor, world: int) -> Tensor:
    """Return the loss over the global batch. It communicates, and so comes before the optimizer."""
    loss = loss.detach()
    if world > 1:
        dist.all_reduce(loss)
    return loss / world


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    if "RANK" in os.environ:  # under spotelastic or torchrun, with one rank as with many
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")

    torch.manual_seed(options.seed)
    text = read_text()
    model: nn.Module = GPT().to(device)
    if dist.is_initialized():
        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)

    with se.Checkpointer({"model": model, "optimizer": optimizer}) as checkpoint:
        for step in checkpoint.steps(options.steps):
            with step:  # begins again, among those that are left, if a node is lost in it
                inputs, targets = batch(text, options.seed, step.number - 1, device)
                rank, world = place()
                step.loss = loss_of(model, inputs, targets, rank, world)
                optimizer.zero_grad(set_to_none=True)
                step.loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                step.loss = mean_of_ranks(step.loss, world)
                optimizer.step()
                if rank == 0 and (step.number % 20 == 0 or step.number == 1):
                    print(f"step {step.number:4d}  loss {step.loss.item():.4f}", flush=True)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
