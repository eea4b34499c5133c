"""A loop with accelerate, and accelerate's own checkpoints.

It knows nothing of spotelastic. torchrun --nproc-per-node 2 tests/programs/accelerate_loop.py
"""

import shutil
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from milestones import finished, reached
from small_language_model import gpt2, sentences
from torch.utils.data import DataLoader

EPOCHS, EVERY = 3, 5


class Progress:
    """Where training is, as accelerate saves it."""

    step = 0

    def state_dict(self):
        return {"step": self.step}

    def load_state_dict(self, state) -> None:
        self.step = state["step"]


def main() -> None:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    set_seed(0)
    model = gpt2()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, 60)
    # The order of an epoch comes from the loader's own generator, which is seeded by the epoch.
    loader = DataLoader(sentences(), 4, shuffle=True, generator=torch.Generator())
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    progress = Progress()
    accelerator.register_for_checkpointing(progress)
    saved = Path("accelerate")
    if (saved / "complete").exists():
        accelerator.load_state(saved / (saved / "complete").read_text())
    while progress.step < EPOCHS * len(loader):
        epoch, begun = divmod(progress.step, len(loader))
        loader.set_epoch(epoch)
        rows = accelerator.skip_first_batches(loader, begun) if begun else loader
        for batch in rows:
            reached(progress.step)
            with accelerator.accumulate(model):
                loss = model(**batch).loss
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            progress.step += 1
            if progress.step % (2 * EVERY) == 0:
                save(accelerator, saved, progress.step)
    finished(model.parameters())
    accelerator.end_training()


def save(accelerator: Accelerator, folder: Path, step: int) -> None:
    """Complete before it counts: a node may vanish in the middle."""
    name = f"step-{step}"
    accelerator.save_state(folder / name, safe_serialization=False)
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        (folder / "complete.new").write_text(name)
        (folder / "complete.new").replace(folder / "complete")
        shutil.rmtree(folder / f"step-{step - 2 * EVERY}", ignore_errors=True)
    accelerator.wait_for_everyone()


if __name__ == "__main__":
    main()
