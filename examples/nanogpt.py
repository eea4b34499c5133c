"""Trains a small GPT as nanoGPT does, on tokens in a file on disk: `train.bin` and `val.bin`.

    spotelastic run --standalone --nproc-per-node 2 examples/nanogpt.py

The first worker of each node prepares the files from a text, byte by byte: the file that `--text`
names, or the source of Python's standard library. Batches are drawn at random, by step and row:
they are the same for any number of ranks.
"""

import argparse
import os
import sysconfig
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import spotelastic as se

BLOCK, WIDTH, HEADS, LAYERS, BATCH = 32, 64, 4, 2, 32


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor) -> Tensor:
        rows, length, _ = x.shape
        qkv = self.qkv(self.norm1(x)).view(rows, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(*qkv, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(rows, length, WIDTH))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(256, WIDTH), nn.Embedding(BLOCK, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        return F.linear(self.norm(self.blocks(x)), self.tokens.weight)


def prepare(folder: Path, text: str | None) -> None:
    """Write the tokens, where they are not there yet."""
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / "val.bin").exists():
        return
    library = Path(sysconfig.get_paths()["stdlib"])
    files = [Path(text)] if text else sorted(library.glob("[a-d]*.py"))
    data = b"".join(file.read_bytes() for file in files)
    split = len(data) * 9 // 10
    for name, part in (("train.bin", data[:split]), ("val.bin", data[split:])):
        new = folder / f"{name}.new"
        np.frombuffer(part, np.uint8).astype(np.uint16).tofile(new)
        new.replace(folder / name)  # whole, or not there


def batch_of(file: Path, step: int, device: str) -> tuple[Tensor, Tensor]:
    """Return this rank's rows of a step."""
    tokens = np.memmap(file, np.uint16, mode="r")
    starts = np.random.default_rng(step).integers(len(tokens) - BLOCK - 1, size=BATCH)
    rows = [tokens[s : s + BLOCK + 1] for s in starts[dist.get_rank() :: dist.get_world_size()]]
    both = torch.from_numpy(np.stack(rows).astype(np.int64)).to(device)
    return both[:, :-1], both[:, 1:]


def loss_of(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--text", help="a file to learn from")
    parser.add_argument("--data", type=Path, default=Path("nanogpt-data"))
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()

    dist.init_process_group()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        torch.cuda.set_device(dist.get_node_local_rank())
    torch.manual_seed(0)
    model = DistributedDataParallel(GPT().to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    if os.environ["LOCAL_RANK"] == "0":
        prepare(args.data, args.text)
    dist.barrier()  # the files are there
    with se.Checkpointer({"model": model, "optimizer": optimizer}) as checkpoint:
        for step in checkpoint.steps(args.steps):
            with step:
                batch = batch_of(args.data / "train.bin", step.number, device)
                step.loss = loss_of(model, batch)
                step.loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            if step.finished and step.number % 100 == 0 and dist.get_rank() == 0:
                with torch.no_grad():
                    held_out = loss_of(model.module, batch_of(args.data / "val.bin", 0, device))
                print(f"step {step.number}: {step.loss.item():.3f}, {held_out:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
