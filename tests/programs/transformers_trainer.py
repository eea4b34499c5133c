"""A small GPT-2 under transformers.Trainer, with the Trainer's own checkpoints.

It knows nothing of spotelastic. torchrun --nproc-per-node 2 tests/programs/transformers_trainer.py
"""

from pathlib import Path

from milestones import finished, reached
from small_language_model import gpt2, sentences
from transformers import Trainer, TrainerCallback, TrainingArguments, set_seed
from transformers.trainer_utils import get_last_checkpoint

STEPS = 20


class Milestones(TrainerCallback):
    def on_step_begin(self, args, state, control, **_) -> None:
        reached(state.global_step)


def main() -> None:
    set_seed(0)
    arguments = TrainingArguments(
        output_dir="transformers",
        max_steps=STEPS,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        learning_rate=5e-3,
        warmup_steps=3,
        save_steps=5,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
    )
    trainer = Trainer(gpt2(), arguments, train_dataset=sentences(), callbacks=[Milestones()])
    # The first rank makes the folder, which another one may be ahead of.
    last = get_last_checkpoint("transformers") if Path("transformers").is_dir() else None
    trainer.train(resume_from_checkpoint=last)
    finished(trainer.model.parameters())


if __name__ == "__main__":
    main()
