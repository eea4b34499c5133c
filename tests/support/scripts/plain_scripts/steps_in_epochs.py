import torch
from torch import nn
from torch.optim import SGD
from torch.optim.swa_utils import AveragedModel

torch.manual_seed(9)
steps_per_epoch = 12
model = nn.Linear(10, 10)
ema_model = AveragedModel(model)
optimizer = SGD(model.parameters(), 0.1)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=3)

for _ in range(3):
    correct = 0
    for i in range(steps_per_epoch):
        x = torch.randn(64, 10)
        logits = model(x)
        loss = nn.functional.cross_entropy(logits, x.argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        ema_model.update_parameters(model)
        correct += (logits.argmax(1) == x.argmax(1)).sum().item()
    scheduler.step()
    print("accuracy", correct / (64 * steps_per_epoch))
