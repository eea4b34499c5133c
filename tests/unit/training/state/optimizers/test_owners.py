"""Which module names an optimizer's parameters."""

from typing import Any

import torch
from torch import nn

from spotelastic.training.state.optimizers.parameter_owners import owner


class Wrapping(torch.optim.Optimizer):
    """Says itself how it, and the optimizer in it, are saved."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner = inner
        super().__init__(inner.param_groups, {})

    def state_dict(self) -> dict[str, Any]:
        return {"inner": self.inner.state_dict()}


def test_several_modules_name_their_parameters_whatever_they_are_called() -> None:
    modules = {name: nn.Linear(1, 1) for name in ("left", "a.b", "a_b", "forward")}
    parameters = [p for module in modules.values() for p in module.parameters()]
    found = owner(modules, torch.optim.SGD(parameters, lr=0.1))
    assert found is not None
    names = dict(found.named_parameters())
    assert len(names) == len(parameters) and "left.weight" in names
    assert all(found.get_parameter(name) is parameter for name, parameter in names.items())


def test_one_module_that_has_all_is_itself_the_one() -> None:
    model = nn.Linear(1, 1)
    both = {"whole": nn.Sequential(model), "part": model}
    assert owner(both, torch.optim.SGD(model.parameters(), lr=0.1)) is both["whole"]


def test_what_no_module_names_is_saved_in_its_own_form() -> None:
    model, other = nn.Linear(1, 1), nn.Parameter(torch.zeros(1))
    modules = {"model": model}
    assert owner(modules, torch.optim.SGD([*model.parameters(), other], lr=0.1)) is None
    assert owner(modules, torch.optim.LBFGS(model.parameters())) is None
    assert owner(modules, Wrapping(torch.optim.SGD(model.parameters(), lr=0.1))) is None
