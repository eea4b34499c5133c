"""What steps beside the state is found among all objects of the process, whatever these are."""

import weakref
from typing import Any, NoReturn

import torch
from torch.optim.lr_scheduler import StepLR

from spotelastic.training.rehearsal.foreign import Foreign
from spotelastic.training.state.state import State


class Held:
    pass


class Odd:
    """Its class is told by code of the script's, which fails."""

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise RuntimeError("it is not to be asked")


class Unready(StepLR):
    def state_dict(self) -> NoReturn:
        raise RuntimeError("it is not ready")


def optimizer() -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)


def test_objects_that_cannot_be_asked_do_not_end_the_run() -> None:
    gone = Held()
    kept = [weakref.proxy(gone), Odd(), Unready(optimizer(), 1)]
    del gone
    stepped = StepLR(optimizer(), 1)
    foreign = Foreign(State({}))
    stepped.optimizer.step()
    stepped.step()
    assert "StepLR" in foreign.changed()
    foreign.put_back()
    assert stepped.last_epoch == 0
    assert len(kept) == 3
