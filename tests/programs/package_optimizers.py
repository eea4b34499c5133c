"""Jobs with optimizers and quantized layers of other packages."""

import random
from collections.abc import Callable
from typing import Any

import torch
from programs.running import Running, fitted, perceptron, rows
from torch import nn
from torch.distributed.fsdp import fully_shard


def optimizers(**made: Callable[[Any], torch.optim.Optimizer]) -> Running:
    """Each of a model of its own."""
    state: dict[str, Any] = {}
    trains = []
    for name, make in made.items():
        state[f"{name} model"] = model = perceptron()
        state[name] = optimizer = make(model.parameters())
        if hasattr(optimizer, "train"):
            optimizer.train()
        trains.append(fitted(model, optimizer))

    def train(step: int) -> None:
        for each in trains:
            torch.manual_seed(step)  # some draw, which has to be the same on all ranks
            random.seed(step)
            each(step)

    return Running(state, train)


def sharded_optimizer(make: Callable[[Any], torch.optim.Optimizer]) -> Running:
    model = nn.Sequential(nn.Linear(64, 63), nn.LayerNorm(63), nn.Linear(63, 64))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    optimizer = make(model.parameters())
    return Running({"model": model, "optimizer": optimizer}, fitted(model, optimizer))


def bitsandbytes() -> Running:
    from bitsandbytes import optim

    names = "AdamW8bit", "Lion8bit", "RMSprop8bit", "PagedAdamW32bit", "AdEMAMix8bit"
    return optimizers(**{name: getattr(optim, name) for name in names})


def schedulefree() -> Running:
    import schedulefree

    names = "AdamWScheduleFree", "SGDScheduleFree", "RAdamScheduleFree"
    made = {name: getattr(schedulefree, name) for name in names}
    wrap = schedulefree.ScheduleFreeWrapper
    return optimizers(wrapped=lambda p: wrap(torch.optim.SGD(p, lr=0.1), 0.9), **made)


def lion() -> Running:
    from lion_pytorch import Lion

    return optimizers(lion=Lion)


def pytorch_optimizer() -> Running:
    """Of every kind of state that those have which do not keep plain tensors by parameter."""
    from pytorch_optimizer import load_optimizer

    kinds = (
        *("soap", "shampoo", "kron", "galore", "splus", "dash", "adalite"),
        *(
            "prodigy",
            "dadaptsgd",
            "asgd",
            "gravity",
            "sara",
            "adashift",
            "madgrad",
            "spam",
            "emonavi",
        ),
    )
    return optimizers(**{name: load_optimizer(name) for name in kinds})


def pytorch_optimizer_wrappers() -> Running:
    from pytorch_optimizer import Lookahead

    return optimizers(lookahead=lambda p: Lookahead(torch.optim.AdamW(p), k=2))


def accelerated() -> Running:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    plain_model = perceptron()
    adam = torch.optim.AdamW(plain_model.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(adam, 1, 0.9)
    model, optimizer, scheduler = accelerator.prepare(plain_model, adam, schedule)

    def train(step: int) -> None:
        given = rows(step, 4, 64)
        accelerator.backward((model(given) - given).square().mean())
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()

    return Running({"model": model, "optimizer": optimizer, "scheduler": scheduler}, train)


# -- quantized -----------------------------------------------------------------------------------


def torchao_weights() -> Running:
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    frozen = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64)).requires_grad_(False)
    quantize_(frozen, Int8WeightOnlyConfig())
    model = nn.Sequential(frozen, perceptron())
    optimizer = torch.optim.AdamW(model[1].parameters())
    return Running({"model": model, "optimizer": optimizer}, fitted(model, optimizer))


def torchao_optimizers() -> Running:
    from torchao import optim

    names = "AdamW8bit", "AdamW4bit", "AdamWFp8"
    return optimizers(**{name: getattr(optim, name) for name in names})


def bitsandbytes_layers() -> Running:
    import bitsandbytes as bnb

    frozen = nn.Sequential(
        bnb.nn.Linear4bit(64, 64, compress_statistics=False),
        bnb.nn.Linear8bitLt(64, 64, has_fp16_weights=False),
    )
    frozen = frozen.to("cpu").requires_grad_(False)
    model = nn.Sequential(frozen, perceptron())
    optimizer = bnb.optim.AdamW8bit(model[1].parameters())
    return Running({"model": model, "optimizer": optimizer}, fitted(model, optimizer))


def lion_sharded() -> Running:
    from lion_pytorch import Lion

    return sharded_optimizer(Lion)
