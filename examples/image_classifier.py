"""An image classifier as such programs are: epochs, augmentation, momentum, a schedule, validation.

    spotelastic run --standalone --nproc-per-node 2 examples/image_classifier.py --dummy

The lines that make it elastic are marked. `--dummy` makes images up; a folder of tensors
(`train.pt` and `val.pt`, each a tuple of images and labels) is the other source.
"""

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import spotelastic as se  # elastic


def network(classes: int) -> nn.Module:
    layers: list[nn.Module] = []
    for before, after in ((3, 16), (16, 32)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
        layers += [nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, classes))


def dummy(count: int, seed: int) -> TensorDataset:
    """Four classes: which quarter of the image is bright."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(4, (count,), generator=generator)
    images = torch.randn(count, 3, 16, 16, generator=generator)
    for image, label in zip(images, labels.tolist(), strict=True):
        row, column = divmod(label, 2)
        image[:, 8 * row : 8 * row + 8, 8 * column : 8 * column + 8] += 1
    return TensorDataset(images, labels)


def load(args: argparse.Namespace) -> tuple[TensorDataset, TensorDataset]:
    if args.dummy:
        return dummy(1024, 1), dummy(256, 2)
    train, val = (torch.load(Path(args.data) / name) for name in ("train.pt", "val.pt"))
    return TensorDataset(*train), TensorDataset(*val)


def validate(model: nn.Module, data: TensorDataset, device: str) -> float:
    model.eval()
    right = 0
    with torch.no_grad():
        for images, labels in DataLoader(data, 128):
            right += (model(images.to(device)).argmax(1).cpu() == labels).sum().item()
    model.train()
    return right / len(data)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data", nargs="?", default="imagenet")
    parser.add_argument("--dummy", action="store_true")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=64, help="on all ranks together")
    args = parser.parse_args()

    dist.init_process_group()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        torch.cuda.set_device(dist.get_node_local_rank())
    torch.manual_seed(0)
    train, val = load(args)
    model = DistributedDataParallel(network(4).to(device))
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, weight_decay=1e-4)
    sampler = se.ElasticSampler(train, args.batch_size)  # elastic: was a DistributedSampler
    loader = DataLoader(train, batch_sampler=sampler, num_workers=1)
    total = args.epochs * len(sampler)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=total + 1)
    state = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "data": sampler}
    with se.Checkpointer(state) as checkpoint:  # elastic
        batches = checkpoint.batches(loader)  # elastic
        for step in checkpoint.steps(total):  # elastic
            with step:  # elastic
                images, labels = next(batches)
                if torch.rand(()) < 0.5:
                    images = images + 0.1 * torch.randn_like(images)
                weight = se.microbatches(sampler.batch)[0].weight  # elastic: shares may differ
                step.loss = F.cross_entropy(model(images.to(device)), labels.to(device))
                (step.loss * weight).backward()
                optimizer.step()
                optimizer.zero_grad()
                scheduler.step()
            if step.finished and step.number % len(sampler) == 0 and dist.get_rank() == 0:
                right = validate(model.module, val, device)
                print(f"epoch {step.number // len(sampler)}: {right:.1%} right", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
