"""Relates names, groups and types of a checkpoint to those of the state that it is loaded into."""

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import torch
from msgspec.structs import replace
from spotelastic_checkpoints.restore.contents import Piece

from spotelastic.training.state.compatibility import (
    WRAPPERS,
    Kind,
    is_compiled,
    renamed,
    without_compiler,
)
from spotelastic.training.state.derived import Path
from spotelastic.training.state.state import StateView


def parameters_of(view: StateView, name: str, optimizer: torch.optim.Optimizer) -> list[str]:
    """Return the names of an optimizer's parameters, in the order in which torch numbers them."""
    return [fqn for group in groups_of(view, name, optimizer) for fqn in group]


def groups_of(view: StateView, name: str, optimizer: torch.optim.Optimizer) -> list[list[str]]:
    """Return the names of each group's parameters."""
    entries = {entry.fqn: entry for entry in view.entries if entry.path[0] == name}
    numbers = range(len(optimizer.param_groups))
    return [entries[f"{name}.param_groups.{number}.params"].get() for number in numbers]


def is_of_a_group(path: Path) -> bool:
    """Return whether it is a tensor of a group, as a learning rate may be.

    Which group is which is not known before values are read.
    """
    return len(path) > 3 and path[1] == "param_groups"


def has_wrapped_names(view: StateView, name: str) -> bool:
    """Return whether names of a model in this state begin like a wrapper's."""
    prefixes = tuple(f"{name}.{wrapper}" for wrapper in WRAPPERS)
    return any(fqn.startswith(prefixes) for fqn in view.kinds)


def renamed_piece(
    piece: Piece,
    numbered: Mapping[str, Sequence[str]],
    models: Collection[str],
    compiled: Collection[str],
) -> Piece:
    """Return a piece under the name that it has in this state, as `compatibility.renamed` says.

    Entries that are `compiled` were saved with the names that torch.compile makes.
    """
    path = renamed(piece.item.path, numbered, models)
    if path[0] in compiled and is_compiled(path):
        path = tuple(without_compiler(key) if isinstance(key, str) else key for key in path)
    return piece if path == piece.item.path else with_path(piece, path)


def with_path(piece: Piece, path: Path) -> Piece:
    """Return a piece under another name."""
    return piece._replace(item=replace(piece.item, fqn=".".join(map(str, path)), path=path))


def without(view: StateView, taken: Mapping[str, Mapping[str, Any]]) -> StateView:
    """Return the view without what modules load by their own code."""
    begins = [begin for parts in taken.values() for begin in parts]
    gone = set(below_prefixes(begins, view.kinds))
    if not gone:
        return view
    kinds = {fqn: kind for fqn, kind in view.kinds.items() if fqn not in gone}
    chunks = tuple(chunk for chunk in view.chunks if chunk.fqn not in gone)
    return dataclasses.replace(view, chunks=chunks, kinds=kinds)


def devices_of(view: StateView) -> dict[str, torch.device]:
    """Return the devices of tensors that are saved as values, by name."""
    entries = {entry.fqn: entry for entry in view.entries}
    remade = {fqn: entries[fqn].get() for fqn in below(view.remade, entries)}
    found = {fqn: value.device for fqn, value in remade.items() if isinstance(value, torch.Tensor)}
    for chunk in view.chunks:  # These are the inner tensors of others.
        if chunk.fqn.endswith("]"):
            found[".".join(map(str, chunk.path[:-1]))] = chunk.tensor.device
    return found


def leave_to_itself(
    name: str, here: dict[str, Kind], there: dict[str, Kind], *, known: bool
) -> None:
    """Leave out an entry with a load_state_dict of its own, which decides itself what fits."""
    ours, saved = (below({name}, kinds) for kinds in (here, there))
    if known or bool(ours) == bool(saved):
        for kinds, names in ((here, ours), (there, saved)):
            for fqn in names:
                del kinds[fqn]


def leave_values(name: str, here: dict[str, Kind], there: dict[str, Kind]) -> None:
    """Leave out what is replaced and may be anything.

    Tensors that are filled in place must exist.
    """
    ours, saved = (below({name}, kinds) for kinds in (here, there))
    if ours and saved:
        for fqn in ours:
            if not here[fqn].dtype:
                del here[fqn]
        for fqn in saved:
            if fqn not in here:
                del there[fqn]


def leave_hyper_parameters(prefix: str, here: dict[str, Kind], there: dict[str, Kind]) -> None:
    """Leave out options of groups. Versions of torch differ, and the script's values are kept."""
    for kinds in here, there:
        for fqn in [fqn for fqn in kinds if fqn.startswith(prefix)]:
            if not fqn.endswith(".params"):
                del kinds[fqn]


def below(names: Collection[str], fqns: Iterable[str]) -> list[str]:
    """Return the names that are one of these, or a part of one."""
    if not names:
        return []
    prefixes = tuple(f"{name}." for name in names)
    return [fqn for fqn in fqns if fqn in names or fqn.startswith(prefixes)]


def below_prefixes(begins: Iterable[str], fqns: Iterable[str]) -> list[str]:
    """Return the names that begin with one of these prefixes."""
    prefixes = tuple(begins)
    return [fqn for fqn in fqns if fqn.startswith(prefixes)] if prefixes else []
