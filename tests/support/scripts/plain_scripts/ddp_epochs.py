import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

# torchrun --nproc_per_node=2 ddp_epochs.py


def setup():
    dist.init_process_group("gloo")
    return int(os.environ.get("LOCAL_RANK", 0))


def main(epochs: int = 3, batch_size: int = 16):
    local_rank = setup()
    torch.manual_seed(3)
    x = torch.randn(256, 4)
    dataset = TensorDataset(x, x @ torch.ones(4, 1))
    sampler = DistributedSampler(dataset, shuffle=True, seed=7)
    loader = DataLoader(
        dataset,
        batch_size=batch_size,
        sampler=sampler,
        drop_last=True,
    )

    model = DDP(nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.0)

    seen = 0
    for epoch in range(epochs):
        sampler.set_epoch(epoch)  # another order in each epoch
        for x, y in loader:
            loss = nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            seen += 1
        if dist.get_rank() == 0:
            print(f"epoch {epoch} on {local_rank} after {seen} steps")

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
