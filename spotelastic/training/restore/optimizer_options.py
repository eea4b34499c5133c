"""Loads the options of an optimizer's groups, and what its state has besides tensors."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from spotelastic_checkpoints.restore.contents import Piece

from spotelastic.training.restore.saved_items import SavedItems
from spotelastic.training.state.derived import filled, set_element
from spotelastic.training.state.optimizers.optimizer_state import Absent, flat_entries
from spotelastic.training.state.state import State
from spotelastic.training.state.tensors import is_value
from spotelastic.training.state.value_entries import CONTAINERS

_OF_PARAMETERS = "params", "param_names"
"""Entries of a group that say which parameters its options are for."""


class OptimizerOptions:
    """What was saved of one optimizer, except for the tensors that are filled in their places."""

    def __init__(
        self,
        saved: SavedItems,
        name: str,
        optimizer: torch.optim.Optimizer,
        order: Sequence[int],
    ) -> None:
        """`order` has the numbers of the saved groups here. What was saved has these already."""
        self._saved, self._name, self._order = saved, name, order
        self._optimizer = optimizer

    def load(self, state: State) -> None:
        """Load everything into the optimizer, which is called `name` in the state."""
        for number, group in enumerate(self._optimizer.param_groups):
            self._load_values(f"{self._name}.param_groups.{number}", group, leave="params")
        self._add_missing()
        for parameter, own in state.by_parameter(self._optimizer).items():
            self._load_values(f"{self._name}.state.{parameter}", own)
        self._load_containers(state)

    def _add_missing(self) -> None:
        """Add options that groups were saved with and do not have.

        Some optimizers add them in their steps, and schedulers when they are made.
        """
        groups = self._optimizer.param_groups
        known = [set(map(str, group)) for group in groups]
        for path in self._saved.paths:
            if path[:2] != (self._name, "param_groups") or path[3] in _OF_PARAMETERS:
                continue
            number = int(path[2])
            if path[3] not in known[number]:
                set_element(groups[number], path[3:], self._saved.whole(".".join(map(str, path))))

    def _load_values(self, fqn: str, held: Any, leave: str = "") -> None:
        """Load what is no tensor now, in a container of the optimizer and in those within it."""
        entries = held.items() if isinstance(held, Mapping) else enumerate(held)
        for key, value in list(entries):
            pieces = self._saved.pieces.get(f"{fqn}.{key}")
            if key == leave or (isinstance(value, torch.Tensor) and not is_value(value)):
                continue
            if pieces and isinstance(value, Absent | torch.Tensor):
                self._saved.devices[pieces[0].item.fqn] = value.device
                held[key] = self._saved.value(pieces[0])
            elif pieces:
                held[key] = self._hyper_parameter(pieces[0])
            elif isinstance(value, Mapping | list):
                self._load_values(f"{fqn}.{key}", value)

    def _hyper_parameter(self, piece: Piece) -> Any:
        """Return a group's option that is no tensor now, though it may have been one."""
        value = self._saved.value(piece)
        return value.item() if isinstance(value, torch.Tensor) and value.numel() == 1 else value

    def _load_containers(self, state: State) -> None:
        """Give containers in options and state the keys and types that they had."""
        own = [path for path in self._saved.own_paths if path[1:3] == (CONTAINERS, self._name)]
        parameters = {fqn: each for each, fqn in state.parameters(self._optimizer).items()}
        for saved in own:
            (kind, which, *rest), structure = self._saved.own_value(".".join(map(str, saved[1:])))
            if kind == "param_groups":
                number = self._order[which]
                group = self._optimizer.param_groups[number]
                group[rest[0]] = self._made(structure, f"{kind}.{number}.{rest[0]}", {})
            elif which in parameters:
                held = self._optimizer.state[parameters[which]]
                if rest:
                    live = held.get(rest[0], {})
                    held[rest[0]] = self._made(structure, f"{kind}.{which}.{rest[0]}", live)

    def _made(self, structure: Any, within: str, live: Any) -> Any:
        """Fill a structure with what is `live`, which was loaded, or else with what was saved."""
        known = {".".join(map(str, path)): leaf for path, leaf in flat_entries(live).items()}

        def get(name: str) -> Any:
            found = known.get(name)
            return self._saved.whole(f"{self._name}.{within}.{name}") if found is None else found

        return filled(structure, get, exact=True)
