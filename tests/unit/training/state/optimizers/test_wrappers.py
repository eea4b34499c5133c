"""An optimizer behind a wrapper is saved and restored as if it had none."""

from collections import defaultdict
from typing import Any

import torch
from torch import nn

from spotelastic.training.state.optimizers.wrappers import behind
from spotelastic.training.state.state import State


class Properties(torch.optim.Optimizer):
    """As accelerate's and Opacus's: what torch sets up in an optimizer it does not have."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    @property
    def state(self) -> Any:  # type: ignore[override]
        return self.optimizer.state

    @property
    def param_groups(self) -> Any:  # type: ignore[override]
        return self.optimizer.param_groups


class Copied(torch.optim.Optimizer):
    """As Lightning's: has everything that the optimizer has."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        vars(self).update(vars(optimizer))
        self._optimizer = optimizer


class Lookahead(torch.optim.Optimizer):
    """Keeps slow weights, which have to be saved."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        super().__init__(optimizer.param_groups, {})
        self.optimizer = optimizer
        self.state = defaultdict(dict)


def test_the_optimizer_behind_wrappers_is_what_is_saved() -> None:
    model = nn.Linear(2, 2)
    inner = torch.optim.AdamW(model.parameters())
    given: dict[str, Any] = {"model": model, "optimizer": Properties(Copied(inner))}
    state = State(given)
    model(torch.ones(1, 2)).sum().backward()
    inner.step()
    assert {name for name, _ in state.optimizers()} == {"optimizer"}
    assert "optimizer.state.weight.exp_avg" in {chunk.fqn for chunk in state.view().chunks}
    assert isinstance(given["optimizer"], Properties), "the script's mapping is left as it is"


class Saying(Properties):
    """Shares all that optimizers have, and keeps more elsewhere, as Magma does."""

    def state_dict(self) -> dict[str, Any]:
        return {**self.optimizer.state_dict(), "more": 1}


def test_a_wrapper_with_state_of_its_own_is_saved_itself() -> None:
    saying = Saying(torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1))
    assert behind(saying) is saying
    lookahead = Lookahead(torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1))
    assert behind(lookahead) is lookahead
