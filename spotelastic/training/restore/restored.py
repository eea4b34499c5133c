"""Loads an opened checkpoint into a script's state, in place and for any number of ranks."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from spotelastic_checkpoints.errors import RestoreFailed
from spotelastic_checkpoints.format.layout import SHARED
from spotelastic_checkpoints.restore.contents import Contents, Piece
from spotelastic_checkpoints.types import Moved, Range, Resume
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from spotelastic.errors import SpotelasticError, UsageError
from spotelastic.training.restore.matching import (
    below,
    devices_of,
    is_of_a_group,
    leave_hyper_parameters,
    leave_out,
    leave_values,
    renamed_piece,
    with_path,
)
from spotelastic.training.restore.optimizer_options import OptimizerOptions
from spotelastic.training.restore.per_rank_loading import PerRankEntries
from spotelastic.training.restore.saved_items import Box, SavedItems, hull, overlap
from spotelastic.training.restore.streaming import Copy, Window, fill, joined, windows
from spotelastic.training.runtime.arena_folder import say
from spotelastic.training.state import each_rank, growth, module_loading
from spotelastic.training.state.chunks import Chunk
from spotelastic.training.state.compatibility import (
    WRAPPERS,
    Kind,
    Misfit,
    is_compiled,
    is_numbered,
    is_wrapped,
    misfit_of,
    without_compiler,
)
from spotelastic.training.state.derived import dressed, filled, flat_state, poured
from spotelastic.training.state.module_state import get_model_state_dict, set_model_state_dict
from spotelastic.training.state.optimizers import group_lists
from spotelastic.training.state.optimizers import parameter_groups as groups
from spotelastic.training.state.optimizers.optimizer_state import (
    sharded_state,
    unchanged_if_refused,
)
from spotelastic.training.state.optimizers.parameter_owners import names_in_groups
from spotelastic.training.state.state import State, StateView
from spotelastic.training.state.tensors import is_value, pour
from spotelastic.training.state.value_entries import BY_ITSELF, CLASS, OWN, class_name

IMPORTED = "imported"
"""Part of the name of a value that marks an import. The one key that was imported follows."""


class RestoreSource:
    """An open source. It holds maps of shared memory until it is dropped.

    `needs` returns which bytes have to be fetched before `load` reads them. `windows` returns what
    is fetched and filled before that, one window after the other.
    """

    def __init__(self, contents: Contents, source: Resume, *, afresh: str = "--fresh") -> None:
        """`afresh` is what makes the run begin at step 0, for messages."""
        self._afresh = afresh
        self._elsewhere_by = "--storage" if afresh == "--fresh" else "storage="
        self.ident = contents.id
        self.source = source
        self.step = contents.step
        self.world_size = contents.world_size
        self._contents = contents
        self._saved = SavedItems(contents)
        self._copies: dict[str, list[Copy]] = {}
        """Tensors that are filled exactly as they were saved, by the file that they come from."""
        self._others: list[Chunk] = []
        """Tensors that are put together from parts."""
        self.read_to = 0
        """Offset in the restore set's file before which windows need nothing any more."""
        self._stateful: set[str] = set()
        """Entries that are loaded through their own load_state_dict()."""
        self._values: set[str] = set()
        """Entries that are replaced."""
        self._numbered: dict[str, list[str]] = {}
        """For optimizers that were saved by numbers, their parameters in this order."""
        self._numbers: dict[str, Sequence[int]] = {}
        """For optimizers whose groups are in another order here, their numbers by those saved."""
        self._left: list[str] = []
        """Keys of the state that stay as they are, because another one was imported alone."""
        self._elsewhere: frozenset[str] = frozenset()
        """Names that only other ranks have in their state."""
        self._per_rank = PerRankEntries(self._saved.own_paths, contents.world_size)

    def needs(
        self, state: State, rank: int, of_all: Callable[[Misfit], Misfit] = lambda own: own
    ) -> list[Range]:
        """Return the ranges of the restore set's file that this rank reads, except for its windows.

        Raises `UsageError`, naming what does not fit; the state is untouched then. `of_all` takes
        what does not fit this rank and returns what fits none: each may have names of its own.
        """
        for name, value in state.values.items():
            if isinstance(value, torch.nn.Module):
                module_loading.materialise(name, value, self._saved.kinds())
        state.by_themselves = {
            str(path[2]) for path in self._saved.own_paths if path[1] == BY_ITSELF
        }
        self._rename(state)
        self._left = self._not_imported(state)
        saved, own = self._saved.kinds(), self._saved.own_paths
        with (
            growth.prepared(state, saved, own),
            unchanged_if_refused(v for v in state.values.values() if isinstance(v, Optimizer)),
        ):
            self._make_optimizer_state(state)
            entries = state.values.items()
            self._stateful = {name for name, value in entries if state.is_stateful(value)}
            self._values = {name for name, value in entries if state.is_value(value)}
            self._saved.contained = state.contained(self._values)
            view = state.view()
            self._check(state, view, of_all)
        if rank == 0:
            self._tell_what_is_left()
            self._tell_classes(state)
        self._saved.devices = devices_of(view)
        self._find_copies(view)
        if not self._contents.fetched:
            return []
        boxes = self._boxes(view)
        ranges = []
        for fqn, pieces in self._saved.pieces.items():
            if fqn in self._elsewhere:
                continue
            for file, item in pieces:
                of_others = item.rank not in (SHARED, rank) and not each_rank.is_entry(fqn)
                if file != self._contents.file or of_others:
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
        fill(self._contents.file, window.copies, moved)

    def match_groups(self, state: State) -> None:
        """Give saved parameter groups of optimizers the numbers that they have here.

        Call it when what `needs` returned has been fetched, and before anything is filled. Raises
        `UsageError` for other groups.
        """
        self._check_groups(state)
        for name in state.by_themselves:
            self._check_order(state, name)
        for name, optimizer in state.optimizers():
            if name in self._numbered or name in self._left:
                continue
            here = state.groups(optimizer)
            saved = [
                self._saved.value(self._saved.pieces[f"{name}.param_groups.{number}.params"][0])
                for number in range(len(here))
            ]
            saved = [list(map(without_compiler, group)) for group in saved]
            stateful = {path[2] for path in self._saved.paths if path[:2] == (name, "state")}
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
        self._numbers[name] = numbers

        def of(piece: Piece) -> Piece:
            path = piece.item.path
            if path[:2] != (name, "param_groups"):
                return piece
            return with_path(piece, (*path[:2], type(path[2])(numbers[int(path[2])]), *path[3:]))

        known = [piece for pieces in self._saved.pieces.values() for piece in pieces]
        self._saved.index(map(of, known))

    @torch.no_grad()
    def load(self, state: State) -> None:
        """Load everything else, after all windows.

        Raises `SpotelasticError` if a slot was overwritten.
        """
        for file, copies in self._copies.items():
            if file != self._contents.file:
                fill(file, copies)
        for chunk in self._others:
            if chunk.path[0] not in self._stateful:
                self._fill_other(chunk)
        for name, value in [*state.values.items()]:
            if not isinstance(value, torch.Tensor) or name in self._values:
                self._load_other(state, name, value)
            elif isinstance(told := self._saved.own_value(f"structure.{name}"), tuple):
                state.values[name] = dressed(value, *told[2:])
            if isinstance(value, torch.nn.Module):
                told = self._saved.own_value(f"{growth.TRAINED}.{name}")
                growth.set_trained(state, name, told or ())
        for name, optimizer in state.optimizers():
            order = self._numbers.get(name, range(len(optimizer.param_groups)))
            OptimizerOptions(self._saved, name, optimizer, order).load(state)
        self._per_rank.load(state, lambda fqn: self._saved.value(self._saved.pieces[fqn][0]))
        try:
            self._contents.check()
        except RestoreFailed as error:
            raise SpotelasticError(f"cannot resume from step {self.step}: {error}") from error

    def _rename(self, state: State) -> None:
        """Give entries that torch.save wrote the names that they have here.

        An optimizer's own state_dict() numbers the parameters. A wrapped model's has the wrapper's
        prefix.
        """
        paths = self._saved.paths
        # Without a structure they are names that look like numbers, those of a ParameterList.
        kept = {path[2] for path in self._saved.own_paths if path[:2] == (OWN, "structure")}
        numbered = {path[0] for path in paths if path[0] in kept and is_numbered(path)}
        wrapped = {path[0] for path in paths} - {path[0] for path in paths if not is_wrapped(path)}
        if not numbered and not wrapped and not any(map(is_compiled, paths)):
            return
        self._numbered = {
            name: [fqn for group in state.groups(optimizer) for fqn in group]
            for name, optimizer in state.optimizers()
            if name in numbered
        }
        modules = {n: v for n, v in state.values.items() if isinstance(v, torch.nn.Module)}
        models = {
            name
            for name, module in modules.items()
            if name in wrapped
            if not any(key.startswith(WRAPPERS) for key in get_model_state_dict(module))
        }
        compiled = {*modules, *(name for name, _ in state.optimizers())}
        known = [piece for pieces in self._saved.pieces.values() for piece in pieces]
        self._saved.index(renamed_piece(piece, self._numbered, models, compiled) for piece in known)

    def _check_groups(self, state: State) -> None:
        """Raise `UsageError` where groups have other sizes.

        Numbers mean other parameters then.
        """
        for name in self._numbered:
            for number, group in enumerate(state.values[name].param_groups):
                fqn = f"{name}.param_groups.{number}"
                saved, here = (
                    self._saved.value(self._saved.pieces[f"{fqn}.params"][0]),
                    len(group["params"]),
                )
                if len(saved) != here:
                    raise UsageError(
                        f"the checkpoint of step {self.step} is of another state: {fqn} has "
                        f"{len(saved)} parameters there and {here} here"
                    )

    def _check_order(self, state: State, name: str) -> None:
        """Raise `UsageError` where parameters are known to have had other numbers when saved."""
        optimizer = state.values.get(name)
        if not isinstance(optimizer, Optimizer):
            return
        saved, here = (
            self._saved.own_value(f"{BY_ITSELF}.{name}"),
            names_in_groups(state.values, optimizer),
        )
        if saved and here and saved != here:
            raise UsageError(
                f"the checkpoint of step {self.step}: {name} was saved by the numbers of its "
                "parameters, but these are others here, or in another order: build its groups as "
                "when it was saved"
            )

    def _not_imported(self, state: State) -> list[str]:
        if not any(path[:2] == (OWN, IMPORTED) for path in self._saved.own_paths):
            return []
        there = {path[0] for path in self._saved.paths}
        return [name for name in state.values if name not in there]

    def _tell_what_is_left(self) -> None:
        names, begin = ", ".join(self._left), "begins" if len(self._left) == 1 else "begin"
        if names:
            say(f"step {self.step} is an imported part of a state: {names} {begin} afresh")

    def _tell_classes(self, state: State) -> None:
        """Tell of optimizers of another class, which may have the same options."""
        saved = {path[2]: path[3] for path in self._saved.own_paths if path[1] == CLASS}
        for name, value in state.values.items():
            here = class_name(value)
            if isinstance(value, Optimizer) and saved.get(name, here) != here:
                say(
                    f"{name} was saved of {saved[name]} and is {here} here: "
                    "it continues with the saved options and state"
                )

    def _find_copies(self, view: StateView) -> None:
        self._copies, self._others, stateful = defaultdict(list), [], self._stateful
        for chunk in view.chunks:
            piece = self._saved.as_saved(chunk)
            if piece is None or chunk.path[0] in stateful or is_of_a_group(chunk.path):
                self._others.append(chunk)
            else:
                self._copies[piece.file].append(Copy(piece, chunk.tensor))

    def _boxes(self, view: StateView) -> Mapping[str, Sequence[Box]]:
        """Return the parts of tensors that are read in parts.

        Everything else is read as a whole.
        """
        whole = {chunk.fqn for chunk in view.chunks if chunk.path[0] in self._stateful}
        grouped = {chunk.fqn for chunk in self._others if is_of_a_group(chunk.path)}
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
        there, here = self._saved.kinds(), dict(view.kinds)
        leave_out(self._left, here)
        leave_out(view.remade, here, there)
        for name in self._stateful:
            # An entry with a structure was saved, though it may have been empty.
            known = f"{OWN}.structure.{name}" in self._saved.pieces
            if known or bool(below({name}, here)) == bool(below({name}, there)):
                leave_out({name}, here, there)  # it decides itself what fits
        for name in self._values:
            leave_values(name, here, there)
        for name, _ in state.optimizers():
            leave_hyper_parameters(f"{name}.param_groups.", here, there)
        there |= self._per_rank.kinds
        here |= {name: Kind() for name, _ in state.per_rank()}
        own = misfit_of(here, there)
        own = own._replace(changed=(*own.changed, *self._per_rank.find(state)))
        self._elsewhere = own.unexpected | self._per_rank.unread
        if problem := str(of_all(own)):
            raise self._of_another_state(problem)

    def _of_another_state(self, problem: str) -> UsageError:
        return UsageError(
            f"the checkpoint of step {self.step} is of another state: {problem}; build the "
            "state as when it was saved, or, if this is another run, give it a storage of its "
            f"own ({self._elsewhere_by}) or begin afresh ({self._afresh}): the checkpoint is "
            "kept"
        )

    def own_value(self, name: str) -> Any:
        """Return a value that spotelastic added; None where it was not saved or cannot be had."""
        return self._saved.own_value(name)

    def _make_optimizer_state(self, state: State) -> None:
        try:
            state.make_optimizer_state(self._saved.kinds_by_path(), self._left)
        except UsageError as error:
            # Parameters of other shapes are the cause, not what the optimizer makes of them.
            within = tuple(
                f"{name}."
                for name, value in state.values.items()
                if isinstance(value, torch.nn.Module)
            )
            found = misfit_of(state.view().kinds, self._saved.kinds()).changed
            if changed := tuple(each for each in found if each[0].startswith(within)):
                raise self._of_another_state(str(Misfit(changed=changed))) from error
            raise UsageError(f"the checkpoint of step {self.step}: {error}") from error

    def _load_other(self, state: State, name: str, value: Any) -> None:
        if name in self._left:
            return
        if isinstance(value, torch.nn.Module):
            self._load_remade(name, value)
        elif name in self._stateful:
            flat = flat_state(name, value.state_dict())
            self._saved.sharded = {
                ".".join(map(str, path)): leaf
                for path, leaf in flat.items()
                if isinstance(leaf, DTensor)
            }
            if isinstance(value, Optimizer):
                self._saved.sharded |= sharded_state(name, value, self._saved.kinds_by_path())
            # The entry may keep what it is given as it is.
            self._saved.devices |= {
                ".".join(map(str, path)): leaf.device
                for path, leaf in flat.items()
                if isinstance(leaf, torch.Tensor) and not leaf.is_meta
            }
            saved = self._saved.nested(name)
            for optimizer, numbers in self._numbers.items():
                if group_lists.follows(value, state.values[optimizer]):
                    saved = group_lists.in_order(name, saved, numbers)
            value.load_state_dict(saved)
        elif name in self._values:
            saved = (
                self._saved.whole(name) if name in self._saved.pieces else self._saved.nested(name)
            )
            state.values[name] = poured(value, saved, exact=self._saved.exact)

    def _load_remade(self, name: str, module: torch.nn.Module) -> None:
        """Load what set_extra_state() and hooks of a module take. All else is in its place."""
        structure = self._saved.own_value(f"structure.{name}")
        if structure is None:
            return
        state = filled(structure, self._saved.whole)
        for key, value in [*state.items()]:
            is_odd = isinstance(value, torch.Tensor) and is_value(value)
            if is_odd and module_loading.replaced(name, module, key, value):
                del state[key]
        if state:
            set_model_state_dict(name, module, state)

    def _fill_other(self, chunk: Chunk) -> None:
        """Fill a chunk from other chunks, another dtype, or a number, as a learning rate may be.

        What was not saved keeps the script's value.
        """
        pieces = self._saved.pieces.get(chunk.fqn, [])
        if pieces and pieces[0].item.is_tensor:
            self._saved.fill(chunk.fqn, chunk.tensor, chunk.offsets)
        elif pieces:
            pour([chunk.tensor], [torch.as_tensor(self._saved.value(pieces[0]))])
