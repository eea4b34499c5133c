#!/usr/bin/env python
import torch
from torch.utils.data import DataLoader, IterableDataset


class Stream(IterableDataset):
    def __iter__(self):
        generator = torch.Generator().manual_seed(0)
        for _ in range(320):
            yield torch.randn(4, generator=generator)

    def __len__(self):
        return 320


class Trainer:
    def __init__(self):
        self.losses = []


def train(model, loader, optimizer):
    model.train()
    for x in loader:
        x = x.to("cpu")
        loss = (model(x) - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(loss.item())


torch.manual_seed(11)
autoencoder = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.Linear(2, 4))
train(autoencoder, DataLoader(Stream(), batch_size=16), torch.optim.Adam(autoencoder.parameters()))
