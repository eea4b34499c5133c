"""Loads an opened checkpoint into a script's state, in place and for any number of ranks."""

import dataclasses
import mmap
import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import torch
from msgspec.structs import replace
from spotelastic_checkpoints.errors import RestoreFailed
from spotelastic_checkpoints.format.layout import SHARED
from spotelastic_checkpoints.restore.contents import Contents, Piece
from spotelastic_checkpoints.types import Moved, Range, Resume
from torch.distributed.checkpoint._traverse import set_element
from torch.distributed.tensor import DTensor

from spotelastic.errors import SpotelasticError, UsageError
from spotelastic.training.restore.chunk_overlap import Box, hull, overlap
from spotelastic.training.restore.per_rank_loading import PerRankEntries
from spotelastic.training.restore.streaming import Copy, Window, fill, fill_window, joined, windows
from spotelastic.training.save.saver import tensor_at
from spotelastic.training.state import module_loading, values
from spotelastic.training.state.chunks import Chunk, chunks_of, dtype_name
from spotelastic.training.state.compatibility import (
    WRAPPERS,
    Kind,
    Misfit,
    is_numbered,
    is_wrapped,
    misfit_of,
    renamed,
)
from spotelastic.training.state.composite_tensors import inner_name, is_description, made
from spotelastic.training.state.derived import Path, filled, flat_state, poured
from spotelastic.training.state.module_state import set_model_state_dict
from spotelastic.training.state.optimizers import parameter_groups as groups
from spotelastic.training.state.optimizers.optimizer_state import (
    Absent,
    sharded_state,
    unchanged_if_refused,
)
from spotelastic.training.state.optimizers.parameter_owners import names_in_groups
from spotelastic.training.state.state import State, StateView
from spotelastic.training.state.tensors import is_value, pour
from spotelastic.training.state.value_entries import BY_ITSELF, OWN

_MAP_NORESERVE = 0x4000
"""Linux's flag for mapping a file larger than memory, of which only a part is there."""
_OF_PARAMETERS = "params", "param_names"
"""Entries of a group that say which parameters its options are for."""
IMPORTED = "imported"
"""Part of the name of a value that marks an imported checkpoint. The one key that was imported
follows.
"""


class RestoreSource:
    """An open source. It holds maps of shared memory until it is dropped.

    `needs` returns which bytes have to be fetched before `load` reads them. `windows` returns what
    is fetched and filled before that, one window after the other.
    """

    def __init__(self, contents: Contents, source: Resume) -> None:
        self.ident = contents.id
        self.source = source
        self.step = contents.step
        self.world_size = contents.world_size
        self._contents = contents
        self._maps: dict[str, memoryview] = {}
        self._copies: dict[str, list[Copy]] = {}
        """Tensors that are filled exactly as they were saved, by the file that they come from."""
        self._others: list[Chunk] = []
        """Tensors that are put together from parts."""
        self._view: StateView | None = None
        self.read_to = 0
        """Offset in the restore set's file before which windows need nothing any more."""
        self._stateful: set[str] = set()
        """Entries that are loaded through their own load_state_dict()."""
        self._values: set[str] = set()
        """Entries that are replaced."""
        self._contained: dict[str, torch.Tensor] = {}
        """Tensors in containers, by name. They stay, and are filled."""
        self._devices: dict[str, torch.device] = {}
        """Devices of tensors that are saved as values, by name."""
        self._sharded: dict[str, DTensor] = {}
        """Sharded tensors in the present state of what is being loaded, by name."""
        self._numbered: dict[str, list[str]] = {}
        """For optimizers that were saved by the numbers of parameters, their parameters in
        this order.
        """
        self._taken: dict[str, Mapping[str, Mapping[str, str]]] = {}
        """For each entry, the parts of its module that load by their own code, and what
        they load.
        """
        self._left: list[str] = []
        """Keys of the state that stay as they are, because another one was imported alone."""
        self._elsewhere: frozenset[str] = frozenset()
        """Names that only other ranks have in their state."""
        self._index(contents.pieces())
        self._per_rank = PerRankEntries(self._own_paths, contents.world_size)

    def needs(
        self, state: State, rank: int, of_all: Callable[[Misfit], Misfit] = lambda own: own
    ) -> list[Range]:
        """Return the ranges of the restore set's file that this rank reads, except for its windows.

        Raises `UsageError`, naming what does not fit; the state is untouched then. `of_all` takes
        what does not fit this rank and returns what fits none: each may have names of its own.
        """
        for name, value in state.values.items():
            if isinstance(value, torch.nn.Module):
                module_loading.materialise(name, value, self._kinds())
        state.by_themselves = {str(path[2]) for path in self._own_paths if path[1] == BY_ITSELF}
        self._rename(state)
        self._left = self._not_imported(state)
        with unchanged_if_refused(_optimizers(state)):
            self._make_optimizer_state(state)
            entries = state.values.items()
            self._stateful = {name for name, value in entries if state.is_stateful(value)}
            self._values = {name for name, value in entries if state.is_value(value)}
            self._contained = state.contained(self._values)
            self._view = state.view()
            self._check(state, self._view, of_all)
        self._view = _without(self._view, self._taken)
        if self._left and rank == 0:
            self._tell_what_is_left()
        self._devices = _devices(self._view)
        self._find_copies(self._view)
        if not self._contents.fetched:
            return []
        boxes = self._boxes(self._view)
        ranges = []
        for fqn, pieces in self._pieces.items():
            if fqn in self._elsewhere:
                continue
            for file, item in pieces:
                if file != self._contents.file or item.rank not in (SHARED, rank):
                    continue
                if not item.is_tensor or fqn not in boxes:
                    ranges.append((item.offset, item.offset + item.length))
                    continue
                for offsets, sizes in boxes[fqn]:
                    part = overlap(item, offsets, sizes)
                    if part is not None:
                        ranges.append(hull(item, part))
        return joined(ranges)

    def windows(self) -> list[Window]:
        """Return what has to be fetched and then filled, in this order. Call `needs` before."""
        return list(windows(self._copies.get(self._contents.file, ())))

    def fill(self, window: Window, moved: Sequence[Moved] = ()) -> None:
        """Fill a window. Ranges that have `moved` lie elsewhere in the file."""
        self.read_to = window.start
        fill_window(self._contents.file, window, moved)

    def match_groups(self, state: State) -> None:
        """Give saved parameter groups of optimizers the numbers that they have here.

        Call it when what `needs` returned has been fetched, and before anything is filled. Raises
        `UsageError` for other groups.
        """
        self._check_groups(state)
        for name in state.by_themselves:
            self._check_order(state, name)
        assert self._view is not None
        for name, optimizer in state.optimizers():
            if name in self._numbered or name in self._left:
                continue
            here = _groups(self._view, name, optimizer)
            saved = [
                self._value(self._pieces[f"{name}.param_groups.{number}.params"][0])
                for number in range(len(here))
            ]
            stateful = {path[2] for path in self._paths if path[:2] == (name, "state")}
            try:
                if stateful - {parameter for group in saved for parameter in group}:
                    groups.check_numbers(name, here, saved)
                    continue
                numbers = groups.matched(name, here, saved)
            except UsageError as error:
                raise UsageError(f"the checkpoint of step {self.step}: {error}") from None
            if numbers != sorted(numbers):
                self._number_groups(name, numbers)

    def _number_groups(self, name: str, numbers: Sequence[int]) -> None:
        def of(piece: Piece) -> Piece:
            path = piece.item.path
            if path[:2] != (name, "param_groups"):
                return piece
            return _at(piece, (*path[:2], type(path[2])(numbers[int(path[2])]), *path[3:]))

        known = [piece for pieces in self._pieces.values() for piece in pieces]
        self._index(map(of, known))

    @torch.no_grad()
    def load(self, state: State) -> None:
        """Load everything else, after all windows.

        Raises `SpotelasticError` if a slot was overwritten.
        """
        for file, copies in self._copies.items():
            if file != self._contents.file:
                fill(file, copies, self._map)
        for chunk in self._others:
            if chunk.path[0] not in self._stateful:
                self._fill_other(chunk)
        for name, value in [*state.values.items()]:
            if not isinstance(value, torch.Tensor) or name in self._values:
                self._load_other(state, name, value)
        self._load_hyper_parameters(state)
        self._per_rank.load(state, lambda fqn: self._value(self._pieces[fqn][0]))
        try:
            self._contents.check()
        except RestoreFailed as error:
            raise SpotelasticError(f"cannot resume from step {self.step}: {error}") from error

    def _index(self, pieces: Iterable[Piece]) -> None:
        self._pieces: dict[str, list[Piece]] = {}
        for piece in pieces:
            self._pieces.setdefault(piece.item.fqn, []).append(piece)
        # Where the sharding is as it was, there are no parts to look for.
        self._parts = {
            (fqn, piece.item.offsets): piece
            for fqn, pieces in self._pieces.items()
            if len(pieces) > 1
            for piece in pieces
        }
        self._paths = [pieces[0].item.path for pieces in self._pieces.values()]
        self._own_paths = [path for path in self._paths if path[0] == OWN]
        self._inner = {fqn for fqn in self._pieces if fqn.endswith("]") and self._is_inner(fqn)}

    def _is_inner(self, fqn: str) -> bool:
        """Return whether it is an inner tensor of another one, which was saved as a value."""
        first = self._pieces[fqn][0]
        above = self._pieces.get(".".join(map(str, first.item.path[:-1])), [first])
        return first.item.is_tensor and not above[0].item.is_tensor

    def _rename(self, state: State) -> None:
        """Give entries that torch.save wrote the names that they have here.

        An optimizer's own state_dict() numbers the parameters. A wrapped model's has the wrapper's
        prefix.
        """
        paths = self._paths
        # Without a structure they are names that look like numbers, those of a ParameterList.
        kept = {path[2] for path in self._own_paths if path[:2] == (OWN, "structure")}
        numbered = {path[0] for path in paths if path[0] in kept and is_numbered(path)}
        wrapped = {path[0] for path in paths} - {path[0] for path in paths if not is_wrapped(path)}
        if not numbered and not wrapped:
            return
        view = state.view()
        self._numbered = {
            name: _parameters(view, name, optimizer)
            for name, optimizer in state.optimizers()
            if name in numbered
        }
        models = {
            name
            for name, value in state.values.items()
            if name in wrapped and isinstance(value, torch.nn.Module)
            if not _is_wrapped(view, name)
        }
        known = [piece for pieces in self._pieces.values() for piece in pieces]
        self._index(_renamed(piece, self._numbered, models) for piece in known)

    def _check_groups(self, state: State) -> None:
        """Raise `UsageError` where groups have other sizes, so that numbers mean other
        parameters.
        """
        for name in self._numbered:
            for number, group in enumerate(state.values[name].param_groups):
                fqn = f"{name}.param_groups.{number}"
                saved, here = self._value(self._pieces[f"{fqn}.params"][0]), len(group["params"])
                if len(saved) != here:
                    raise UsageError(
                        f"the checkpoint of step {self.step} is of another state: {fqn} has "
                        f"{len(saved)} parameters there and {here} here"
                    )

    def _check_order(self, state: State, name: str) -> None:
        """Raise `UsageError` where parameters are known to have had other numbers when saved."""
        optimizer = state.values.get(name)
        if not isinstance(optimizer, torch.optim.Optimizer):
            return
        saved, here = (
            self.own_value(f"{BY_ITSELF}.{name}"),
            names_in_groups(state.values, optimizer),
        )
        if saved and here and saved != here:
            raise UsageError(
                f"the checkpoint of step {self.step}: {name} was saved by the numbers of its "
                "parameters, but these are others here, or in another order: build its groups as "
                "when it was saved"
            )

    def _not_imported(self, state: State) -> list[str]:
        if not any(path[:2] == (OWN, IMPORTED) for path in self._own_paths):
            return []
        there = {path[0] for path in self._paths}
        return [name for name in state.values if name not in there]

    def _tell_what_is_left(self) -> None:
        names, begin = ", ".join(self._left), "begins" if len(self._left) == 1 else "begin"
        print(
            f"spotelastic: step {self.step} is an imported part of a state: {names} {begin} afresh",
            file=sys.stderr,
            flush=True,
        )

    def _find_copies(self, view: StateView) -> None:
        self._copies, self._others, stateful = defaultdict(list), [], self._stateful
        for chunk in view.chunks:
            piece = self._as_saved(chunk)
            if piece is None or chunk.path[0] in stateful or _is_of_a_group(chunk.path):
                self._others.append(chunk)
            else:
                self._copies[piece.file].append(Copy(piece, chunk.tensor))

    def _as_saved(self, chunk: Chunk) -> Piece | None:
        """Return the piece that is exactly this chunk of the tensor, or None."""
        pieces = self._pieces.get(chunk.fqn, ())
        piece = pieces[0] if len(pieces) == 1 else self._parts.get(chunk.key)
        if piece is None:
            return None
        item = piece.item
        same = item.offsets == chunk.offsets and item.sizes == chunk.sizes
        return piece if same and item.dtype == dtype_name(chunk.tensor) else None

    def _boxes(self, view: StateView) -> Mapping[str, Sequence[Box]]:
        """Return the parts of tensors that are read in parts.

        Everything else is read as a whole.
        """
        whole = {chunk.fqn for chunk in view.chunks if chunk.path[0] in self._stateful}
        grouped = {chunk.fqn for chunk in self._others if _is_of_a_group(chunk.path)}
        boxes: dict[str, list[Box]] = {
            fqn: []
            for fqn, kind in view.kinds.items()
            if kind.dtype and (fqn in view.sharded or fqn not in whole) and fqn not in grouped
        }
        for chunk in self._others:
            if chunk.fqn in boxes:
                boxes[chunk.fqn].append((chunk.offsets, chunk.sizes))
        return boxes

    def _check(self, state: State, view: StateView, of_all: Callable[[Misfit], Misfit]) -> None:
        there, here = self._kinds(), dict(view.kinds)
        for fqn in _below(self._left, here):
            del here[fqn]
        for kinds in here, there:
            for fqn in _below(view.remade, kinds):
                del kinds[fqn]
        for name in self._stateful:
            # An entry with a structure was saved, though it may have been empty.
            known = f"{OWN}.structure.{name}" in self._pieces
            _leave_to_itself(name, here, there, known=known)
        for name in self._values:
            _leave_values(name, here, there)
        for name, _ in state.optimizers():
            _leave_hyper_parameters(f"{name}.param_groups.", here, there)
        for name, value in state.values.items():
            if isinstance(value, torch.nn.Module) and here != there:
                self._taken[name] = module_loading.takes(name, value, here, there)
                for fqn in _below_prefixes(self._taken[name], {**here, **there}):
                    here.pop(fqn, None)
                    there.pop(fqn, None)
        there |= self._per_rank.kinds
        here |= {name: Kind() for name, _ in state.per_rank()}
        own = misfit_of(here, there)
        own = own._replace(changed=(*own.changed, *self._per_rank.find(state)))
        self._elsewhere = own.unexpected | self._per_rank.unread
        if problem := str(of_all(own)):
            raise UsageError(f"the checkpoint of step {self.step} is of another state: {problem}")

    def _kinds(self) -> dict[str, Kind]:
        """Return types and shapes of everything that was saved, without what spotelastic added."""
        return {
            fqn: Kind(pieces[0].item.dtype, pieces[0].item.shape)
            for fqn, pieces in self._pieces.items()
            if pieces[0].item.path[0] != OWN and fqn not in self._inner
        }

    def own_value(self, name: str) -> Any:
        """Return a value that spotelastic added; None where it was not saved or cannot be had."""
        pieces = self._pieces.get(f"{OWN}.{name}")
        return self._value(pieces[0]) if pieces else None

    def _make_optimizer_state(self, state: State) -> None:
        try:
            state.make_optimizer_state(self._kinds_by_path(), self._left)
        except UsageError as error:
            raise UsageError(f"the checkpoint of step {self.step}: {error}") from error

    def _kinds_by_path(self) -> dict[Path, Kind]:
        """Return types and shapes by path, of entries as deep as an optimizer's."""
        return {
            pieces[0].item.path: Kind(pieces[0].item.dtype, pieces[0].item.shape)
            for fqn, pieces in self._pieces.items()
            if len(pieces[0].item.path) > 3 and fqn not in self._inner
        }

    def _load_hyper_parameters(self, state: State) -> None:
        for name, optimizer in state.optimizers():
            for number, group in enumerate(optimizer.param_groups):
                self._load_values(f"{name}.param_groups.{number}", group, leave="params")
            self._add_options(name, optimizer.param_groups)
            for parameter, own in state.by_parameter(optimizer).items():
                self._load_values(f"{name}.state.{parameter}", own)

    def _add_options(self, name: str, groups: Sequence[dict[str, Any]]) -> None:
        """Add options that groups were saved with and do not have.

        Some optimizers add them in their steps, and schedulers when they are made.
        """
        known = [set(map(str, group)) for group in groups]
        for path in self._paths:
            if path[:2] != (name, "param_groups") or path[3] in _OF_PARAMETERS:
                continue
            number = int(path[2])
            if path[3] not in known[number]:
                set_element(groups[number], path[3:], self._whole(".".join(map(str, path))))

    def _load_values(self, fqn: str, held: Any, leave: str = "") -> None:
        """Load what is no tensor now, in a container of an optimizer and in those within it."""
        entries = held.items() if isinstance(held, Mapping) else enumerate(held)
        for key, value in list(entries):
            pieces = self._pieces.get(f"{fqn}.{key}")
            if key == leave or (isinstance(value, torch.Tensor) and not is_value(value)):
                continue
            if pieces and isinstance(value, Absent | torch.Tensor):
                self._devices[pieces[0].item.fqn] = value.device
                held[key] = self._value(pieces[0])
            elif pieces:
                held[key] = self._hyper_parameter(pieces[0])
            elif isinstance(value, Mapping | list):
                self._load_values(f"{fqn}.{key}", value)

    def _hyper_parameter(self, piece: Piece) -> Any:
        """Return a group's option that is no tensor now, though it may have been one."""
        value = self._value(piece)
        return value.item() if isinstance(value, torch.Tensor) and value.numel() == 1 else value

    def _load_other(self, state: State, name: str, value: Any) -> None:
        if name in self._left:
            return
        if isinstance(value, torch.nn.Module):
            self._load_remade(name, value)
        elif name in self._stateful:
            flat = flat_state(name, value.state_dict())
            self._sharded = {
                ".".join(map(str, path)): leaf
                for path, leaf in flat.items()
                if isinstance(leaf, DTensor)
            }
            if isinstance(value, torch.optim.Optimizer):
                self._sharded |= sharded_state(name, value, self._kinds_by_path())
            # The entry may keep what it is given as it is.
            self._devices |= {
                ".".join(map(str, path)): leaf.device
                for path, leaf in flat.items()
                if isinstance(leaf, torch.Tensor) and not leaf.is_meta
            }
            value.load_state_dict(self._nested(name))
        elif name in self._values:
            saved = self._whole(name) if name in self._pieces else self._nested(name)
            state.values[name] = poured(value, saved)

    def _nested(self, name: str) -> Any:
        """Return the entry as its state_dict() was, or as the container was."""
        structure = self.own_value(f"structure.{name}")
        if structure is not None:
            return filled(structure, self._whole)
        nested: dict[str, Any] = {}
        for fqn, pieces in self._pieces.items():
            if pieces[0].item.path[0] == name and fqn not in self._inner:
                set_element(nested, pieces[0].item.path, self._whole(fqn))
        return nested.get(name, {})

    def _load_remade(self, name: str, module: torch.nn.Module) -> None:
        """Load what set_extra_state() and hooks of a module take. All else is in its place."""
        structure = self.own_value(f"structure.{name}")
        if structure is not None:
            state = filled(structure, self._whole)
            for key, value in [*state.items()]:
                is_odd = isinstance(value, torch.Tensor) and is_value(value)
                if is_odd and module_loading.replaced(name, module, key, value):
                    del state[key]
            if state:
                set_model_state_dict(name, module, state)
        for begin, names in self._taken.get(name, {}).items():
            loaded = {key: self._whole(fqn) for key, fqn in names.items()}
            module_loading.load(module, begin, name, loaded)

    def _whole(self, fqn: str) -> Any:
        """Return a value or a whole tensor; of one that is sharded here, this rank's part."""
        if fqn in self._contained:
            return self._contained[fqn]
        first = self._pieces[fqn][0]
        if fqn in self._sharded:
            sharded = torch.empty_like(self._sharded[fqn])
            for chunk in chunks_of(fqn, first.item.path, sharded):
                self._fill(fqn, chunk.tensor, chunk.offsets)
            return sharded
        if not first.item.is_tensor:
            return self._value(first)
        dtype, device = getattr(torch, first.item.dtype), self._devices.get(fqn)
        tensor = torch.empty(first.item.shape, dtype=dtype, device=device)
        self._fill(fqn, tensor, (0,) * tensor.dim())
        return tensor

    def _fill_other(self, chunk: Chunk) -> None:
        """Fill a chunk from other chunks, another dtype, or a number, as a learning rate may be.

        What was not saved keeps the script's value.
        """
        pieces = self._pieces.get(chunk.fqn, [])
        if pieces and pieces[0].item.is_tensor:
            self._fill(chunk.fqn, chunk.tensor, chunk.offsets)
        elif pieces:
            pour([chunk.tensor], [torch.as_tensor(self._value(pieces[0]))])

    def _fill(self, fqn: str, target: torch.Tensor, offsets: Sequence[int]) -> None:
        """Copy the part that starts at `offsets` from all chunks that hold some of it."""
        copied = 0
        for piece in self._pieces[fqn]:
            part = overlap(piece.item, offsets, tuple(target.shape))
            if part is None:
                continue
            source = tensor_at(self._map(piece.file), piece.item)
            for axis, (start, length) in enumerate(part):
                source = source.narrow(axis, start - piece.item.offsets[axis], length)
            into = target
            for axis, (start, length) in enumerate(part):
                into = into.narrow(axis, start - offsets[axis], length)
            pour([into], [source])
            copied += source.numel()
        if copied != target.numel():
            raise SpotelasticError(
                f"the checkpoint of step {self.step} is damaged: a part of {fqn} is missing"
            )

    def _value(self, piece: Piece) -> Any:
        item = piece.item
        data = self._map(piece.file)[item.offset : item.offset + item.length]
        value, device = values.decode(item.fqn, data), self._devices.get(item.fqn)
        if is_description(value):
            return made(
                value, lambda name: self._whole(f"{item.fqn}.{inner_name(name)}").to(device)
            )
        if isinstance(value, torch.Tensor) and device is not None:
            return value.to(device)
        return value

    def _map(self, file: str) -> memoryview:
        if file not in self._maps:
            with open(file, "rb") as opened:  # noqa: PTH123
                # The map is private: torch wants writable memory, and this must never be written.
                flags = mmap.MAP_PRIVATE | _MAP_NORESERVE
                private = mmap.mmap(opened.fileno(), 0, flags=flags)
            self._maps[file] = memoryview(private)
        return self._maps[file]


def _parameters(view: StateView, name: str, optimizer: torch.optim.Optimizer) -> list[str]:
    """Return the names of an optimizer's parameters, in the order in which torch numbers them."""
    return [fqn for group in _groups(view, name, optimizer) for fqn in group]


def _groups(view: StateView, name: str, optimizer: torch.optim.Optimizer) -> list[list[str]]:
    """Return the names of each group's parameters."""
    entries = {entry.fqn: entry for entry in view.entries if entry.path[0] == name}
    numbers = range(len(optimizer.param_groups))
    return [entries[f"{name}.param_groups.{number}.params"].get() for number in numbers]


def _optimizers(state: State) -> list[torch.optim.Optimizer]:
    return [value for value in state.values.values() if isinstance(value, torch.optim.Optimizer)]


def _is_of_a_group(path: Path) -> bool:
    """Return whether it is a tensor of a group, as a learning rate may be.

    Which group is which is not known before values are read.
    """
    return len(path) > 3 and path[1] == "param_groups"


def _is_wrapped(view: StateView, name: str) -> bool:
    """Return whether names of a model in this state begin like a wrapper's."""
    prefixes = tuple(f"{name}.{wrapper}" for wrapper in WRAPPERS)
    return any(fqn.startswith(prefixes) for fqn in view.kinds)


def _renamed(piece: Piece, numbered: Mapping[str, Sequence[str]], models: Collection[str]) -> Piece:
    path = renamed(piece.item.path, numbered, models)
    return piece if path == piece.item.path else _at(piece, path)


def _at(piece: Piece, path: Path) -> Piece:
    return piece._replace(item=replace(piece.item, fqn=".".join(map(str, path)), path=path))


def _without(view: StateView, taken: Mapping[str, Mapping[str, Any]]) -> StateView:
    """Return the view without what modules load by their own code."""
    begins = [begin for parts in taken.values() for begin in parts]
    gone = set(_below_prefixes(begins, view.kinds))
    if not gone:
        return view
    kinds = {fqn: kind for fqn, kind in view.kinds.items() if fqn not in gone}
    chunks = tuple(chunk for chunk in view.chunks if chunk.fqn not in gone)
    return dataclasses.replace(view, chunks=chunks, kinds=kinds)


def _below_prefixes(begins: Iterable[str], fqns: Iterable[str]) -> list[str]:
    prefixes = tuple(begins)
    return [fqn for fqn in fqns if fqn.startswith(prefixes)] if prefixes else []


def _devices(view: StateView) -> dict[str, torch.device]:
    entries = {entry.fqn: entry for entry in view.entries}
    remade = {fqn: entries[fqn].get() for fqn in _below(view.remade, entries)}
    found = {fqn: value.device for fqn, value in remade.items() if isinstance(value, torch.Tensor)}
    for chunk in view.chunks:  # These are the inner tensors of others.
        if chunk.fqn.endswith("]"):
            found[".".join(map(str, chunk.path[:-1]))] = chunk.tensor.device
    return found


def _leave_to_itself(
    name: str, here: dict[str, Kind], there: dict[str, Kind], *, known: bool
) -> None:
    """Leave out an entry with a load_state_dict of its own, which decides itself what fits."""

    ours, saved = (_below({name}, kinds) for kinds in (here, there))
    if known or bool(ours) == bool(saved):
        for kinds, names in ((here, ours), (there, saved)):
            for fqn in names:
                del kinds[fqn]


def _leave_values(name: str, here: dict[str, Kind], there: dict[str, Kind]) -> None:
    """Leave out what is replaced and may be anything.

    Tensors that are filled in place must exist.
    """
    ours, saved = (_below({name}, kinds) for kinds in (here, there))
    if ours and saved:
        for fqn in ours:
            if not here[fqn].dtype:
                del here[fqn]
        for fqn in saved:
            if fqn not in here:
                del there[fqn]


def _below(names: Collection[str], fqns: Iterable[str]) -> list[str]:
    """Return the names that are one of these, or a part of one."""
    if not names:
        return []
    prefixes = tuple(f"{name}." for name in names)
    return [fqn for fqn in fqns if fqn in names or fqn.startswith(prefixes)]


def _leave_hyper_parameters(prefix: str, here: dict[str, Kind], there: dict[str, Kind]) -> None:
    """Leave out options of groups. Versions of torch differ, and the script's values are kept."""
    for kinds in here, there:
        for fqn in [fqn for fqn in kinds if fqn.startswith(prefix)]:
            if not fqn.endswith(".params"):
                del kinds[fqn]
