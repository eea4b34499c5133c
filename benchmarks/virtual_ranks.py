"""Benchmarks virtual ranks: what a step takes with them, and under plain DDP and FSDP2, and the
bytes sent.

Four ranks on this machine train the same model in all ways, in turn, and with an audit of each
step. DDP and FSDP2 accumulate as many microbatches as there are virtual ranks for each rank. FSDP2
exchanges gradients in each.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import spotelastic as se
from spotelastic.model.in_place import AUDIT
from spotelastic.training.data.sum_tree import cuts, parts_of, shares
from spotelastic.training.exact.pieces import Pieces, Trained
from spotelastic.training.in_place.auditing import copies
from spotelastic.training.state.rank_agreement import digest_of_tensor
from spotelastic.training.state.state import State

SIZES = {"0.4 M": (128, 2), "3 M": (256, 4), "25 M": (512, 8)}
"""Width and layers of a model, by its parameters."""
WORDS, LENGTH, ROWS = 256, 32, 2
"""Words, words of a sample, and samples of a virtual rank."""


class Net(nn.Module):
    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(WORDS, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.out = nn.Linear(width, WORDS)

    def forward(self, words: Tensor) -> Tensor:
        found = self.out(self.layers(self.words(words[:, :-1])))
        return nn.functional.cross_entropy(found.flatten(0, 1), words[:, 1:].flatten())


def sharded(width: int, layers: int) -> Any:
    model = Net(width, layers)
    for layer in model.layers.layers:
        fully_shard(layer)
    return fully_shard(model)


def plain(ddp: Any, words: Tensor, pieces: int) -> Callable[[], None]:
    optimizer = torch.optim.AdamW(ddp.parameters(), 1e-3)

    def step() -> None:
        optimizer.zero_grad()
        for number in range(pieces):
            waits = isinstance(ddp, DistributedDataParallel) and number < pieces - 1
            with ddp.no_sync() if waits else nullcontext():
                (ddp(words[number * ROWS : (number + 1) * ROWS]) / pieces).backward()
        optimizer.step()

    return step


def exact(ddp: Any, words: Tensor, virtual_ranks: int, audits: str = "") -> Callable[[], None]:
    """Return a step, of which one in `audits` is audited; empty: none."""
    optimizer = torch.optim.AdamW(ddp.parameters(), 1e-3)
    batch = ROWS * virtual_ranks
    os.environ[AUDIT] = audits
    sampler = se.ElasticSampler(batch, batch, virtual_ranks=virtual_ranks)
    wrappers = [ddp] if isinstance(ddp, DistributedDataParallel) else []
    state = State({"model": ddp, "optimizer": optimizer})

    def compare(_: object, told: Sequence[bytes]) -> None:
        found: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(found, (*told, copies(state)))

    trained = Trained([ddp], [optimizer], wrappers)
    sampler.pieces = Pieces(sampler, lambda: trained, compare, digest_of_tensor)

    def step() -> None:
        optimizer.zero_grad()
        for micro in sampler.microbatches():
            (ddp(words[micro.rows]) * micro.weight).backward()
        optimizer.step()

    return step


def work(rank: int, world: int, virtual_ranks: int, steps: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world
    )
    for name, (width, layers) in SIZES.items():
        mine = virtual_ranks // world
        words = torch.randint(WORDS, ((mine + 1) * ROWS, LENGTH))  # one more to be audited
        ways = {
            "plain": plain(DistributedDataParallel(Net(width, layers)), words, mine),
            "exact": exact(DistributedDataParallel(Net(width, layers)), words, virtual_ranks),
            "plain FSDP2": plain(sharded(width, layers), words, mine),
            "exact FSDP2": exact(sharded(width, layers), words, virtual_ranks),
            "audited": exact(
                DistributedDataParallel(Net(width, layers)), words, virtual_ranks, audits="1"
            ),
        }
        taken: dict[str, list[float]] = {way: [] for way in ways}
        for number in range(steps):
            for way, step in ways.items():
                dist.barrier()
                begun = time.perf_counter()
                step()
                if number > 1:  # buckets are rebuilt, and moments made
                    taken[way].append(time.perf_counter() - begun)
        if rank == 0:
            for wrapper, way in (("DDP", ""), ("FSDP2", " FSDP2")):
                plainly, exactly = (
                    statistics.median(taken[how + way]) for how in ("plain", "exact")
                )
                print(
                    f"{name} parameters: {plainly * 1e3:.1f} ms a step under {wrapper}, "
                    f"{exactly * 1e3:.1f} ms with virtual ranks: {exactly / plainly - 1:+.1%}",
                    flush=True,
                )
            more = statistics.median(taken["audited"]) / statistics.median(taken["exact"]) - 1
            print(f"an audit of a step: {more:+.0%}, at 1/1000 {more / 1000:.3%} of the run")
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--virtual-ranks", type=int, default=16)
    parser.add_argument("--steps", type=int, default=30)
    options = parser.parse_args()
    virtual_ranks = options.virtual_ranks
    for ranks in range(2, 9):
        parts = [len(parts_of(own)) for own in shares(cuts(virtual_ranks, ranks))]
        sent = (sum(parts) / ranks + 1) / 2
        print(f"{ranks} ranks send {sent:.2f} times what a ring sends")
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(  # type: ignore[no-untyped-call]
            work, (options.ranks, virtual_ranks, options.steps, str(Path(folder))), options.ranks
        )


if __name__ == "__main__":
    main()
