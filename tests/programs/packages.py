"""Restores states that other packages make, with two ranks, two again, one, and two again.

Arguments: NAME FOLDER. Every world consists of new processes. It checks what it restored against
what the one before wrote down when it saved. If the number of ranks is the same it also trains on,
and must reach exactly the state that the one before reached without an interruption.
"""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import support.training.forked
import torch
from programs import package_data, package_models, package_optimizers
from programs.running import Running, plain
from support.training.drawn_states import difference

import spotelastic as se

WORLDS = 2, 2, 1, 2
AT_ONCE = 2
"""Steps that a world makes before it saves, and again after it."""

CASES: dict[str, tuple[str, Callable[[], Running]]] = {
    "transformers-ddp": ("transformers", package_models.transformers_ddp),
    "transformers-fsdp": ("transformers", package_models.transformers_fsdp),
    "transformers-adafactor": ("transformers", package_models.transformers_adafactor),
    "timm-vit": ("timm", partial(package_models.timm_model, "vit_tiny_patch16_224", "lamb")),
    "timm-resnet": ("timm", partial(package_models.timm_model, "resnet10t", "madgrad")),
    "peft": ("peft", package_models.peft_lora),
    "swa": ("torch", package_models.swa),
    "ema": ("torch", partial(package_models.ema, sharded=False)),
    "ema-fsdp": ("torch", partial(package_models.ema, sharded=True)),
    "torch-ema": ("torch_ema", package_models.torch_ema),
    "bitsandbytes": ("bitsandbytes", package_optimizers.bitsandbytes),
    "bitsandbytes-layers": ("bitsandbytes", package_optimizers.bitsandbytes_layers),
    "schedulefree": ("schedulefree", package_optimizers.schedulefree),
    "lion": ("lion_pytorch", package_optimizers.lion),
    "lion-fsdp": ("lion_pytorch", package_optimizers.lion_sharded),
    "pytorch-optimizer": ("pytorch_optimizer", package_optimizers.pytorch_optimizer),
    "pytorch-optimizer-wrappers": (
        "pytorch_optimizer",
        package_optimizers.pytorch_optimizer_wrappers,
    ),
    "accelerate": ("accelerate", package_optimizers.accelerated),
    "torchao": ("torchao", package_optimizers.torchao_weights),
    "torchao-optimizers": ("torchao", package_optimizers.torchao_optimizers),
    "torchdata": ("torchdata", partial(package_data.torchdata, workers=0, iterable=False)),
    "torchdata-workers": ("torchdata", partial(package_data.torchdata, workers=2, iterable=False)),
    "torchdata-iterable": ("torchdata", partial(package_data.torchdata, workers=1, iterable=True)),
    "datasets": ("datasets", package_data.datasets),
    "torchmetrics": ("torchmetrics", package_data.torchmetrics),
}


def live(rank: int, world: int, name: str, folder: Path, number: int) -> None:
    """Restore what the world before saved, check it, train, save, and write down what it is."""
    torch.manual_seed(number)
    running = CASES[name][1]()
    content = running.content or partial(plain, running.state)
    before, begun = WORLDS[number - 1] if number else 0, AT_ONCE * number
    steps = range(begun + 1, begun + AT_ONCE + 1)
    with se.Checkpointer(
        running.state, storage=str(folder / "run"), checkpoint_every=1
    ) as checkpoint:
        assert checkpoint.restore() == begun
        if number:
            check(content(), told(folder, f"saved-{number}", before, running, rank, world))
        for step in steps:
            running.train(step)
        if before == world:
            check(content(), told(folder, f"after-{number}", before, running, rank, world))
        checkpoint.step(steps[-1])
        write(folder, f"saved-{number + 1}", rank, content())
    for step in steps:
        running.train(step + AT_ONCE)
    write(folder, f"after-{number + 1}", rank, content())


def write(folder: Path, what: str, rank: int, content: Any) -> None:
    torch.save(content, folder / f"{what}-{rank}.pt")


def told(folder: Path, what: str, before: int, running: Running, rank: int, world: int) -> Any:
    def of(other: int) -> Any:
        return torch.load(folder / f"{what}-{other}.pt", weights_only=False)

    if before == world or running.elsewhere is None:
        return of(rank if before == world else 0)
    return running.elsewhere([of(other) for other in range(before)], rank, world)


def check(found: Any, expected: Any) -> None:
    differs = difference(found, expected)
    assert not differs, differs


def main() -> None:
    name, folder = sys.argv[1], Path(sys.argv[2])
    __import__(CASES[name][0])
    for number, world in enumerate(WORLDS):
        support.training.forked.run(world, live, name, folder, number, within=300.0)


if __name__ == "__main__":
    main()
