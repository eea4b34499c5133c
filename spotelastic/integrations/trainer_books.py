"""What Hugging Face's Trainer keeps of a run beside the model: its history, and where it is."""

import json
from typing import Any

import torch.distributed as dist

from spotelastic.integrations.growing import as_text

FIELDS = (
    "epoch",
    "global_step",
    "num_input_tokens_seen",
    "total_flos",
    "best_metric",
    "best_global_step",
    "best_model_checkpoint",
)
"""Fields of `TrainerState` that a run goes on with. All others follow from the arguments."""


class Books:
    """The Trainer's bookkeeping as an entry of a Checkpointer's state.

    All ranks have to have the same there, and what they log differs: timings, and what callbacks
    add. So the first rank's history counts, which `share` sends to all others.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._history: list[dict[str, Any]] = list(trainer.state.log_history)
        self._callbacks: list[dict[str, Any]] = [each.state() for each in self._stateful()]

    def share(self) -> None:
        """Take what the first rank has logged, and its callbacks' state. All ranks call it."""
        state, device = self._trainer.state, self._trainer.args.device
        told = [
            state.log_history[len(self._history) :],
            [each.state() for each in self._stateful()],
        ]
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            on_gpu = device.type == "cuda"
            dist.broadcast_object_list(told, src=0, device=device if on_gpu else None)
        self._history += told[0]
        state.log_history = list(self._history)
        self._callbacks = told[1]

    def state_dict(self) -> dict[str, Any]:
        """Return the history, the losses that are not logged yet, and the callbacks' state."""
        trainer = self._trainer
        state = {name: getattr(trainer.state, name, None) for name in FIELDS}
        return {
            "state": json.dumps(state, default=float),
            "history": as_text([self._history, self._callbacks]),
            "loss": float(trainer._tr_loss),
            "total_loss": float(trainer._total_loss_scalar),
            "last_logged": int(trainer._globalstep_last_logged),
        }

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Go on with saved books."""
        trainer = self._trainer
        for name, value in json.loads(saved["state"]).items():
            setattr(trainer.state, name, value)
        self._history, self._callbacks = json.loads(saved["history"])
        trainer.state.log_history = list(self._history)
        trainer._tr_loss.fill_(saved["loss"])
        trainer._total_loss_scalar = saved["total_loss"]
        trainer._globalstep_last_logged = saved["last_logged"]
        for callback, state in zip(self._stateful(), self._callbacks, strict=False):
            for name, value in state.get("attributes", {}).items():
                setattr(callback, name, value)

    def _stateful(self) -> list[Any]:
        from transformers.trainer_callback import ExportableState

        found = self._trainer.callback_handler.callbacks
        return [callback for callback in found if isinstance(callback, ExportableState)]
