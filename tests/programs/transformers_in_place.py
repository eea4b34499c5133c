"""ElasticTrainer of examples/huggingface_trainer.py, which writes down each step that counts.

python transformers_in_place.py FOLDER
"""

import sys
from pathlib import Path

from small_language_model import gpt2, sentences
from steps_file import note
from transformers import TrainerCallback, TrainingArguments, set_seed

sys.path.append(str(Path(__file__).parent.parent.parent / "examples"))
from huggingface_trainer import ElasticTrainer


class Notes(TrainerCallback):
    def on_step_end(self, args, state, control, model, **_) -> None:
        note(state.global_step, args.world_size, model.parameters())


def main() -> None:
    set_seed(0)
    arguments = TrainingArguments(
        output_dir="transformers",
        max_steps=100_000,
        learning_rate=1e-4,
        warmup_steps=3,
        logging_steps=20,
        save_strategy="no",
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
    )
    trainer = ElasticTrainer(
        gpt2(), arguments, train_dataset=sentences(), global_batch=20, callbacks=[Notes()]
    )
    trainer.train()


if __name__ == "__main__":
    main()
