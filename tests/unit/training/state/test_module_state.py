"""What a module adds to its state_dict() and is no attribute of it comes back."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.saving.one_slot import OneSlot, load, stream
from torch import nn

from spotelastic.errors import UsageError
from spotelastic.training.state.state import State


class Telling(nn.Linear):
    """Says what it keeps elsewhere, and leaves it to others to put it back, as bitsandbytes's 4-bit
    layers do."""

    def __init__(self, value: float) -> None:
        super().__init__(2, 2)
        self.scale, self.form = [torch.full((2,), value)], [value]

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[f"{prefix}SCALE"] = self.scale[0]


class Taking(Telling):
    """Takes it back, together with all else that it has, as the 8-bit ones do."""

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[f"{prefix}SCALE"] = self.scale[0] * 2
        destination[f"{prefix}weight.form"] = self.form[0]

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *rest)
        if f"{prefix}weight" in state_dict and f"{prefix}SCALE" in state_dict:
            self.scale[0] = state_dict[f"{prefix}SCALE"] / 2
            self.form[0] = state_dict[f"{prefix}weight.form"]
            unexpected = rest[3]
            unexpected[:] = [key for key in unexpected if not key.endswith(("SCALE", "form"))]


class Refusing(Telling):
    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[f"{prefix}SCALE"] = self.scale[0].clone()


def compiled(module: nn.Module) -> Any:
    return torch.compile(module)


@pytest.mark.parametrize("restore", [load, stream])
@pytest.mark.parametrize("wrap", [nn.Sequential, compiled])
@pytest.mark.parametrize("kind", [Telling, Taking])
def test_it_comes_back(
    kind: type[Telling], wrap: Callable[[nn.Module], nn.Module], restore: Any, tmp_path: Path
) -> None:
    saved, again = kind(1.0), kind(3.0)
    model = wrap(nn.Sequential(nn.Linear(1, 1), saved))
    assert not any("_orig_mod" in entry.fqn for entry in State({"model": model}).view().entries)
    slot = OneSlot(tmp_path / "slot", {"model": model})
    saved.scale[0].add_(1)
    slot.save(1)
    restore(tmp_path / "slot", 1, {"model": wrap(nn.Sequential(nn.Linear(1, 1), again))})
    assert torch.equal(again.weight, saved.weight)
    assert torch.equal(again.scale[0], torch.full((2,), 2.0))
    assert again.form == (saved.form if kind is Taking else [3.0])


def test_what_it_does_not_take_is_refused_by_name(tmp_path: Path) -> None:
    OneSlot(tmp_path / "slot", {"model": nn.Sequential(Refusing(1.0))}).save(1)
    with pytest.raises(UsageError, match=r"^model\.0\.SCALE cannot be restored: Refusing has it"):
        load(tmp_path / "slot", 1, {"model": nn.Sequential(Refusing(3.0))})
