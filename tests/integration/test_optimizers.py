"""Optimizers of every kind: their state comes back as the checkpoint has it, without a step."""

import copy
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.draws import every_other
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor

import spotelastic as se
from spotelastic.errors import UsageError


class Late(torch.optim.SGD):
    """Makes most of its state at its second step, in containers, and counts in a number."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step(closure)
        for group in self.param_groups:
            for p in group["params"]:
                own = self.state[p]
                own["count"] = own.get("count", 0) + 1
                if own["count"] == 1:
                    own["first"] = torch.ones(3)
                else:
                    own.pop("first", None)
                    own.setdefault("Q", [torch.eye(2), torch.eye(5, dtype=torch.float64)])
                    own.setdefault("by_axis", {0: torch.ones(2), 1: [torch.ones(4), 7]})


class Closed(torch.optim.SGD):
    """Evaluates twice, like SAM."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        assert closure is not None, "needs a closure"
        closure()
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["old"] = p.detach().clone()
        super().step(closure)


class Adding(torch.optim.SGD):
    """Adds options to its groups when it steps, and fails without gradients, as ASGD does."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p].setdefault("first", p.detach().clone())
                norm = p.grad.norm().item()
                group["scale"] = group.get("scale", 1.0) * (1.0 + 1.0 / norm)
                group["seen"] = {"norms": [torch.tensor([norm])], "last": [norm]}
                p.data.add_(self.state[p]["first"], alpha=-group["scale"] * group["lr"])


class Together(torch.optim.SGD):
    """Keeps something of all parameters together, as MADGRAD and SPAM do."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step(closure)
        self.state.setdefault("k", torch.tensor([0])).add_(1)  # type: ignore[call-overload]
        self.state["steps"] = self.state.get("steps", 0) + 1  # type: ignore[index, call-overload]


class OddKeys(torch.optim.SGD):
    """Has keys that another one would be written like."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step(closure)
        for p in self.param_groups[0]["params"]:
            own = self.state[p].setdefault("by_axis", {})
            for key in "0", (1, 2), "01", -1, 3, "name":
                own.setdefault(key, torch.zeros(2)).add_(1)
            own["deep"] = [{"7": torch.ones(1)}]


class Moving(torch.optim.SGD):
    """Says its state in another form than it has it, as bitsandbytes's optimizers do."""

    def state_dict(self) -> dict[str, Any]:
        said = super().state_dict()
        said["state"] = {n: {"own": dict(own), "n": 1} for n, own in said["state"].items()}
        return said

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        state_dict["state"] = {n: own["own"] for n, own in state_dict["state"].items()}
        super().load_state_dict(state_dict)


class Queueing(torch.optim.SGD):
    """Keeps the last gradients."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step(closure)
        for p in self.param_groups[0]["params"]:
            self.state[p].setdefault("last", deque(maxlen=2)).append(p.grad.clone())


def linear() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 5), nn.Linear(5, 1))


def sparse() -> nn.Module:
    return nn.Sequential(nn.Embedding(6, 2, sparse=True))


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        is_sparse = isinstance(model[0], nn.Embedding)  # type: ignore[index]
        given = torch.tensor([1, 4]) if is_sparse else torch.tensor([[1.0, 2.0]])
        loss: torch.Tensor = model(given).square().sum()
        loss.backward()
        return loss

    if isinstance(optimizer, Closed):
        optimizer.step(closure)
    else:
        closure()
        optimizer.step()


KINDS: dict[str, tuple[Callable[[], nn.Module], Callable[[Any], torch.optim.Optimizer]]] = {
    "late": (linear, lambda p: Late(p, lr=0.01, momentum=0.9)),
    "closed": (linear, lambda p: Closed(p, lr=0.01, momentum=0.9)),
    "sparse": (sparse, lambda p: torch.optim.SparseAdam([*p])),
    "amsgrad": (linear, lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.1), amsgrad=True)),
    "adding": (linear, lambda p: Adding(p, lr=0.01)),
    "together": (linear, lambda p: Together(p, lr=0.01, momentum=0.9)),
    "odd keys": (linear, lambda p: OddKeys(p, lr=0.01, momentum=0.9)),
    "moving": (linear, lambda p: Moving(p, lr=0.01, momentum=0.9)),
    "queueing": (linear, lambda p: Queueing(p, lr=0.01)),
    "nadam": (linear, torch.optim.NAdam),
    "rprop": (linear, torch.optim.Rprop),
    "adafactor": (linear, torch.optim.Adafactor),
    "fused": (linear, lambda p: torch.optim.Adam(p, fused=True)),
}


def check_same(found: Any, expected: Any) -> None:
    assert type(found) is type(expected)
    if isinstance(expected, torch.Tensor):
        assert found.dtype == expected.dtype
        assert torch.equal(found, expected)
    elif isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            check_same(found[key], value)
    elif isinstance(expected, list | deque):
        for pair in zip(found, expected, strict=True):
            check_same(*pair)
    else:
        assert found == expected


@pytest.mark.parametrize("kind", every_other(KINDS))
def test_an_optimizer_goes_on_as_it_was(kind: str, tmp_path: Path) -> None:
    make, optimize = KINDS[kind]
    model = make()
    optimizer = optimize(model.parameters())
    with se.Checkpointer(
        {"model": model, "optimizer": optimizer}, storage=str(tmp_path), checkpoint_every=1
    ) as checkpoint:
        for number in (1, 2):
            step(model, optimizer)
            checkpoint.step(number)
    for steps_before in (0, 1):  # state that is there already makes no difference
        again = make()
        other = optimize(again.parameters())
        for _ in range(steps_before):
            step(again, other)
        with se.Checkpointer({"model": again, "optimizer": other}, storage=str(tmp_path)) as begun:
            assert begun.restore() == 2
        check_same(other.state_dict(), optimizer.state_dict())
        check_same(again.state_dict(), model.state_dict())
        going_on = copy.deepcopy((model, optimizer.state_dict()))
        reference = optimize(going_on[0].parameters())
        reference.load_state_dict(going_on[1])
        step(going_on[0], reference)
        step(again, other)
        check_same(again.state_dict(), going_on[0].state_dict())


def test_numbered_parameters_in_another_order_are_refused(tmp_path: Path) -> None:
    model = linear()
    groups = [{"params": [p], "lr": 0.1 * n} for n, p in enumerate(model.parameters())]
    optimizer = Moving(groups, momentum=0.9)
    step(model, optimizer)
    with se.Checkpointer({"model": model, "optimizer": optimizer}, storage=str(tmp_path)) as begun:
        begun.step(1)
    again: Any = torch.compile(linear())
    groups = [{"params": [p], "lr": 0.1 * n} for n, p in enumerate(again.parameters())]
    for order in groups, groups[::-1]:
        other = Moving([dict(group) for group in order], momentum=0.9)
        state = {"model": again, "optimizer": other}
        with se.Checkpointer(state, storage=str(tmp_path)) as begun:
            if order is groups:
                assert begun.restore() == 1
                check_same(other.state_dict(), optimizer.state_dict())
            else:
                with pytest.raises(UsageError, match="others here, or in another order"):
                    begun.restore()


def test_another_kind_of_optimizer_is_refused(tmp_path: Path) -> None:
    model = linear()
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    step(model, optimizer)
    with se.Checkpointer({"model": model, "optimizer": optimizer}, storage=str(tmp_path)) as begun:
        begun.step(1)
    adam = torch.optim.AdamW(model.parameters())
    with (
        se.Checkpointer({"model": model, "optimizer": adam}, storage=str(tmp_path)) as begun,
        pytest.raises(UsageError, match=r"another kind of optimizer.*momentum.*AdamW has none"),
    ):
        begun.restore()


class Lion(torch.optim.Optimizer):
    """Has fewer options than AdamW, and a part of its state."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 1e-3, "betas": (0.9, 0.99), "weight_decay": 0.0})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p].setdefault("exp_avg", torch.zeros_like(p)).add_(p.grad)


@pytest.mark.parametrize("kinds", [(torch.optim.AdamW, Lion), (Lion, torch.optim.AdamW)])
def test_state_that_the_optimizer_would_not_make_is_refused_and_leaves_it_as_it_was(
    kinds: tuple[Callable[[Any], torch.optim.Optimizer], ...], tmp_path: Path
) -> None:
    model = linear()
    optimizer, other = (kind(model.parameters()) for kind in kinds)
    step(model, optimizer)
    with se.Checkpointer({"model": model, "optimizer": optimizer}, storage=str(tmp_path)) as begun:
        begun.step(1)
    for steps_before in (0, 1):
        for _ in range(steps_before):
            step(model, other)
        before = copy.deepcopy(other.state_dict())
        with (
            se.Checkpointer({"model": model, "optimizer": other}, storage=str(tmp_path)) as begun,
            pytest.raises(UsageError, match=r"another state: .*optimizer\.state"),
        ):
            begun.restore()
        check_same(other.state_dict(), before)


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_an_optimizer_of_two_sharded_models_goes_on(tmp_path: Path, group: None) -> None:
    def make() -> tuple[nn.Module, nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        body, head = nn.Linear(2, 4), nn.Linear(4, 1)
        for each in body, head:
            fully_shard(each)
        return body, head, torch.optim.AdamW([*body.parameters(), *head.parameters()])

    def advance(body: nn.Module, head: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        head(body(torch.ones(1, 2))).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    def named(made: Any) -> dict[str, Any]:
        return dict(zip(("body", "head", "optimizer"), made, strict=True))

    first, second = make(), make()
    advance(*first)
    storage = f"{tmp_path}/run"
    with se.Checkpointer(named(first), storage=storage) as checkpoint:
        checkpoint.step(1)
    with se.Checkpointer(named(second), storage=storage) as checkpoint:
        assert checkpoint.restore() == 1
    advance(*first)
    advance(*second)
    for ours, theirs in zip(second[2].state.values(), first[2].state.values(), strict=True):
        assert isinstance(ours["exp_avg"], DTensor)
        assert torch.equal(ours["exp_avg"].to_local(), theirs["exp_avg"].to_local())
        assert torch.equal(ours["step"], theirs["step"])


def test_what_cannot_be_saved_as_it_is_trained_is_refused_at_once(
    tmp_path: Path, group: None
) -> None:
    model = linear()
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW)
    with pytest.raises(UsageError, match=r"ZeroRedundancyOptimizer .*fully_shard"):
        se.Checkpointer({"model": model, "optimizer": optimizer}, storage=str(tmp_path))
    wrapped = FullyShardedDataParallel(linear(), device_id=torch.device("cpu"))
    with pytest.raises(UsageError, match=r"FSDP1.*fully_shard"):
        se.Checkpointer({"model": wrapped}, storage=str(tmp_path))


class ByRow(torch.optim.SGD):
    """Keeps one value per row, sharded as the rows are."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                rows = p.detach()[:, :1]
                mean = self.state[p].setdefault("mean", torch.zeros_like(rows))
                mean.add_(rows)
                p.grad.mul_(mean)
        super().step(closure)


@pytest.mark.parametrize("kind", [ByRow, torch.optim.Muon])
def test_state_that_is_not_shaped_as_its_sharded_parameter_stays_sharded(
    kind: Callable[..., torch.optim.Optimizer], tmp_path: Path, group: None
) -> None:
    def make() -> dict[str, Any]:
        torch.manual_seed(0)
        model = nn.Linear(4, 8, bias=False)
        fully_shard(model)
        return {"model": model, "optimizer": kind(model.parameters(), lr=0.1)}

    def advance(state: dict[str, Any]) -> None:
        state["model"](torch.ones(1, 4)).sum().backward()
        state["optimizer"].step()
        state["optimizer"].zero_grad()

    first, second = make(), make()
    advance(first)
    storage = f"{tmp_path}/run"
    with se.Checkpointer(first, storage=storage) as checkpoint:
        checkpoint.step(1)
    with se.Checkpointer(second, storage=storage) as checkpoint:
        assert checkpoint.restore() == 1
    for state in first, second:
        advance(state)
    weight, expected = (state["model"].weight.to_local() for state in (second, first))
    assert torch.equal(weight, expected)
