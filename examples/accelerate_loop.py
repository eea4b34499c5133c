"""Trains in a loop of one's own with accelerate.

    spotelastic run --standalone --nproc-per-node 2 examples/accelerate_loop.py

Whatever is prepared, or registered for checkpointing, is saved and restored. `pieces` yields this
rank's share of each step, however many ranks there are.
"""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import spotelastic as se
from spotelastic.integrations.accelerate import checkpointer, pieces


def main(steps: int = 200) -> None:
    accelerator = Accelerator(cpu=not torch.cuda.is_available(), gradient_accumulation_steps=2)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    samples = torch.randn(256, 8)
    data = TensorDataset(samples, samples.sum(1))
    sampler = se.ElasticSampler(data, global_batch=24)
    model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)
    with checkpointer(accelerator, sampler) as checkpoint:
        batches = checkpoint.batches(DataLoader(data, batch_sampler=sampler))
        for step in checkpoint.steps(steps):
            with step:
                for (rows, targets), weight in pieces(accelerator, next(batches), sampler):
                    step.loss = (model(rows).squeeze(1) - targets).square().mean()
                    accelerator.backward(step.loss * weight)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            if step.finished and step.number % 50 == 0:
                accelerator.print(f"step {step.number}: loss {step.loss.item():.4f}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
