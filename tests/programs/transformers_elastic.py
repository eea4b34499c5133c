"""transformers.Trainer with examples/huggingface_trainer.py: spotelastic keeps its state.

torchrun --nproc-per-node 2 tests/programs/transformers_elastic.py
"""

import sys
from pathlib import Path

from milestones import finished, reached
from small_language_model import gpt2, sentences
from transformers import TrainerCallback, TrainingArguments, set_seed

sys.path.append(str(Path(__file__).parent.parent.parent / "examples"))
from huggingface_trainer import ElasticTrainer

STEPS = 20


class Milestones(TrainerCallback):
    def on_step_begin(self, args, state, control, **_) -> None:
        reached(state.global_step)


def main() -> None:
    set_seed(0)
    arguments = TrainingArguments(
        output_dir="transformers",
        max_steps=STEPS,
        learning_rate=5e-3,
        warmup_steps=3,
        save_strategy="no",
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
    )
    trainer = ElasticTrainer(
        gpt2(),
        arguments,
        train_dataset=sentences(),
        global_batch=20,
        callbacks=[Milestones()],
    )
    trainer.train()
    finished(trainer.model.parameters())


if __name__ == "__main__":
    main()
