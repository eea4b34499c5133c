"""Relates names, groups and types of a checkpoint to those of the state that it is loaded into."""

from collections.abc import Collection, Iterable, Mapping, Sequence

import torch
from msgspec.structs import replace
from spotelastic_checkpoints.restore.contents import Piece

from spotelastic.training.state.compatibility import Kind, renamed
from spotelastic.training.state.derived import Path
from spotelastic.training.state.state import StateView


def is_of_a_group(path: Path) -> bool:
    """Return whether it is a tensor of a group, as a learning rate may be.

    Which group is which is not known before values are read.
    """
    return len(path) > 3 and path[1] == "param_groups"


def renamed_piece(
    piece: Piece,
    numbered: Mapping[str, Sequence[str]],
    models: Collection[str],
    compiled: Collection[str],
) -> Piece:
    """Return a piece under the name that it has in this state, as `compatibility.renamed` says."""
    path = renamed(piece.item.path, numbered, models, compiled)
    return piece if path == piece.item.path else with_path(piece, path)


def with_path(piece: Piece, path: Path) -> Piece:
    """Return a piece under another name."""
    return piece._replace(item=replace(piece.item, fqn=".".join(map(str, path)), path=path))


def devices_of(view: StateView) -> dict[str, torch.device]:
    """Return the devices of tensors that are saved as values, by name."""
    entries = {entry.fqn: entry for entry in view.entries}
    remade = {fqn: entries[fqn].get() for fqn in below(view.remade, entries)}
    found = {fqn: value.device for fqn, value in remade.items() if isinstance(value, torch.Tensor)}
    for chunk in view.chunks:  # These are the inner tensors of others.
        if chunk.fqn.endswith("]"):
            found[".".join(map(str, chunk.path[:-1]))] = chunk.tensor.device
    return found


def leave_out(names: Collection[str], *of: dict[str, Kind]) -> None:
    """Leave out what these names have."""
    for kinds in of:
        for fqn in below(names, kinds):
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
