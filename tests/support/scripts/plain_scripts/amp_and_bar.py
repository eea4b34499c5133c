import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

try:
    from tqdm import tqdm
except ImportError:

    def tqdm(things, **kwargs):
        return things


def get_data():
    x = torch.randn(240, 5)
    return TensorDataset(x, x.mean(dim=1, keepdim=True))


def run():
    torch.manual_seed(5)
    device = "cpu"
    model = nn.Sequential(nn.Linear(5, 16), nn.GELU(), nn.Linear(16, 1)).to(device)
    optimizer = optim.AdamW(
        [
            {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": 0.1},
            {"params": [p for p in model.parameters() if p.ndim <= 1], "weight_decay": 0.0},
        ],
        lr=3e-3,
    )
    scaler = torch.amp.GradScaler(device, enabled=False)
    data = get_data()
    dataloader = DataLoader(data, batch_size=24, shuffle=True)
    sched = optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

    history, best = [], None
    for epoch in range(1, 4):
        losses, seen = [], 0
        for batch in tqdm(dataloader, desc=f"epoch {epoch}", disable=True):
            x, y = (t.to(device) for t in batch)
            with torch.autocast(device, dtype=torch.bfloat16):
                pred = model(x)
                loss = ((pred - y) ** 2).mean()
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.item())
            seen += len(x)
        mean = sum(losses) / len(losses)
        history.append(mean)
        best = mean if best is None else min(best, mean)
        print("epoch", epoch, "loss", mean, "of", seen, "best", best)
        sched.step()
    print("all", history, best)


run()
