"""Benchmarks saves from a GPU: how fast tensors reach a slot, and what training loses meanwhile.

The limit is a copy of the same bytes into memory that torch has page-locked itself. A slot is
shared memory that the worker page-locks. Without a GPU the benchmark says so and does nothing.
"""

import argparse
import tempfile
import time
from collections.abc import Callable

import torch
from common.measuring import conduct
from jobs.node import node
from jobs.states import Shape, State

import spotelastic as se


def best(work: Callable[[], object], times: int = 5) -> float:
    """Return the best seconds; the device is idle before and after."""
    took = []
    for _ in range(times):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        work()
        torch.cuda.synchronize()
        took.append(time.perf_counter() - begun)
    return min(took)


def copied(sources: State, *, pinned: bool) -> float:
    """Return seconds of a copy into existing, warm memory."""
    tensors = list(sources.values())
    targets = [torch.empty(t.shape, dtype=t.dtype, pin_memory=pinned).fill_(0) for t in tensors]
    return best(lambda: torch._foreach_copy_(targets, tensors, non_blocking=True))


def saved(state: State, steps: int = 6) -> tuple[float, float]:
    """Return the seconds that a save delays training: the first into each slot, and later ones."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as storage, node(storage) as here:
        here.begin("r1")
        with se.Checkpointer(state) as checkpoint:
            here.make_ready(checkpoint)
            stalls = []
            for step in range(2, steps + 2):
                torch.cuda.synchronize()
                checkpoint.step(step)
                stalls.append(checkpoint.stall)
    return stalls[0], min(stalls[1:])


def computed(state: State, device: torch.device) -> tuple[float, float]:
    """Return the seconds of some work alone, and beside a copy on another stream."""
    weights = torch.rand(4096, 4096, device=device)
    tensors = list(state.values())
    targets = [torch.empty(t.shape, dtype=t.dtype, pin_memory=True) for t in tensors]
    side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def work() -> None:
        for _ in range(100):
            torch.mm(weights, weights)

    def both() -> None:
        with torch.cuda.stream(side):
            torch._foreach_copy_(targets, tensors, non_blocking=True)
        work()

    work()
    return best(work), best(both)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, nargs="+", default=[1024, 4096])
    parser.add_argument("--tensors", type=int, nargs="+", default=[60, 4000])
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("no GPU: nothing was measured")
        return
    device = torch.device("cuda", 0)
    print(torch.cuda.get_device_name(device))
    for shape in (Shape(mib << 20, count) for mib in options.mib for count in options.tensors):
        state = {name: tensor.to(device) for name, tensor in shape.make().items()}
        limit, loose = copied(state, pinned=True), copied(state, pinned=False)
        first, later = saved(state)
        alone, beside = computed(state, device)
        gigabytes = shape.nbytes / 1e9
        print(f"\n{shape.nbytes >> 20} MiB in {shape.tensors} tensors")
        print(f"  into locked memory    {gigabytes / limit:6.1f} GB/s (the limit)")
        print(f"  into plain memory     {gigabytes / loose:6.1f} GB/s")
        print(f"  into a slot           {gigabytes / later:6.1f} GB/s, {limit / later:.0%} of the "
              f"limit; the first save {gigabytes / first:.1f} GB/s")  # fmt: skip
        print(f"  compute beside a copy {alone / beside:6.0%} of its speed alone")


if __name__ == "__main__":
    conduct(main)
