"""A loop with accelerate and the plug-in, in two pieces a step.

torchrun --nproc-per-node 2 tests/programs/accelerate_elastic.py
"""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from milestones import finished, reached
from small_language_model import gpt2, sentences
from torch.utils.data import DataLoader

import spotelastic as se
from spotelastic.integrations.accelerate import checkpointer, pieces

STEPS, BATCH = 20, 12


class Seen:
    """What the script has registered."""

    rows = 0

    def state_dict(self):
        return {"rows": self.rows}

    def load_state_dict(self, state) -> None:
        self.rows = state["rows"]


def main() -> None:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    set_seed(0)
    model = gpt2()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, 40)
    data, seen = sentences(), Seen()
    sampler = se.ElasticSampler(data, BATCH)
    # The loader is not prepared: each rank's share is the sampler's business.
    loader = DataLoader(data, batch_sampler=sampler)
    model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)
    accelerator.register_for_checkpointing(seen)
    with checkpointer(accelerator, sampler) as checkpoint:
        batches = checkpoint.batches(loader)
        for step in checkpoint.steps(STEPS):
            reached(step.number - 1)
            with step:
                for rows, weight in pieces(accelerator, next(batches), sampler):
                    step.loss = model(**rows).loss
                    accelerator.backward(step.loss * weight)
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            if step.finished:
                seen.rows = step.number * BATCH
    finished(model.parameters(), [seen.rows, scheduler.get_last_lr()])
    accelerator.end_training()


if __name__ == "__main__":
    main()
