"""The job under torchrun: rank 0 writes the state to a file every few steps."""

import os

import work

options = work.options()

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

dist.init_process_group(options.backend)
plain, optimizer = work.build(options.build, compiles=options.compile)
model = DistributedDataParallel(plain)
world, group = dist.get_world_size(), os.environ["TORCHELASTIC_RESTART_COUNT"]
saved = options.folder / "state.pt"
step = 0
# Rank 0 alone reads: it might be writing the next one while another still reads.
found = [torch.load(saved) if dist.get_rank() == 0 and saved.exists() else None]
dist.broadcast_object_list(found)
if found[0] is not None:
    step = found[0]["step"]
    plain.load_state_dict(found[0]["model"])
    optimizer.load_state_dict(found[0]["optimizer"])
while True:
    work.train(model, optimizer, options.pause)
    step += 1
    work.tell("step", world, step, f"{os.getpid()}.{group}")
    if dist.get_rank() == 0 and step % work.EVERY == 0:
        state = {"step": step, "model": plain.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state, saved.with_suffix(".new"))
        saved.with_suffix(".new").rename(saved)
