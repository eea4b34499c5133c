"""
Trains a small language model on characters.
"""
import math
import time

import torch
from torch import nn
from torch.nn import functional as F

# -----------------------------------------------------------------------------
max_iters = 50
batch_size, block_size = 8, 16
learning_rate, warmup = 1e-2, 5
# -----------------------------------------------------------------------------
torch.manual_seed(1337)
text = "in the beginning there was a loop " * 40
chars = sorted(set(text))
data = torch.tensor([chars.index(c) for c in text])


def get_batch():
    ix = torch.randint(len(data) - block_size, (batch_size,))
    x = torch.stack([data[i : i + block_size] for i in ix])
    y = torch.stack([data[i + 1 : i + 1 + block_size] for i in ix])
    return x, y


def get_lr(it):
    return learning_rate * min(1.0, (it + 1) / warmup) * 0.5 * (1 + math.cos(math.pi * it / max_iters))


class Bigram(nn.Module):
    def __init__(self, vocab):
        super().__init__()
        self.table = nn.Embedding(vocab, vocab)

    def forward(self, idx, targets):
        logits = self.table(idx)
        return logits, F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))


model = Bigram(len(chars))
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
t0 = time.time()
iter_num = 0
for _ in range(max_iters):
    for group in optimizer.param_groups:
        group["lr"] = get_lr(iter_num)
    X, Y = get_batch()
    logits, loss = model(X, Y)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    if iter_num % 10 == 0:
        print(f"iter {iter_num}: loss {loss.item():.4f}", time.time() > t0)
    iter_num += 1
