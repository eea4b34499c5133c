"""Runs of Hugging Face's Trainer and of Lightning's, in this process, that end at chosen steps."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import spotelastic as se

EPOCHS = 4
STEPS_IN_EPOCH = 10
Ended = tuple[list[torch.Tensor], Any]
"""The parameters that a run ended with, and what was kept of it."""


class Cut(Exception):
    """What ends a run."""


def data() -> tuple[torch.Tensor, torch.Tensor]:
    rows = torch.randn(240, 8, generator=torch.Generator().manual_seed(1))
    return rows, rows.sum(1)


class Regression(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Dropout(0.2), nn.Linear(16, 1))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        found = self.layers(x).squeeze(1)
        return {"loss": (found - labels).square().mean(), "logits": found}


def transformers(
    storage: Path, cuts: Iterable[int], every: int, *, resume: bool = False, **arguments: Any
) -> Ended:
    """With `resume` in the form of many scripts, which go on from the Trainer's own checkpoint."""
    from transformers import EarlyStoppingCallback, TrainerCallback, TrainingArguments
    from transformers.trainer_utils import get_last_checkpoint

    from spotelastic.integrations.transformers import ElasticTrainer

    class Cutting(TrainerCallback):  # type: ignore[misc, unused-ignore]
        def __init__(self, at: int) -> None:
            self.at = at

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == self.at:
                raise Cut

    samples = [{"x": x, "labels": y} for x, y in zip(*data(), strict=True)]
    options = {
        "output_dir": str(storage),
        "num_train_epochs": EPOCHS,
        "use_cpu": True,
        "learning_rate": 0.01,
        "logging_steps": 7,
        "eval_strategy": "epoch",
        "metric_for_best_model": "loss",
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
    }
    for cut in (*cuts, -1):
        stopping = EarlyStoppingCallback(100)
        trainer = ElasticTrainer(
            Regression(),
            TrainingArguments(**{**options, **arguments}),
            train_dataset=samples,
            eval_dataset=samples[:40],
            global_batch=24,
            callbacks=[stopping, Cutting(cut)],
            checkpointer={"storage": str(storage), "snapshot_every": every},
        )
        try:
            last = get_last_checkpoint(str(storage)) if resume and storage.exists() else None
            trainer.train(resume_from_checkpoint=last)
        except Cut:
            continue
    logged = [
        {name: value for name, value in each.items() if not name.endswith(("time", "per_second"))}
        for each in trainer.state.log_history
    ]
    patience = stopping.early_stopping_patience_counter
    best = trainer.state.best_metric
    return list(trainer.model.parameters()), (logged, trainer.state.epoch, best, patience)


def _rows() -> list[dict[str, torch.Tensor]]:
    return [{"x": x, "labels": y} for x, y in zip(*data(), strict=True)]


def _arguments(folder: Path, steps: int) -> Any:
    from transformers import TrainingArguments

    return TrainingArguments(
        output_dir=str(folder / "stock"),
        max_steps=steps,
        save_steps=5,
        per_device_train_batch_size=24,
        use_cpu=True,
        learning_rate=0.01,
        report_to=[],
        disable_tqdm=True,
    )


def stock_transformers(folder: Path, steps: int) -> tuple[list[torch.Tensor], list[float]]:
    """Returns parameters and an optimizer's moments after so many steps of a plain Trainer."""
    from transformers import Trainer

    trainer = Trainer(Regression(), _arguments(folder.parent, steps), train_dataset=_rows())
    trainer.train()
    return list(trainer.model.parameters()), _moments(trainer.optimizer)


def _moments(optimizer: Any) -> list[float]:
    return [state["exp_avg"].sum().item() for state in optimizer.state.values()]


@dataclass
class Begun:
    """What an ElasticTrainer began from, and did."""

    begun: list[torch.Tensor] = field(default_factory=list)
    moments: list[float] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    consumed: int = 0


def from_stock(folder: Path, every: int, until: int) -> Begun:
    """Trains to a step from what `stock_transformers` has left, in the form of many scripts."""
    from transformers import TrainerCallback

    from spotelastic.integrations.transformers import ElasticTrainer

    seen = Begun()

    class Sees(TrainerCallback):  # type: ignore[misc, unused-ignore]
        def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            seen.begun = [each.detach().clone() for each in more["model"].parameters()]
            seen.moments = _moments(more["optimizer"])

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            seen.steps.append(state.global_step)

    trainer = ElasticTrainer(
        Regression(),
        _arguments(folder, until),
        train_dataset=_rows(),
        global_batch=24,
        callbacks=[Sees()],
        checkpointer={"storage": str(folder / "storage"), "snapshot_every": every},
    )
    trainer.train(resume_from_checkpoint=True)
    seen.consumed = trainer.elastic.sampler.consumed
    return seen


def compute_loss_of_a_subclass(folder: Path) -> list[set[str]]:
    """Returns the options with which a Trainer's loss was asked for, in each of five steps."""
    from transformers import Trainer

    from spotelastic.integrations.transformers import ElasticMixin

    asked: list[set[str]] = []

    class Fused(Trainer):  # type: ignore[misc, unused-ignore]
        """Has no outputs unless they are asked for, as TRL's with a fused head."""

        def compute_loss(self, model: Any, inputs: Any, **more: Any) -> Any:
            asked.append({*more})
            return super().compute_loss(model, inputs, **more)

    class Elastic(ElasticMixin, Fused):
        pass

    trainer = Elastic(
        Regression(),
        _arguments(folder, 5),
        train_dataset=_rows(),
        global_batch=24,
        checkpointer={"storage": str(folder / "storage")},
    )
    trainer.train()
    return asked


def lightning(storage: Path, cuts: Iterable[int], every: int, **arguments: Any) -> Ended:
    import lightning as L
    from lightning.pytorch.callbacks import EarlyStopping

    from spotelastic.integrations.lightning import ElasticCallback, workers

    seen: dict[tuple[Any, ...], Any] = {}
    dataset = TensorDataset(*data())
    for cut in (*cuts, -1):
        sampler, stopping = se.ElasticSampler(dataset, 24), EarlyStopping("val_loss", patience=100)
        elastic = ElasticCallback(sampler, storage=str(storage), snapshot_every=every)
        options = {
            **workers(),
            "accelerator": "cpu",
            "max_epochs": EPOCHS,
            "callbacks": [elastic, stopping, _lightning_notes(seen, cut)],
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "logger": False,
            **arguments,
        }
        trainer, module = L.Trainer(**options), _lightning_module(elastic)
        loaders = DataLoader(dataset, batch_sampler=sampler), DataLoader(dataset, 80)
        try:
            trainer.fit(module, *loaders)
        except Cut:
            continue
    counts = trainer.current_epoch, trainer.global_step
    best = stopping.state_dict()["best_score"].item()
    return list(module.parameters()), (seen, counts, best, stopping.wait_count)


def _lightning_module(elastic: Any) -> Any:
    import lightning as L

    class Module(L.LightningModule):  # type: ignore[misc, name-defined, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.model = Regression()

        def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
            loss: torch.Tensor = self.model(*batch)["loss"] * elastic.weight
            self.log("loss", loss)
            return loss

        def validation_step(self, batch: list[torch.Tensor], _: int) -> None:
            self.log("val_loss", self.model(*batch)["loss"])

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
            return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)]

    return Module()


def _lightning_notes(seen: dict[tuple[Any, ...], Any], cut: int) -> Any:
    import lightning as L

    class Notes(L.Callback):  # type: ignore[misc, name-defined, unused-ignore]
        """Keeps what an uninterrupted run sees, too: a repeated step has to be as the first. Ends
        the run at the step `cut`.
        """

        def on_train_epoch_start(self, trainer: Any, module: Any) -> None:
            seen["epoch", trainer.current_epoch] = trainer.global_step

        def on_train_batch_end(
            self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int
        ) -> None:
            loss = trainer.callback_metrics["loss"].item()
            loops = trainer.fit_loop.epoch_loop
            counted = trainer.global_step, loops.total_batch_idx, loss
            seen["batch", trainer.current_epoch, batch_idx] = counted
            if trainer.global_step == cut:
                raise Cut

        def on_validation_end(self, trainer: Any, module: Any) -> None:
            if not trainer.sanity_checking:
                loss = trainer.callback_metrics["val_loss"].item()
                seen["validation", trainer.global_step] = loss

        def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
            seen["epoch's end", trainer.current_epoch] = trainer.global_step

    return Notes()
