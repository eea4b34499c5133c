"""From a restore set into the state: tensors in place, across any change of the ranks."""

import mmap
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from spotelastic_checkpoints.wire import Item, Piece, RestoreSet, Resume
from torch.distributed.checkpoint._traverse import set_element
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.tensor import DTensor

from spotelastic.errors import SpotelasticError, UsageError
from spotelastic.training import values
from spotelastic.training.fitting import Kind, misfit
from spotelastic.training.saving import tensor_at
from spotelastic.training.state import OWN, State, View, chunks_of, flat_state


class Restored:
    """A restore set, opened. Holds maps of shared memory until it is dropped."""

    def __init__(self, restore_set: RestoreSet, source: Resume) -> None:
        self.ident = restore_set.id
        self.source = source
        self.step = restore_set.step
        self.world_size = restore_set.world_size
        self._maps: dict[str, memoryview] = {}
        self._pieces: dict[str, list[Piece]] = defaultdict(list)
        self._sharded: dict[str, DTensor] = {}
        """Sharded tensors in the present state of what is being loaded, by name."""
        # Where the sharding is what it was: no parts to be looked for.
        self._by_key = {piece.item.key: piece for piece in restore_set.pieces}
        for piece in restore_set.pieces:
            self._pieces[piece.item.fqn].append(piece)

    @torch.no_grad()
    def load(self, state: State) -> None:
        """Raises `UsageError` naming what does not fit; the state is untouched then."""
        state.initialise()
        self._forget_state_that_was_not_saved(state)
        view = state.view()
        self._check(state, view)
        targets, sources = [], []
        for chunk in view.chunks:
            if state.is_stateful(str(chunk.path[0])):
                continue
            piece = self._by_key.get(chunk.key)
            if piece is not None and piece.item.sizes == chunk.sizes:
                targets.append(chunk.tensor)
                sources.append(tensor_at(self._map(piece.file), piece.item))
            else:
                self._fill(chunk.fqn, chunk.tensor, chunk.offsets)
        if targets:
            torch._foreach_copy_(targets, sources)
        for name in state.values:
            self._load_other(state, name)
        self._load_hyper_parameters(state)

    def _check(self, state: State, view: View) -> None:
        there = {
            fqn: Kind(pieces[0].item.dtype, pieces[0].item.shape)
            for fqn, pieces in self._pieces.items()
            if pieces[0].item.path[0] != OWN
        }
        here = dict(view.kinds)
        for name in state.values:
            if state.is_stateful(name):
                _leave_to_itself(name, here, there)
        for name, _, _ in state.optimizers():
            _leave_hyper_parameters(f"{name}.param_groups.", here, there)
        if problem := misfit(here, there):
            raise UsageError(f"the checkpoint of step {self.step} is of another state: {problem}")

    def own_value(self, name: str) -> Any:
        """One of the values that we added; None where it was not saved or cannot be had."""
        pieces = self._pieces.get(f"{OWN}.{name}")
        return self._value(pieces[0]) if pieces else None

    def _forget_state_that_was_not_saved(self, state: State) -> None:
        """A parameter without gradients until then has no optimizer state yet."""
        for name, optimizer, by_parameter in state.optimizers():
            for parameter, own in by_parameter.items():
                prefix = f"{name}.state.{parameter}."
                if own and not any(fqn.startswith(prefix) for fqn in self._pieces):
                    for key, held in list(optimizer.state.items()):
                        if held is own:
                            del optimizer.state[key]

    def _load_hyper_parameters(self, state: State) -> None:
        for name, optimizer, by_parameter in state.optimizers():
            for number, group in enumerate(optimizer.param_groups):
                for key, value in group.items():
                    pieces = self._pieces.get(f"{name}.param_groups.{number}.{key}")
                    if key != "params" and pieces and not isinstance(value, torch.Tensor):
                        group[key] = self._value(pieces[0])
            for parameter, own in by_parameter.items():
                for key, value in own.items():
                    pieces = self._pieces.get(f"{name}.state.{parameter}.{key}")
                    if pieces and not isinstance(value, torch.Tensor):
                        own[key] = self._value(pieces[0])

    def _load_other(self, state: State, name: str) -> None:
        value = state.values[name]
        if isinstance(value, torch.nn.Module):
            self._load_extra_state(name, value)
        elif state.is_stateful(name):
            flat = flat_state(name, value.state_dict())
            self._sharded = {
                ".".join(map(str, path)): leaf
                for path, leaf in flat.items()
                if isinstance(leaf, DTensor)
            }
            value.load_state_dict(self._nested(name))
        elif not isinstance(value, torch.optim.Optimizer | torch.Tensor):
            state.values[name] = self._whole(name)

    def _nested(self, name: str) -> Any:
        """As its state_dict() was."""
        structure = self.own_value(f"structure.{name}")
        if structure is not None:
            return self._filled(structure)
        nested: dict[str, Any] = {}
        for fqn, pieces in self._pieces.items():
            if pieces[0].item.path[0] == name:
                set_element(nested, pieces[0].item.path, self._whole(fqn))
        return nested.get(name, {})

    def _filled(self, structure: Any) -> Any:
        if isinstance(structure, str):
            return self._whole(structure)
        if isinstance(structure, list):
            return [self._filled(entry) for entry in structure]
        for key, entry in structure.items():
            structure[key] = self._filled(entry)
        return structure

    def _load_extra_state(self, name: str, module: torch.nn.Module) -> None:
        extra = {
            fqn.removeprefix(f"{name}."): self._value(pieces[0])
            for fqn, pieces in self._pieces.items()
            if pieces[0].item.path[0] == name and not pieces[0].item.is_tensor
        }
        if extra:
            set_model_state_dict(module, extra, options=StateDictOptions(strict=False))

    def _whole(self, fqn: str) -> Any:
        """A value, or a tensor; of one that is sharded here, this rank's part."""
        first = self._pieces[fqn][0]
        if fqn in self._sharded:
            sharded = torch.empty_like(self._sharded[fqn])
            for chunk in chunks_of(fqn, first.item.path, sharded):
                self._fill(fqn, chunk.tensor, chunk.offsets)
            return sharded
        if not first.item.is_tensor:
            return self._value(first)
        tensor = torch.empty(first.item.shape, dtype=getattr(torch, first.item.dtype))
        self._fill(fqn, tensor, (0,) * tensor.dim())
        return tensor

    def _fill(self, fqn: str, target: torch.Tensor, offsets: Sequence[int]) -> None:
        """Copy the part that starts at `offsets` from whichever chunks hold it."""
        copied = 0
        for piece in self._pieces[fqn]:
            part = _overlap(piece.item, offsets, tuple(target.shape))
            if part is None:
                continue
            source = tensor_at(self._map(piece.file), piece.item)
            for axis, (start, length) in enumerate(part):
                source = source.narrow(axis, start - piece.item.offsets[axis], length)
            into = target
            for axis, (start, length) in enumerate(part):
                into = into.narrow(axis, start - offsets[axis], length)
            into.copy_(source)
            copied += source.numel()
        if copied != target.numel():
            raise SpotelasticError(f"the checkpoint of step {self.step} lacks a part of {fqn}")

    def _value(self, piece: Piece) -> Any:
        item = piece.item
        data = self._map(piece.file)[item.offset : item.offset + item.length]
        return values.decode(item.fqn, data)

    def _map(self, file: str) -> memoryview:
        if file not in self._maps:
            with open(file, "rb") as opened:  # noqa: PTH123
                # Private: torch wants writable memory, and this must never be written.
                private = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_COPY)
            self._maps[file] = memoryview(private)
        return self._maps[file]


def _leave_to_itself(name: str, here: dict[str, Kind], there: dict[str, Kind]) -> None:
    """What has a load_state_dict of its own judges itself whether a saved state fits."""

    def part(kinds: Mapping[str, Kind]) -> list[str]:
        return [fqn for fqn in kinds if fqn == name or fqn.startswith(f"{name}.")]

    ours, saved = part(here), part(there)
    if bool(ours) == bool(saved):
        for kinds, names in ((here, ours), (there, saved)):
            for fqn in names:
                del kinds[fqn]


def _leave_hyper_parameters(prefix: str, here: dict[str, Kind], there: dict[str, Kind]) -> None:
    """Versions of torch differ in them: what was not saved keeps the value that the script gave."""
    for kinds in here, there:
        for fqn in [fqn for fqn in kinds if fqn.startswith(prefix)]:
            if not fqn.endswith(".params"):
                del kinds[fqn]


def _overlap(
    item: Item, offsets: Sequence[int], sizes: Sequence[int]
) -> list[tuple[int, int]] | None:
    """Start and length per axis of what a stored chunk and a wanted one share."""
    parts = []
    for axis, (start, size) in enumerate(zip(offsets, sizes, strict=True)):
        low = max(start, item.offsets[axis])
        high = min(start + size, item.offsets[axis] + item.sizes[axis])
        if high <= low:
            return None
        parts.append((low, high - low))
    return parts
