"""Fits a sine."""

import argparse
import math

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=32)
    return parser.parse_args()


def main():
    args = parse_args()
    torch.manual_seed(1)
    x = torch.rand(512, 1) * 2 * math.pi
    dataset = TensorDataset(x, torch.sin(x))
    train_loader = DataLoader(dataset, batch_size=args.batch_size, shuffle=True, num_workers=0)

    net = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 1))
    criterion = nn.MSELoss()
    optim = torch.optim.Adam(net.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optim, step_size=2, gamma=0.5)

    for epoch in range(args.epochs):
        net.train()
        running = 0.0
        for i, (inputs, targets) in enumerate(train_loader):
            optim.zero_grad()
            outputs = net(inputs)
            loss = criterion(outputs, targets)
            loss.backward()
            optim.step()

            running += loss.item()
            if i % 8 == 7:  # every 8 batches
                print(f"[{epoch + 1}, {i + 1:3d}] loss: {running / 8:.4f}")
                running = 0.0
        scheduler.step()
        print("lr", scheduler.get_last_lr()[0])


if __name__ == "__main__":
    main()
