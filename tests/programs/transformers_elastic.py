"""transformers.Trainer as the plug-in makes it elastic, with pieces and evaluations.

torchrun --nproc-per-node 2 tests/programs/transformers_elastic.py
"""

from milestones import finished, reached
from small_language_model import gpt2, sentences
from transformers import TrainerCallback, TrainingArguments, set_seed

from spotelastic.integrations.transformers import ElasticTrainer


class Milestones(TrainerCallback):
    def on_step_begin(self, args, state, control, **_) -> None:
        reached(state.global_step)


def main(**more) -> None:
    set_seed(0)
    arguments = TrainingArguments(
        output_dir="transformers",
        num_train_epochs=3,
        gradient_accumulation_steps=2,
        learning_rate=5e-3,
        warmup_steps=3,
        logging_steps=3,
        eval_strategy="epoch",
        metric_for_best_model="loss",
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        **(more or {"use_cpu": True}),
    )
    trainer = ElasticTrainer(
        gpt2(),
        arguments,
        train_dataset=sentences(),
        eval_dataset=[sentences()[n] for n in range(8)],
        global_batch=12,
        callbacks=[Milestones()],
    )
    trainer.train()
    logged = [
        {name: value for name, value in entry.items() if not name.endswith(("time", "per_second"))}
        for entry in trainer.state.log_history
        if "train_loss" not in entry
    ]
    finished(trainer.model.parameters(), [logged, trainer.state.best_metric, trainer.state.epoch])


if __name__ == "__main__":
    main()
