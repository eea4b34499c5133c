"""Trains a transformer that FSDP2 shards over the ranks, in processes that outlive lost nodes.

    spotelastic run --standalone --nproc-per-node 2 examples/fsdp2_transformer.py

`build` shards the model over the ranks that there are. It is called again in the same process when
nodes have come or gone. The task is to copy a row of symbols. The row itself cannot be known: a
loss of 1.29 is the least.
"""

import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import fully_shard

import spotelastic as se

SYMBOLS, LENGTH, WIDTH, LAYERS, BATCH = 16, 8, 64, 2, 64


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.symbols = nn.Embedding(SYMBOLS, WIDTH)
        self.places = nn.Embedding(2 * LENGTH, WIDTH)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.0, batch_first=True)
            for _ in range(LAYERS)
        )
        self.head = nn.Linear(WIDTH, SYMBOLS)

    def forward(self, symbols: torch.Tensor) -> torch.Tensor:
        length = symbols.shape[1]
        x = self.symbols(symbols) + self.places(torch.arange(length, device=symbols.device))
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=symbols.device)
        for block in self.blocks:
            x = block(x, src_mask=mask, is_causal=True)
        return self.head(x)


def build() -> dict:
    torch.manual_seed(0)
    model = Transformer().to("cuda" if torch.cuda.is_available() else "cpu")
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    return {"model": model, "optimizer": torch.optim.AdamW(model.parameters(), lr=3e-3)}


def batch_of(step: int, device: str) -> torch.Tensor:
    """Return this rank's rows of a step, which depend on no number of ranks."""
    generator = torch.Generator().manual_seed(step)
    rows = torch.randint(SYMBOLS, (BATCH, LENGTH), generator=generator).repeat(1, 2)
    return rows[dist.get_rank() :: dist.get_world_size()].to(device)


def main(steps: int) -> None:
    dist.init_process_group()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        torch.cuda.set_device(dist.get_node_local_rank())
    state: dict = {}
    with se.Checkpointer(state, build=build) as checkpoint:
        for step in checkpoint.steps(steps):
            with step:
                rows = batch_of(step.number, device)
                logits = state["model"](rows[:, :-1])
                step.loss = F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
                step.loss.backward()
                state["optimizer"].step()
                state["optimizer"].zero_grad()
            if step.finished and step.number % 50 == 0 and dist.get_rank() == 0:
                print(f"step {step.number}: loss {step.loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
