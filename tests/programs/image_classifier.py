"""An image classifier with what such programs have: batch norm, augmentation, SGD with momentum, a
schedule, averaged weights, an evaluation after each epoch.

Spotelastic keeps its state. torchrun --nproc-per-node 2 tests/programs/image_classifier.py
"""

import torch
import torch.distributed as dist
from milestones import finished, reached
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset

import spotelastic as se

STEPS, BATCH = 20, 16


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 4),
    )


def images() -> TensorDataset:
    """Four classes: which quarter of the image is bright."""
    generator = torch.Generator().manual_seed(5)
    labels = torch.randint(4, (100,), generator=generator)
    pixels = torch.randn(100, 1, 8, 8, generator=generator)
    for image, label in zip(pixels, labels.tolist(), strict=True):
        row, column = divmod(label, 2)
        image[:, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4] += 2
    return TensorDataset(pixels, labels)


def evaluate(model: nn.Module, data: TensorDataset) -> float:
    model.eval()
    with torch.no_grad():
        pixels, labels = data.tensors
        right = (model(pixels).argmax(1) == labels).float().mean().item()
    model.train()
    return right


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    data = images()
    model = DistributedDataParallel(network())
    averaged = AveragedModel(model.module, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    optimizer = torch.optim.SGD(
        model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4, nesterov=True
    )
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    sampler = se.ElasticSampler(data, BATCH)
    loader = DataLoader(data, batch_sampler=sampler)
    state = {
        "model": model,
        "averaged": averaged,
        "optimizer": optimizer,
        "scheduler": scheduler,
        "data": sampler,
    }
    with se.Checkpointer(state) as checkpoint:
        step = checkpoint.restore()
        while step < STEPS:
            for pixels, labels in loader:
                reached(step)
                # The augmentation depends on the step alone: the generator of a node that vanished
                # is gone with it.
                shift = torch.randint(-1, 2, (), generator=torch.Generator().manual_seed(step))
                pixels = pixels.roll(int(shift), 3)  # noqa: PLW2901
                loss = nn.functional.cross_entropy(model(pixels), labels)
                optimizer.zero_grad()
                (loss * se.microbatches(sampler.batch)[0].weight).backward()
                optimizer.step()
                scheduler.step()
                averaged.update_parameters(model.module)
                step += 1
                checkpoint.step(step, loss=loss.detach())
                if step == STEPS:
                    break
            print(f"step {step}: accuracy {evaluate(averaged, data):.2f}")
    finished([*model.parameters(), *averaged.parameters()])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
