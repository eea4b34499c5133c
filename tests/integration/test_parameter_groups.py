"""Parameter groups get back what was theirs, in whatever order a script makes them."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import spotelastic as se
from spotelastic.errors import UsageError

DECAYED = {"lr": 1e-3, "weight_decay": 0.1}
PLAIN = {"lr": 5e-2, "weight_decay": 0.0}


def made(*order: int, rate: Any = float, split: tuple[str, str] = ("weight", "bias")) -> Any:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    groups = [
        {"params": [p for n, p in model.named_parameters() if part in n], **given}
        for part, given in zip(split, (DECAYED, PLAIN), strict=True)
    ]
    chosen = [groups[number] | {"lr": rate(groups[number]["lr"])} for number in order]
    return {"model": model, "optimizer": torch.optim.AdamW(chosen)}


def saved(state: dict[str, Any], storage: Path) -> None:
    state["model"](torch.ones(1, 2)).sum().backward()
    state["optimizer"].step()
    with se.Checkpointer(state, storage=str(storage)) as checkpoint:
        checkpoint.step(1)


def restored(state: dict[str, Any], storage: Path) -> dict[tuple[int, ...], dict[str, Any]]:
    """The groups, by the shape of their first parameter."""
    with se.Checkpointer(state, storage=str(storage)) as checkpoint:
        assert checkpoint.restore() == 1
    return {tuple(g["params"][0].shape): g for g in state["optimizer"].param_groups}


@pytest.mark.parametrize("rate", [float, torch.tensor])
def test_groups_in_another_order_get_their_own_hyper_parameters(tmp_path: Path, rate: Any) -> None:
    first = made(0, 1, rate=rate)
    for group in first["optimizer"].param_groups:
        group["lr"] = rate(float(group["lr"]) / 2)
    saved(first, tmp_path)
    again = made(1, 0, rate=rate)
    groups = restored(again, tmp_path)
    assert [float(groups[2, 2]["lr"]), groups[2, 2]["weight_decay"]] == pytest.approx([5e-4, 0.1])
    assert [float(groups[2,]["lr"]), groups[2,]["weight_decay"]] == pytest.approx([2.5e-2, 0.0])
    assert type(groups[2,]["lr"]) is type(rate(0.1))
    for (name, then), (_, now) in zip(
        first["model"].named_parameters(), again["model"].named_parameters(), strict=True
    ):
        was = first["optimizer"].state[then]["exp_avg"]
        assert torch.equal(again["optimizer"].state[now]["exp_avg"], was), name


def test_other_groups_are_refused_by_their_parameters(tmp_path: Path) -> None:
    saved(made(0, 1), tmp_path)
    with pytest.raises(UsageError, match=r"optimizer: group 0 was saved with the parameters 0\.we"):
        restored(made(0, 1, split=("0.", "1.")), tmp_path)
