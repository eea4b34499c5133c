"""A Trainer class with epochs and snapshots, in the style of PyTorch's minGPT-DDP tutorial.

It knows nothing of spotelastic. torchrun --nproc-per-node 2 tests/programs/mingpt_ddp_like.py
"""

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from milestones import finished, reached
from torch import nn
from torch.distributed import barrier, destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


@dataclass
class TrainerConfig:
    max_epochs: int = 5
    batch_size: int = 8
    snapshot_path: str = "snapshot.pt"
    save_every: int = 1
    grad_norm_clip: float = 1.0


@dataclass
class Snapshot:
    model_state: dict[str, Any]
    optimizer_state: dict[str, Any]
    finished_epoch: int


class CharDataset(Dataset):
    def __init__(self, block_size: int = 12) -> None:
        text = "to be or not to be, that is the question: " * 2
        chars = sorted(set(text))
        self.vocab_size, self.block_size = len(chars), block_size
        self.data = torch.tensor([chars.index(c) for c in text])

    def __len__(self) -> int:
        return 64

    def __getitem__(self, idx):
        chunk = self.data[idx : idx + self.block_size + 1]
        return chunk[:-1], chunk[1:]


class CharModel(nn.Module):
    def __init__(self, vocab: int, width: int = 32) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        layer = nn.TransformerEncoderLayer(width, 2, 64, dropout=0.0, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocab)

    def forward(self, x, targets):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        logits = self.head(self.body(self.embed(x), mask=mask, is_causal=True))
        return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Trainer:
    def __init__(self, config: TrainerConfig, model: CharModel, train_dataset: Dataset) -> None:
        self.config = config
        self.global_rank = int(os.environ["RANK"])
        sampler = DistributedSampler(train_dataset)
        self.train_loader = DataLoader(
            train_dataset, config.batch_size // 2, shuffle=False, sampler=sampler
        )
        self.epochs_run = 0
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        self._load_snapshot()
        self.model = DDP(self.model)
        barrier()  # everybody has read, before anybody writes

    def _load_snapshot(self) -> None:
        try:
            snapshot = Snapshot(**torch.load(self.config.snapshot_path, map_location="cpu"))
        except FileNotFoundError:
            print("Snapshot not found. Training model from scratch")
            return
        self.model.load_state_dict(snapshot.model_state)
        self.optimizer.load_state_dict(snapshot.optimizer_state)
        self.epochs_run = snapshot.finished_epoch
        print(f"Resuming training from snapshot at Epoch {self.epochs_run}")

    def _run_epoch(self, epoch: int) -> None:
        self.train_loader.sampler.set_epoch(epoch)
        for it, (source, targets) in enumerate(self.train_loader):
            reached(epoch * len(self.train_loader) + it)
            loss = self.model(source, targets)
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), self.config.grad_norm_clip)
            self.optimizer.step()
        print(f"[RANK{self.global_rank}] Epoch {epoch} | Train Loss {loss.item():.5f}")

    def _save_snapshot(self, finished_epoch: int) -> None:
        snapshot = Snapshot(
            self.model.module.state_dict(), self.optimizer.state_dict(), finished_epoch
        )
        torch.save(asdict(snapshot), f"{self.config.snapshot_path}.new")
        Path(f"{self.config.snapshot_path}.new").replace(self.config.snapshot_path)
        print(f"Snapshot saved at epoch {finished_epoch}")

    def train(self) -> None:
        for epoch in range(self.epochs_run, self.config.max_epochs):
            self._run_epoch(epoch)
            if self.global_rank == 0 and (epoch + 1) % self.config.save_every == 0:
                self._save_snapshot(epoch + 1)


def main() -> None:
    init_process_group("gloo")
    torch.manual_seed(0)
    dataset = CharDataset()
    trainer = Trainer(TrainerConfig(), CharModel(dataset.vocab_size), dataset)
    trainer.train()
    finished(trainer.model.parameters())
    destroy_process_group()


if __name__ == "__main__":
    main()
