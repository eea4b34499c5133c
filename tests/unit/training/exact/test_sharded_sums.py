"""Virtual ranks of models that FSDP2 shards: what is refused, and norms that depend on no shard."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

import spotelastic as se
from spotelastic.errors import UsageError
from spotelastic.training.exact import sharded

Block = Callable[[se.ElasticSampler, Any, Any], None]


@pytest.fixture(autouse=True)
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def layers() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))


def whole() -> Any:
    return fully_shard(layers())


def by_layer() -> Any:
    model = layers()
    fully_shard(model[1])
    return fully_shard(model)


def with_copies() -> Any:
    mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("copies", "shards"))
    return fully_shard(layers(), mesh=mesh)


def by_columns() -> Any:
    mesh = init_device_mesh("cpu", (1,))
    return parallelize_module(layers(), mesh, {"0": ColwiseParallel()})


def sgd(model: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), 0.1)


class Muon(torch.optim.SGD):
    """Any optimizer that is not torch's."""


def muon(model: Any) -> torch.optim.Optimizer:
    return Muon(model.parameters(), 0.1)


def pieces(sampler: se.ElasticSampler, model: Any, more: Callable[[Any], None]) -> None:
    for micro in sampler.microbatches():
        more(micro)
        (model(torch.ones(2, 4)).sum() * micro.weight).backward()


def right(sampler: se.ElasticSampler, model: Any, optimizer: Any) -> None:
    pieces(sampler, model, lambda _: None)
    sampler.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()


def clips_shards(sampler: se.ElasticSampler, model: Any, optimizer: Any) -> None:
    pieces(sampler, model, lambda _: None)
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()


def twice(sampler: se.ElasticSampler, model: Any, optimizer: Any) -> None:
    pieces(sampler, model, lambda _: model(torch.ones(2, 4)).sum().backward())
    optimizer.step()


def outside(sampler: se.ElasticSampler, model: Any, optimizer: Any) -> None:
    pieces(sampler, model, lambda _: None)
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()


def without_sync(sampler: se.ElasticSampler, model: Any, optimizer: Any) -> None:
    pieces(sampler, model, lambda _: model.set_requires_gradient_sync(False))
    optimizer.step()


def trains(folder: Path, build: Callable[[], Any], block: Block, optimize: Any = sgd) -> Any:
    model = build()
    optimizer = optimize(model)
    sampler = se.ElasticSampler(30, 6, virtual_ranks=3)
    state = {"model": model, "optimizer": optimizer, "data": sampler}
    with se.Checkpointer(state, storage=str(folder), rehearse=False) as checkpoint:
        for step in checkpoint.steps(2):
            with step:
                optimizer.zero_grad()
                block(sampler, model, optimizer)
    return [each.full_tensor() for each in model.parameters()]


@pytest.mark.parametrize(
    ("build", "block", "optimize", "told"),
    [
        (whole, clips_shards, sgd, r"use sampler\.clip_grad_norm_\(parameters, max_norm\)"),
        (whole, twice, sgd, "another backward pass of a sharded module"),
        (by_layer, outside, sgd, "another backward pass of a sharded module"),
        (by_layer, without_sync, sgd, r"leave set_requires_gradient_sync\(False\) out"),
        (whole, right, muon, "what Muon does with a shard may depend"),
        (with_copies, right, sgd, "only fully_shard over all ranks of the job"),
        (by_columns, right, sgd, "sharded, and not by fully_shard"),
    ],
)
def test_what_would_depend_on_shards_is_refused(
    tmp_path: Path, build: Any, block: Block, optimize: Any, told: str
) -> None:
    with pytest.raises(UsageError, match=told):
        trains(tmp_path, build, block, optimize)


def test_how_a_model_is_wrapped_changes_no_bit(tmp_path: Path) -> None:
    one = trains(tmp_path / "one", whole, right)
    other = trains(tmp_path / "other", by_layer, right)
    assert all(map(torch.equal, one, other))


def test_a_batch_that_was_dealt_out_before_the_loop_is_refused(tmp_path: Path) -> None:
    model = whole()
    sampler = se.ElasticSampler(30, 6, virtual_ranks=3)
    batches = iter(sampler)
    next(batches)
    state = {"model": model, "optimizer": sgd(model), "data": sampler}
    with (
        se.Checkpointer(state, storage=str(tmp_path), rehearse=False) as checkpoint,
        pytest.raises(UsageError, match=r"taken from the loader before checkpoint\.steps\(\)"),
    ):
        for step in checkpoint.steps(1):
            with step:
                pieces(sampler, model, lambda _: None)


def test_norms_are_of_rows_whoever_has_them() -> None:
    """Sums of rows are the same bits wherever a gradient is cut, and the norm is the right one."""
    torch.manual_seed(3)
    shapes = [(7, 129), (1, 70_000), (5,), (3, 4, 5), (0, 4), ()]
    gradients = [torch.randn(shape) for shape in shapes]
    right = torch.cat([each.double().reshape(-1) for each in gradients]).norm()
    assert abs(sharded.norm_of(gradients).item() - right.item()) < 1e-3
    for gradient in gradients[:4]:
        every = sharded.sums_of_rows(gradient)
        for cut in range(1, len(gradient)):
            parts: list[Tensor] = [gradient[:cut], gradient[cut:]]
            assert torch.equal(torch.cat([*map(sharded.sums_of_rows, parts)]), every)


def test_shards_have_the_norm_of_the_whole() -> None:
    model = whole()
    model(torch.ones(2, 4)).sum().backward()
    gradients = [each.grad for each in model.parameters()]
    plain = [each.full_tensor() for each in gradients]
    assert torch.equal(sharded.norm_of(gradients), sharded.norm_of(plain))
