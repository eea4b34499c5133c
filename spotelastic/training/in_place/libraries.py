"""Tells libraries that keep rank and world size in variables of their own when these have changed.

Only those are told that the script has imported. Without this, Hugging Face's accelerate, and the
Trainer with it, would weight losses by the number of ranks of a round that is over.
"""

import sys
from typing import Any

import torch.distributed as dist


def tell() -> None:
    """Tell them what the default group says."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    accelerate = sys.modules.get("accelerate.state")
    for name in ("PartialState", "AcceleratorState"):
        shared: Any = getattr(getattr(accelerate, name, None), "_shared_state", None)
        if shared:
            shared.update(process_index=rank, num_processes=world_size)
