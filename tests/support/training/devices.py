"""The device on which the in-place tests train, and the backend of their groups.

It is the CPU with gloo. With SPOTELASTIC_TEST_DEVICE=cuda it is a GPU with NCCL, which all ranks
share:

    SPOTELASTIC_TEST_DEVICE=cuda pytest tests/integration/test_in_place.py \\
        tests/integration/test_built_in_place.py --timeout 900
"""

import os

import torch
import torch.distributed as dist

DEVICE = os.environ.get("SPOTELASTIC_TEST_DEVICE", "cpu")
BACKEND = "nccl" if DEVICE == "cuda" else "gloo"


def begin(number: int, backend: str = BACKEND) -> None:
    """Make the default group of worker `number`, by its variables."""
    use(number, backend)
    dist.init_process_group(backend)


def use(number: int, backend: str = BACKEND) -> None:
    """Prepare this process for a group. Call it before the first one is made."""
    if backend == "nccl":
        share_a_gpu(number)
    elif DEVICE == "cuda":
        torch.cuda.set_device(0)


def share_a_gpu(number: int) -> None:
    """Have NCCL take ranks on one GPU, which it refuses to, for ranks on machines of their own.

    Their kernels take turns on the GPU, and data goes through sockets.
    """
    os.environ.update(
        NCCL_HOSTID=f"machine-{number}",
        NCCL_SOCKET_IFNAME="lo",
        NCCL_IB_DISABLE="1",
        NCCL_MAX_NCHANNELS="1",
    )
    torch.cuda.set_device(0)
