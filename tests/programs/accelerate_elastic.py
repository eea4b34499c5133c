"""A loop with accelerate, of which spotelastic keeps the state.

torchrun --nproc-per-node 2 tests/programs/accelerate_elastic.py
"""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from milestones import finished, reached
from small_language_model import gpt2, sentences
from torch.utils.data import DataLoader

import spotelastic as se

STEPS, BATCH = 20, 12


def main() -> None:
    accelerator = Accelerator(cpu=True)
    set_seed(0)
    model = gpt2()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, 40)
    data = sentences()
    sampler = se.ElasticSampler(data, BATCH)
    # The loader is not prepared: each rank's share is the sampler's business.
    loader = DataLoader(data, batch_sampler=sampler)
    model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)
    state = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "data": sampler}
    with se.Checkpointer(state) as checkpoint:
        batches = checkpoint.batches(loader)
        for step in checkpoint.steps(STEPS):
            reached(step.number - 1)
            with step:
                batch = next(batches)
                step.loss = model(**batch).loss
                accelerator.backward(step.loss * se.microbatches(sampler.batch)[0].weight)
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
    finished(model.parameters())
    accelerator.end_training()


if __name__ == "__main__":
    main()
