"""Which exceptions say that a peer was lost."""

import pytest
import torch.distributed as dist

from spotelastic.training.in_place import failures

LOST = [
    RuntimeError(
        "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer "
        "[127.0.0.1]:29500"
    ),
    RuntimeError(
        "[../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms "
        "for recv operation to complete"
    ),
    RuntimeError("NCCL communicator was aborted on rank 1."),
    dist.DistBackendError("NCCL error in: ... unhandled system error"),
    dist.DistNetworkError("failed to recv, got 0 bytes"),
    dist.DistStoreError("wait timeout after 300000ms, keys: /default_pg/0"),
]
OWN = [
    RuntimeError("mat1 and mat2 shapes cannot be multiplied (6x4 and 8x1)"),
    RuntimeError("CUDA out of memory"),
    ValueError("Connection closed by peer"),
    ConnectionResetError("connection reset by peer"),
    KeyboardInterrupt(),
]


@pytest.mark.parametrize("error", LOST)
def test_collectives_that_failed_are_recognized(error: Exception) -> None:
    assert failures.is_of_collective(error)
    wrapped = ValueError("the step failed")
    wrapped.__cause__ = error
    assert failures.is_of_collective(wrapped)


@pytest.mark.parametrize("error", OWN)
def test_the_script_s_own_mistakes_are_not(error: BaseException) -> None:
    assert not failures.is_of_collective(error)


def test_what_a_script_raises_while_it_is_unwound_counts_as_unwinding() -> None:
    try:
        try:
            raise failures.Unwound
        finally:
            raise RuntimeError("the script's own cleanup")
    except RuntimeError as error:
        assert failures.is_unwinding(error)
    assert not failures.is_unwinding(RuntimeError("of its own"))
    assert not failures.is_unwinding(None)
