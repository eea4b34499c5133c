"""ElasticTrainer, which writes down each step that counts.

python transformers_in_place.py FOLDER
"""

from small_language_model import gpt2, sentences
from steps_file import note
from transformers import TrainerCallback, TrainingArguments, set_seed

from spotelastic.integrations.transformers import ElasticTrainer


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
        logging_steps=100_000,  # a peer that is lost in the collectives of a log costs a restore
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
