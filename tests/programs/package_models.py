"""Jobs with models of transformers, timm and peft, and with averaged models."""

from collections.abc import Callable
from typing import Any

import torch
from programs.running import Running, averaged, fitted, is_sharded, perceptron, rows
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

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
        if not isinstance(model, DistributedDataParallel) and not is_sharded(model):
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
