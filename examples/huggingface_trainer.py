"""Trains under the Hugging Face Trainer, and evaluates after each epoch.

    spotelastic run --standalone --nproc-per-node 2 examples/huggingface_trainer.py

`ElasticTrainer` takes a global batch instead of a batch per device, so that the batch stays what it
is when nodes come and go. On machines without a GPU the Trainer has to be told so (`use_cpu`).
"""

import torch
from torch import nn
from transformers import TrainingArguments

from spotelastic.integrations.transformers import ElasticTrainer


class Regression(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        found = self.layers(x).squeeze(1)
        return {"loss": (found - labels).square().mean(), "logits": found}


def samples(count: int) -> list[dict[str, torch.Tensor]]:
    rows = torch.randn(count, 8)
    return [{"x": row, "labels": row.sum()} for row in rows]


def main() -> None:
    torch.manual_seed(0)
    model, train, held_out = Regression(), samples(256), samples(64)
    arguments = TrainingArguments(
        output_dir="runs/huggingface",
        num_train_epochs=20,
        use_cpu=not torch.cuda.is_available(),
        ddp_find_unused_parameters=False,
        learning_rate=0.01,
        logging_steps=20,
        eval_strategy="epoch",
        metric_for_best_model="loss",
        save_strategy="no",  # spotelastic saves
        report_to=[],
        disable_tqdm=True,
    )
    trainer = ElasticTrainer(
        model, arguments, train_dataset=train, eval_dataset=held_out, global_batch=24
    )
    trainer.train()


if __name__ == "__main__":
    main()
