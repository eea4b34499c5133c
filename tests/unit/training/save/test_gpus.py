"""Which GPUs a save waits for."""

from types import SimpleNamespace

import torch

from spotelastic.training.save.saver import devices_of


def test_every_gpu_with_a_tensor_is_waited_for_once() -> None:
    names = ["cpu", "cuda:1", "cuda:0", "cuda:1", "meta"]
    tensors = [SimpleNamespace(device=torch.device(n), is_cuda=n[:4] == "cuda") for n in names]
    expected = (torch.device("cuda:1"), torch.device("cuda:0"))
    assert devices_of(tensors) == expected  # type: ignore[arg-type]
    assert devices_of([torch.ones(1)]) == ()
