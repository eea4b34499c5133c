"""A small, fast model whose training draws from the global random generator."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn


def make(seed: int = 0) -> dict[str, Any]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    return {"model": model, "optimizer": optimizer, "epoch": 0}


def one_step(state: Mapping[str, Any]) -> torch.Tensor:
    """Draws data and dropout from the global generator."""
    loss: torch.Tensor = state["model"](torch.randn(3, 4)).square().mean()
    state["optimizer"].zero_grad()
    loss.backward()
    state["optimizer"].step()
    return loss.detach()


def weights(state: Mapping[str, Any]) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in state["model"].parameters()])


def make_seeded(seed: int) -> dict[str, Any]:
    state = make()
    torch.manual_seed(seed)
    return state
