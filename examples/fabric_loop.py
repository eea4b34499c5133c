"""Trains in a loop of one's own with Lightning Fabric.

    spotelastic run --standalone --nproc-per-node 2 examples/fabric_loop.py

Fabric leaves the loop to the script, so that the lines of a loop in plain PyTorch make it elastic.
Processes outlive lost nodes.
"""

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import spotelastic as se
from spotelastic.integrations.lightning import fabric_workers


def main(steps: int = 200) -> None:
    fabric = L.Fabric(**fabric_workers())
    fabric.launch()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
    model, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters(), lr=0.01))
    samples = torch.randn(256, 8, generator=torch.Generator().manual_seed(1))
    data = TensorDataset(samples, samples.sum(1))
    sampler = se.ElasticSampler(data, global_batch=24)
    with se.Checkpointer({"model": model, "optimizer": optimizer, "data": sampler}) as checkpoint:
        batches = checkpoint.batches(DataLoader(data, batch_sampler=sampler))
        for step in checkpoint.steps(steps):
            with step:
                rows, targets = fabric.to_device(next(batches))
                step.loss = (model(rows).squeeze(1) - targets).square().mean()
                weight = se.microbatches(sampler.batch)[0].weight  # shares may differ
                fabric.backward(step.loss * weight)
                optimizer.step()
                optimizer.zero_grad()
            if step.finished and step.number % 50 == 0:
                fabric.print(f"step {step.number}: loss {step.loss.item():.4f}")


if __name__ == "__main__":
    main()
