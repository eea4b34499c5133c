import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()
    loss = nn.functional.l1_loss(model(x), y)
    loss.backward()
    optimizer.step()
    return loss


def build_model(width=16):
    return nn.Sequential(nn.Linear(3, width), nn.ReLU(), nn.Linear(width, 1))


if __name__ == "__main__":
    torch.manual_seed(6)
    x = torch.randn(300, 3)
    ds = TensorDataset(x, x.prod(dim=1, keepdim=True))
    dl = DataLoader(ds, batch_size=20, shuffle=True, drop_last=True)
    model = build_model()
    optimizer = torch.optim.Adam(model.parameters())
    losses = []
    for n, batch in enumerate(dl, start=1):
        loss = train_step(model, optimizer, batch)
        losses.append(loss.item())
        if n % 5 == 0:
            print(n, sum(losses) / len(losses))
