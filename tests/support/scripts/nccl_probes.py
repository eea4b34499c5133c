"""What a process sees, or how it ends, where torch handles errors of NCCL: FUNCTION.

It tells by its standard error and its exit code. Variables are those of its environment.
"""

import os
import sys
from typing import Any
from unittest.mock import patch

import torch.distributed as dist

from spotelastic.training.in_place import watching
from spotelastic.training.in_place.groups import Groups

HANDLING = "TORCH_NCCL_ASYNC_ERROR_HANDLING"


def probe() -> None:
    """Write what torch finds when groups are made, and what processes of the script find."""

    def made(*given: Any) -> Any:
        sys.stderr.write(f"{os.environ.get(HANDLING)} ")
        return dist.ProcessGroupGloo(*given)

    watching.watch()
    dist.Backend.register_backend("probe", made, devices=["cpu"])
    dist.init_process_group("probe", store=dist.HashStore(), rank=0, world_size=1)
    dist.new_group([0], backend="probe")
    sys.stderr.write(f"{os.environ.get(HANDLING)}")


def fail() -> None:
    """A collective of NCCL fails in a process that cannot rest."""
    Groups().failed("a collective of NCCL failed: TIMEOUT")


def problem() -> None:
    """Write what stands in the way of resting. The group has NCCL's name, as there is none here."""
    told = dist.get_backend_config
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    with patch.object(dist, "get_backend_config", lambda: told() + ",cuda:nccl"):
        sys.stderr.write(Groups({"backend": "nccl"}).problem(dist.group.WORLD))


if __name__ == "__main__":
    {"probe": probe, "fail": fail, "problem": problem}[sys.argv[1]]()
    sys.stderr.flush()
    os._exit(0)  # the groups are left as they are
