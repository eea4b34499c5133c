"""The work that `in_place.py` gives to all systems: the same model, the same steps, the same lines.

It needs torch alone, so that peers run it in environments of their own. Each worker appends lines
to `<folder>/<NODE>.steps`: `<what> <monotonic seconds> <pid> <world size> <step> <group>`. `what`
is born (Python has reached the script), built, or step (an optimizer has stepped). `group` changes
with the process group.
"""

import argparse
import os
import time
from collections.abc import Iterator
from pathlib import Path

_output = -1
_device = "cpu"

WIDTH, BATCH = 256, 32
EVERY = 10
"""Steps from one copy of the state to the next, where a system is given none by itself."""
LOOK = 0.01
"""Seconds between two looks whether it is this job's turn."""


def options() -> argparse.Namespace:
    """Parse the arguments, and write the first line."""
    global _output, _device
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--build", type=float, default=0.0, help="seconds that building takes")
    parser.add_argument("--pause", type=float, default=0.03, help="seconds of a step on a device")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--device", default="cpu", help="device of the model")
    parser.add_argument("--backend", default="gloo", help="of the process group")
    parser.add_argument("--loop", choices=["steps", "restore"], default="steps")
    parser.add_argument("--mib", type=int, default=0, help="size of a state that is sharded")
    parser.add_argument("--turns", action="store_true", help="train while `<folder>/turn` says so")
    parsed = parser.parse_args()
    file = parsed.folder / f"{os.environ['NODE']}.steps"
    _device = parsed.device
    _output = os.open(file, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    tell("born")
    return parsed


def tell(what: str, world: int = 0, step: int = 0, group: str = "-") -> None:
    row = f"{what} {time.monotonic():.5f} {os.getpid()} {world} {step} {group}\n"
    os.write(_output, row.encode())


def build(seconds: float, *, compiles: bool):  # the module's type is torch's, imported late
    """Return a model, and an optimizer, after what real scripts do before their first step.

    The seconds stand for what is loaded: weights, caches, data sets. Then the model is compiled, by
    a forward and backward that leave nothing behind.
    """
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    time.sleep(seconds)
    model = layers()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    if compiles:
        model = torch.compile(model)
    model(torch.randn(BATCH, WIDTH, device=_device)).square().mean().backward()
    optimizer.zero_grad()
    tell("built")
    return model, optimizer


def layers():
    """Return the model, which is the same everywhere."""
    import torch

    return torch.nn.Sequential(
        torch.nn.Linear(WIDTH, WIDTH),
        torch.nn.GELU(),
        torch.nn.Linear(WIDTH, WIDTH),
        torch.nn.GELU(),
        torch.nn.Linear(WIDTH, 1),
    ).to(_device)


def train(model, optimizer, pause: float):
    """Make one step, and return its loss. The pause stands for a device that computes."""
    import torch

    time.sleep(pause)
    loss = model(torch.randn(BATCH, WIDTH, device=_device)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


def pauses(given: argparse.Namespace) -> Iterator[float]:
    """Yield the pause of each step. Where jobs take turns, wait for the file that holds it."""
    while True:
        if given.turns:
            turn = (given.folder / "turn").read_text()
            if not turn:
                time.sleep(LOOK)
                continue
            yield float(turn)
        else:
            yield given.pause


if __name__ == "__main__":  # build alone, which leaves compiled code for others
    given = options()
    build(given.build, compiles=given.compile)
