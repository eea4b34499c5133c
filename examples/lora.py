"""Fine-tunes a language model with LoRA, and saves the adapters alone.

    pip install peft transformers
    spotelastic run --standalone --nproc-per-node 2 examples/lora.py

The base model comes from where it always does, so that neither a checkpoint nor a node's memory has
another copy of it. Here it is a small one with random weights; `from_pretrained` is the usual way.
"""

import sys

import torch
import torch.distributed as dist
from peft import LoraConfig, get_peft_model
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel

import spotelastic as se


def base_model() -> nn.Module:
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=64,
        n_positions=16,
        n_embd=48,
        n_layer=2,
        n_head=2,
        bos_token_id=0,
        eos_token_id=0,
    )
    return GPT2LMHeadModel(config)


def sentences() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return list(torch.randint(64, (128, 16), generator=generator).cumsum(1) % 64)


def main(steps: int) -> None:
    dist.init_process_group()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        torch.cuda.set_device(dist.get_node_local_rank())
    lora = LoraConfig(r=8, lora_alpha=16, target_modules=["c_attn"], fan_in_fan_out=True)
    tuned = get_peft_model(base_model(), lora).to(device)
    trained = {name: value for name, value in tuned.named_parameters() if value.requires_grad}
    # A module of the very parameters that are trained.
    adapters = nn.ParameterDict({name.replace(".", "/"): each for name, each in trained.items()})
    model = DistributedDataParallel(tuned)
    optimizer = torch.optim.AdamW(adapters.parameters(), lr=1e-2)
    data = sentences()
    sampler = se.ElasticSampler(data, global_batch=16)
    state = {"adapters": adapters, "optimizer": optimizer, "data": sampler}
    with se.Checkpointer(state) as checkpoint:
        batches = checkpoint.batches(DataLoader(data, batch_sampler=sampler))
        for step in checkpoint.steps(steps):
            with step:
                rows = next(batches).to(device)
                step.loss = model(input_ids=rows, labels=rows).loss
                (step.loss * se.microbatches(sampler.batch)[0].weight).backward()
                optimizer.step()
                optimizer.zero_grad()
            if step.finished and step.number % 25 == 0 and dist.get_rank() == 0:
                print(f"step {step.number}: loss {step.loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
