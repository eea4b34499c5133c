import os

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EPOCHS = 4
CKPT = "last.pt"

torch.manual_seed(4)
features = torch.randn(200, 6)
labels = (features.sum(dim=1) > 0).long()
train_dl = DataLoader(TensorDataset(features, labels), 25, shuffle=True)

model = nn.Linear(6, 2)
opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

start_epoch = 0
# resume
if os.path.exists(CKPT):
    ckpt = torch.load(CKPT)
    model.load_state_dict(ckpt["model"])
    opt.load_state_dict(ckpt["opt"])
    start_epoch = ckpt["epoch"] + 1

for epoch in range(start_epoch, EPOCHS):
    total = 0
    for xb, yb in train_dl:
        loss = nn.functional.cross_entropy(model(xb), yb)
        loss.backward()
        opt.step()
        opt.zero_grad()
        total += loss.item()
    print(epoch, total / len(train_dl))
    torch.save({"model": model.state_dict(), "opt": opt.state_dict(), "epoch": epoch}, CKPT)
