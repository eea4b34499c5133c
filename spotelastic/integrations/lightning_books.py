"""What Lightning keeps of a run beside the model: its loops' counters, and its callbacks' state."""

import base64
import json
import math
import warnings
from typing import Any

import torch

from spotelastic.errors import UsageError
from spotelastic.integrations.growing import as_text
from spotelastic.training.data.sampler import ElasticSampler
from spotelastic.training.state import values

HELD = "state_dict"
"""Key of what Lightning's loops save beside their counters."""


def total_steps(trainer: Any) -> int:
    """Return the optimizer's step with which a Trainer ends; 0: it does not know.

    It does not where the number of accumulated batches changes.
    """
    try:
        steps = trainer.estimated_stepping_batches
    except Exception:
        steps = trainer.max_steps
    return int(steps) if 0 < steps < math.inf else 0


class LoopBooks:
    """The Trainer's bookkeeping as an entry of a Checkpointer's state.

    The counters within an epoch follow from the sampler. All ranks have to have the same entry, and
    callbacks may differ, by metrics that are not reduced. So those of the first rank are saved,
    which `share` sends to all others.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._callbacks: dict[str, str] = {}
        self._metrics: dict[str, float] = {}
        self._loaded: dict[str, Any] = {}
        self.stepping = False
        """Whether a step is counted before Lightning has done so for its loggers."""

    def share(self) -> None:
        """Take the state of the first rank's callbacks, and its metrics. All ranks call it."""
        states = {each.state_key: each.state_dict() for each in self._trainer.callbacks}
        kept = {key: data for key, state in states.items() if state and (data := _data(key, state))}
        metrics = {name: float(each) for name, each in self._trainer.callback_metrics.items()}
        told = self._trainer.strategy.broadcast((kept, metrics), src=0)
        self._callbacks, self._metrics = told

    def state_dict(self) -> dict[str, Any]:
        """Return the counters, the callbacks' state, and the metrics that they go by."""
        loops = self._trainer.fit_loop.state_dict()
        loops[HELD].pop("combined_loader", None)
        stepped = self._trainer.fit_loop.epoch_loop._batches_that_stepped + self.stepping
        return {
            "loops": json.dumps(loops),
            "stepped": stepped,
            "callbacks": as_text([self._callbacks, self._metrics]),
        }

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Keep what was saved until the sampler is restored, too."""
        self._loaded = saved

    def go_on(self, sampler: ElasticSampler) -> None:
        """Set the loops to where the sampler is, and load the callbacks' state."""
        saved, trainer = self._loaded, self._trainer
        self._callbacks, self._metrics = json.loads(saved["callbacks"])
        trainer.callback_metrics.update(
            {name: torch.tensor(value) for name, value in self._metrics.items()}
        )
        for callback in trainer.callbacks:
            if callback.state_key in self._callbacks:
                data = base64.b64decode(self._callbacks[callback.state_key])
                callback.load_state_dict(values.decode(callback.state_key, data))
        loop = trainer.fit_loop
        loop.load_state_dict(json.loads(saved["loops"]))
        batches = sampler.consumed // sampler.global_batch
        _set(loop.epoch_progress, sampler.epoch, begun=batches > 0)
        _set(loop.epoch_loop.batch_progress, batches, total=_batches(sampler))
        loop.epoch_loop.batch_progress.is_last_batch = False
        loop.epoch_loop._batches_that_stepped = saved["stepped"]
        if batches:
            loop.update_restart_stage()
            if self.validates_after(batches - 1):
                # Lightning comes to the end of this batch once more, and leaves out its validation.
                loop.epoch_loop._batches_that_stepped -= 1
        else:  # a new epoch, which is begun as any other
            loop.restarting = False
            loop.on_iteration_done()

    def validates_after(self, batch_idx: int) -> bool:
        """Return whether a validation follows the batch, within its epoch."""
        trainer, every = self._trainer, self._trainer.val_check_batch
        if not trainer.enable_validation or every in (None, float("inf")):
            return False
        if trainer.check_val_every_n_epoch is None:
            return bool((trainer.fit_loop.epoch_loop.total_batch_idx + 1) % every == 0)
        due = (trainer.current_epoch + 1) % trainer.check_val_every_n_epoch == 0
        return bool(due and (batch_idx + 1) % every == 0)


def _batches(sampler: ElasticSampler) -> int:
    return sampler.epoch * len(sampler) + sampler.consumed // sampler.global_batch


def _set(progress: Any, done: int, *, begun: bool = False, total: int | None = None) -> None:
    """Set counters to `done`, and to one that has begun."""
    for counts, value in ((progress.current, done), (progress.total, total)):
        number = done if value is None else value
        for name in ("ready", "started"):
            setattr(counts, name, number + begun)
        for name in ("processed", "completed"):
            setattr(counts, name, number)


def _data(key: str, state: Any) -> str:
    try:
        return base64.b64encode(values.encode(key, state)).decode()
    except UsageError as error:
        warnings.warn(f"spotelastic: the state of a callback is not saved: {error}", stacklevel=2)
        return ""
