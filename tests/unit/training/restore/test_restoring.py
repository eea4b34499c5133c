"""What a restore makes of the state before anything is loaded into it."""

from collections.abc import Iterator
from typing import Any

import torch
from spotelastic_checkpoints.restore.contents import Piece
from spotelastic_checkpoints.types import Item
from torch import nn

from spotelastic.training.restore.saved_items import SavedItems
from spotelastic.training.state.state import State

LAYERS = 30


class Name(str):
    """Counts how often it is looked at."""

    looks = 0

    def startswith(self, *arguments: Any) -> bool:
        Name.looks += 1
        return super().startswith(*arguments)


class Saved:
    """A checkpoint's contents: of each of these parameters, one moment."""

    id, step, world_size, file, fetched = "i", 5, 1, "f", True

    def __init__(self, parameters: list[str]) -> None:
        self._parameters = parameters

    def pieces(self) -> Iterator[Piece]:
        for parameter in self._parameters:
            path = "optimizer", "state", parameter, "exp_avg"
            yield Piece("f", Item(Name(".".join(path)), path, "float32", (), (), (), -1, 0, 4))


def test_a_parameter_whose_moments_were_not_saved_has_none_in_one_look_at_the_names() -> None:
    model = nn.Sequential(*(nn.Linear(1, 1) for _ in range(LAYERS)))
    optimizer = torch.optim.AdamW(model.parameters())
    state = State({"model": model, "optimizer": optimizer})
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    assert len(optimizer.state) == 2 * LAYERS
    # A name that begins another one's: "0.bias" of "0.bias.more".
    saved = Saved([f"{number}.weight" for number in range(LAYERS)] + ["0.bias.more"])
    items = SavedItems(saved)
    state.make_optimizer_state(items.kinds_by_path(), ())
    assert set(optimizer.state) == {layer.weight for layer in model}
    assert Name.looks <= 2 * LAYERS
