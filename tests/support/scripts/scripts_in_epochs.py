"""Scripts that train in epochs, for `adapt`."""

from textwrap import indent

BEGIN = """\
import copy
import torch
import torch.distributed as dist
from torch import nn, optim
from torch.utils.data import DataLoader, DistributedSampler
data = load()
model = nn.Linear(2, 1)
optimizer = optim.SGD(model.parameters(), lr=0.1)
scheduler = optim.lr_scheduler.StepLR(optimizer, 1)
loader = DataLoader(data, batch_size=8, shuffle=True)
"""
LAST = BEGIN.splitlines()[-1]
STEP = "loss = model(x).mean()\noptimizer.zero_grad()\nloss.backward()\noptimizer.step()\n"


def epochs(
    step: str = "",
    *,
    before: str = "",
    end: str = "",
    head: str = "",
    after: str = "",
    body: str = STEP,
) -> str:
    """A script that trains in epochs, with these lines added."""
    inner = "for i, x in enumerate(loader):\n" + indent(body + step, "    ")
    loop = "for epoch in range(3):\n" + indent(head + inner + end, "    ")
    return BEGIN + before + loop + after
