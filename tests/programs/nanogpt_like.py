"""A small GPT in one file, in the style of nanoGPT: settings are globals, rank 0 writes `ckpt.pt`.

It knows nothing of spotelastic. torchrun --nproc-per-node 2 tests/programs/nanogpt_like.py
"""

import math
import os
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from milestones import finished, reached
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

out_dir = "out"
eval_interval = 5
gradient_accumulation_steps = 4
batch_size, block_size = 4, 16
n_layer, n_head, n_embd, vocab_size, dropout = 2, 2, 32, 64, 0.0
learning_rate, min_lr, warmup_iters, max_iters = 1e-2, 1e-3, 3, 20
grad_clip = 1.0


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(n_embd), nn.LayerNorm(n_embd)
        self.c_attn, self.c_proj = nn.Linear(n_embd, 3 * n_embd), nn.Linear(n_embd, n_embd)
        self.mlp = nn.Sequential(
            nn.Linear(n_embd, 4 * n_embd), nn.GELU(), nn.Linear(4 * n_embd, n_embd)
        )

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.c_attn(self.ln_1(x)).split(n_embd, dim=2)
        q, k, v = (z.view(b, t, n_head, c // n_head).transpose(1, 2) for z in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).reshape(b, t, c))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab_size, n_embd), nn.Embedding(block_size, n_embd)
        self.h = nn.ModuleList(Block() for _ in range(n_layer))
        self.ln_f = nn.LayerNorm(n_embd)
        self.lm_head = nn.Linear(n_embd, vocab_size, bias=False)
        self.wte.weight = self.lm_head.weight  # weight tying

    def forward(self, idx, targets):
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1]))
        for block in self.h:
            x = block(x)
        return F.cross_entropy(self.lm_head(self.ln_f(x)).flatten(0, 1), targets.flatten())


def get_batch(iter_num, micro_step, rank):
    """Depends on where training is alone, so that a run that resumes sees what it would have."""
    seed = 1337 + 1000 * iter_num + 10 * micro_step + rank
    ix = torch.randint(
        len(data) - block_size, (batch_size,), generator=torch.Generator().manual_seed(seed)
    )
    x = torch.stack([data[i : i + block_size] for i in ix])
    y = torch.stack([data[i + 1 : i + 1 + block_size] for i in ix])
    return x, y


def get_lr(it):
    if it < warmup_iters:
        return learning_rate * (it + 1) / (warmup_iters + 1)
    ratio = (it - warmup_iters) / (max_iters - warmup_iters)
    return min_lr + 0.5 * (1.0 + math.cos(math.pi * ratio)) * (learning_rate - min_lr)


ddp = int(os.environ.get("RANK", "-1")) != -1
if ddp:
    dist.init_process_group("gloo")
    ddp_rank, ddp_world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    gradient_accumulation_steps //= ddp_world_size
else:
    ddp_rank, ddp_world_size = 0, 1
master_process = ddp_rank == 0
os.makedirs(out_dir, exist_ok=True)  # noqa: PTH103 (as the original has it)
torch.manual_seed(1337)
data = torch.randint(vocab_size, (4096,)).cumsum(0) % vocab_size
model = GPT()
decay = [p for p in model.parameters() if p.dim() >= 2]
nodecay = [p for p in model.parameters() if p.dim() < 2]
optimizer = torch.optim.AdamW(
    [{"params": decay, "weight_decay": 0.1}, {"params": nodecay, "weight_decay": 0.0}],
    lr=learning_rate,
    betas=(0.9, 0.95),
)
iter_num = 0
file = Path(out_dir, "ckpt.pt")
if file.exists():
    checkpoint = torch.load(file)
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    iter_num = checkpoint["iter_num"]
raw_model = model
if ddp:
    model = DDP(model)
    dist.barrier()  # everybody has read, before anybody writes

while iter_num < max_iters:
    reached(iter_num)
    for group in optimizer.param_groups:
        group["lr"] = get_lr(iter_num)
    for micro_step in range(gradient_accumulation_steps):
        last = micro_step == gradient_accumulation_steps - 1
        with model.no_sync() if ddp and not last else nullcontext():
            loss = model(*get_batch(iter_num, micro_step, ddp_rank))
            (loss / gradient_accumulation_steps).backward()
    nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    iter_num += 1
    if iter_num % eval_interval == 0 and master_process:
        print(f"step {iter_num}: train loss {loss.item():.4f}")
        checkpoint = {
            "model": raw_model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "iter_num": iter_num,
        }
        torch.save(checkpoint, f"{file}.new")
        Path(f"{file}.new").replace(file)

finished(raw_model.parameters())
if ddp:
    dist.destroy_process_group()
