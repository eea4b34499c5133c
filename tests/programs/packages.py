"""NAME FOLDER: states that other packages make, saved by two ranks, restored by two, by one, and by
two again, each time by new processes.

Every world checks what it restored against what the one before wrote down when it saved. Where the
number of ranks is the same it also trains on, and must come to where the one before came without an
interruption, bit for bit.
"""

import random
import sys
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import support.forked
import torch
import torch.distributed as dist
from support.drawn import difference
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

import spotelastic as se

WORLDS = 2, 2, 1, 2
AT_ONCE = 2
"""Steps that a world makes before it saves, and again after it."""


class Running(NamedTuple):
    state: dict[str, Any]
    train: Callable[[int], None]
    """One step, of this number."""
    content: Callable[[], Any] | None = None
    """In place of what the entries of the state say of themselves."""
    elsewhere: Callable[[list[Any], int, int], Any] | None = None
    """What a rank has on another number of ranks, of what all ranks had."""


def plain(value: Any) -> Any:
    """A copy in plain containers, whatever the order of keys; of what is sharded all of it."""
    if isinstance(value, DistributedDataParallel):
        return plain(value.module)
    if isinstance(value, se.PerRank):
        return plain(value.value)
    if isinstance(value, torch.Generator):
        return value.get_state()
    if isinstance(value, DTensor):
        return plain(value.full_tensor())
    if isinstance(value, Tensor):
        if not is_traceable_wrapper_subclass(value):
            return value.detach().clone()
        names, context = value.__tensor_flatten__()
        inner = {name: plain(getattr(value, name)) for name in names}
        return {"class": type(value).__name__, "context": repr(context), **inner}
    if hasattr(value, "state_dict"):
        return plain(value.state_dict())
    if isinstance(value, Mapping):
        found = {str(k): plain(value[k]) for k in sorted(value, key=str)}
        return {k: kept for k, kept in found.items() if not isinstance(kept, dict) or kept}
    if isinstance(value, list | tuple | deque):
        return [*map(plain, value)]
    return value


def rows(step: int, *shape: int) -> Tensor:
    """This rank's, of a step."""
    rank = dist.get_rank() if dist.is_initialized() else 0
    made = torch.Generator().manual_seed(1000 * step + rank)
    return torch.rand(*shape, generator=made)


def averaged(model: nn.Module) -> None:
    """The gradients, over all ranks, without a wrapper, and the first rank's buffers."""
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
    for buffer in model.buffers():
        dist.broadcast(buffer, 0)


def perceptron() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU(), nn.Dropout(0.1), nn.Linear(64, 64)
    )


def fitted(
    model: nn.Module, *optimizers: torch.optim.Optimizer, then: Callable[[int], None] | None = None
) -> Callable[[int], None]:
    def train(step: int) -> None:
        given = rows(step, 4, 64)
        (model(given) - given).square().mean().backward()
        if not isinstance(model, DistributedDataParallel) and not _is_sharded(model):
            averaged(model)
        for optimizer in optimizers:
            optimizer.step()
        for optimizer in optimizers:
            optimizer.zero_grad()
        if then is not None:
            then(step)

    return train


def _is_sharded(model: nn.Module) -> bool:
    return any(isinstance(parameter, DTensor) for parameter in model.parameters())


# -- transformers, timm, peft --------------------------------------------------------------------


def gpt() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=2, n_head=2)
    )


def on_tokens(
    model: nn.Module, optimizer: torch.optim.Optimizer, scheduler: Any = None
) -> Callable[[int], None]:
    def train(step: int) -> None:
        tokens = (rows(step, 2, 8) * 64).long()
        model(input_ids=tokens, labels=tokens).loss.backward()
        if not isinstance(model, DistributedDataParallel) and not _is_sharded(model):
            averaged(model)
        optimizer.step()
        optimizer.zero_grad()
        if scheduler is not None:
            scheduler.step()

    return train


def transformers_ddp() -> Running:
    from transformers import get_cosine_schedule_with_warmup

    model = DistributedDataParallel(gpt())
    decayed = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups)
    scheduler = get_cosine_schedule_with_warmup(optimizer, 2, 10)
    state = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    return Running(state, on_tokens(model, optimizer, scheduler))


def transformers_fsdp() -> Running:
    from transformers import LlamaConfig, LlamaForCausalLM

    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=64,
            hidden_size=16,
            intermediate_size=24,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            tie_word_embeddings=True,
        )
    )
    for layer in model.model.layers:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters())
    return Running({"model": model, "optimizer": optimizer}, on_tokens(model, optimizer))


def transformers_adafactor() -> Running:
    from transformers import Adafactor

    model = gpt()
    optimizer = Adafactor(model.parameters())
    return Running({"model": model, "optimizer": optimizer}, on_tokens(model, optimizer))


def peft_lora() -> Running:
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=2, target_modules=["c_attn"], lora_dropout=0.1, fan_in_fan_out=True)
    model = get_peft_model(gpt(), config)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
    return Running({"model": model, "optimizer": optimizer}, on_tokens(model, optimizer))


def timm_model(name: str, optimizer_name: str) -> Running:
    import timm
    from timm.optim import create_optimizer_v2
    from timm.scheduler import CosineLRScheduler
    from timm.utils import ModelEmaV3

    small = {"img_size": 32, "patch_size": 16, "embed_dim": 24, "depth": 2, "num_heads": 2}
    model = timm.create_model(name, num_classes=3, **(small if "vit" in name else {}))
    ema = ModelEmaV3(model, decay=0.9, use_warmup=True)
    wrapped = DistributedDataParallel(model)
    optimizer = create_optimizer_v2(model, optimizer_name, lr=0.01)
    scheduler = CosineLRScheduler(optimizer, 10, warmup_t=2, t_in_epochs=False)

    def train(step: int) -> None:
        wrapped(rows(step, 2, 3, 32, 32)).square().mean().backward()
        averaged(model)
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step_update(step)
        ema.update(model, step=step)

    state = {"model": wrapped, "optimizer": optimizer, "scheduler": scheduler, "ema": ema}
    return Running(state, train)


# -- averaged models -----------------------------------------------------------------------------


def swa() -> Running:
    from torch.optim.swa_utils import SWALR, AveragedModel, update_bn

    model = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64))
    averages = AveragedModel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = SWALR(optimizer, swa_lr=0.05, anneal_epochs=3)

    def average(step: int) -> None:
        schedule.step()
        averages.update_parameters(model)
        update_bn([torch.ones(4, 64) * torch.arange(4).unsqueeze(1)], averages)

    state = {"model": model, "optimizer": optimizer, "swa": averages, "schedule": schedule}
    return Running(state, fitted(model, optimizer, then=average))


def ema(*, sharded: bool) -> Running:
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

    model = nn.Sequential(nn.Linear(64, 63), nn.LayerNorm(63), nn.Linear(63, 64))
    averages = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
    if sharded:
        fully_shard(model)
        fully_shard(averages.module)
    optimizer = torch.optim.AdamW(model.parameters())
    state = {"model": model, "ema": averages, "optimizer": optimizer}
    then = lambda _: averages.update_parameters(model)  # noqa: E731
    return Running(state, fitted(model, optimizer, then=then))


def torch_ema() -> Running:
    from torch_ema import ExponentialMovingAverage

    model = perceptron()
    optimizer = torch.optim.AdamW(model.parameters())
    averages = ExponentialMovingAverage(model.parameters(), decay=0.9)
    state = {"model": model, "optimizer": optimizer, "ema": averages}
    return Running(state, fitted(model, optimizer, then=lambda _: averages.update()))


# -- optimizers ----------------------------------------------------------------------------------


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


# -- data and metrics ----------------------------------------------------------------------------


class Endless:
    """A loader, epoch after epoch."""

    def __init__(self, loader: Any) -> None:
        self.loader, self.batches, self.seen = loader, iter(loader), []

    def train(self, step: int) -> None:
        batch = next(self.batches, None)
        if batch is None:
            self.batches = iter(self.loader)
            batch = next(self.batches)
        self.seen = plain(batch)

    def state_dict(self) -> Any:
        return {"loader": self.loader.state_dict(), "seen": self.seen}

    def load_state_dict(self, state: Any) -> None:
        self.loader.load_state_dict(state["loader"])
        self.batches, self.seen = iter(self.loader), state["seen"]


def loaded(loader: Any) -> Running:
    """What counts is which batches come next."""
    endless = Endless(loader)
    kept = se.PerRank(endless, lambda saved, rank, world: saved[rank % len(saved)])
    return Running(
        {"loader": kept},
        endless.train,
        lambda: endless.seen,
        lambda saved, rank, world: saved[rank % len(saved)],
    )


class Numbers(torch.utils.data.IterableDataset[int]):
    """Resumes where it was, as what reads files does."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Any:
        while self.at < 50:
            self.at += 1
            yield self.at
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def torchdata(*, workers: int, iterable: bool) -> Running:
    from torchdata.stateful_dataloader import StatefulDataLoader

    if iterable:
        return loaded(StatefulDataLoader(Numbers(), batch_size=3, num_workers=workers))
    torch.manual_seed(dist.get_rank())
    return loaded(
        StatefulDataLoader(range(20), batch_size=3, shuffle=True, num_workers=workers)  # type: ignore[arg-type]
    )


def datasets() -> Running:
    from datasets import Dataset

    return loaded(
        Dataset.from_dict({"x": [*range(40)]})
        .to_iterable_dataset(num_shards=4)
        .shuffle(seed=dist.get_rank(), buffer_size=4)
    )


def torchmetrics() -> Running:
    from torchmetrics import MeanMetric, MetricCollection
    from torchmetrics.aggregation import CatMetric
    from torchmetrics.classification import MulticlassAccuracy

    metrics = MetricCollection(
        {"mean": MeanMetric(), "all": CatMetric(), "accuracy": MulticlassAccuracy(4)},
        compute_groups=False,
    )
    metrics.persistent(True)

    def train(step: int) -> None:
        drawn = rows(step, 5)
        metrics["mean"].update(drawn)
        metrics["all"].update(drawn)
        metrics["accuracy"].update((drawn * 4).long(), (rows(step + 1, 5) * 4).long())

    return Running(
        {"metrics": se.PerRank(metrics, lambda saved, rank, world: saved[0])},
        train,
        elsewhere=lambda saved, rank, world: saved[0],
    )


def lion_sharded() -> Running:
    from lion_pytorch import Lion

    return sharded_optimizer(Lion)


CASES: dict[str, tuple[str, Callable[[], Running]]] = {
    "transformers-ddp": ("transformers", transformers_ddp),
    "transformers-fsdp": ("transformers", transformers_fsdp),
    "transformers-adafactor": ("transformers", transformers_adafactor),
    "timm-vit": ("timm", partial(timm_model, "vit_tiny_patch16_224", "lamb")),
    "timm-resnet": ("timm", partial(timm_model, "resnet10t", "madgrad")),
    "peft": ("peft", peft_lora),
    "swa": ("torch", swa),
    "ema": ("torch", partial(ema, sharded=False)),
    "ema-fsdp": ("torch", partial(ema, sharded=True)),
    "torch-ema": ("torch_ema", torch_ema),
    "bitsandbytes": ("bitsandbytes", bitsandbytes),
    "bitsandbytes-layers": ("bitsandbytes", bitsandbytes_layers),
    "schedulefree": ("schedulefree", schedulefree),
    "lion": ("lion_pytorch", lion),
    "lion-fsdp": ("lion_pytorch", lion_sharded),
    "pytorch-optimizer": ("pytorch_optimizer", pytorch_optimizer),
    "pytorch-optimizer-wrappers": ("pytorch_optimizer", pytorch_optimizer_wrappers),
    "accelerate": ("accelerate", accelerated),
    "torchao": ("torchao", torchao_weights),
    "torchao-optimizers": ("torchao", torchao_optimizers),
    "torchdata": ("torchdata", partial(torchdata, workers=0, iterable=False)),
    "torchdata-workers": ("torchdata", partial(torchdata, workers=2, iterable=False)),
    "torchdata-iterable": ("torchdata", partial(torchdata, workers=1, iterable=True)),
    "datasets": ("datasets", datasets),
    "torchmetrics": ("torchmetrics", torchmetrics),
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
        support.forked.run(world, live, name, folder, number, within=300.0)


if __name__ == "__main__":
    main()
