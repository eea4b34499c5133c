"""Describes a script's state as flat lists of the tensors and values that a save copies.

Names are those that torch.distributed.checkpoint gives (`model.layer.weight`,
`optimizer.state.layer.weight.exp_avg`), so that its loaders read what is saved. The lists hold the
very tensors that training updates: a save goes through them and calls no `state_dict()` of a model
or an optimizer. Whether they are still the right ones is found out by comparing addresses.
"""

import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from spotelastic.errors import UsageError
from spotelastic.training.data.sampler import ElasticSampler, waits
from spotelastic.training.state import tensors
from spotelastic.training.state.chunks import PIECE, Chunk, chunks_of, dtype_name
from spotelastic.training.state.compatibility import Kind
from spotelastic.training.state.composite_tensors import description, inner_name, inner_tensors
from spotelastic.training.state.derived import (
    Container,
    Followed,
    Path,
    Remade,
    apart,
    flat_state,
    named,
    place,
    structure_of,
    tensors_in,
)
from spotelastic.training.state.module_state import (
    get_model_state_dict,
    get_optimizer_state_dict,
    parameters_by_name,
)
from spotelastic.training.state.optimizers.optimizer_state import (
    changed_by_steps,
    containers_of,
    make_state,
    no_step,
    refuse_others,
)
from spotelastic.training.state.optimizers.parameter_owners import (
    Together,
    has_a_form_of_its_own,
    names_in_groups,
    owner,
    refuse_unsaved,
)
from spotelastic.training.state.optimizers.wrappers import Unwrapped
from spotelastic.training.state.per_rank import PerRank
from spotelastic.training.state.state_checks import (
    Check,
    are_same,
    module_check,
    optimizer_check,
    tensor_check,
)
from spotelastic.training.state.value_entries import (
    BY_ITSELF,
    CLASS,
    CONTAINERS,
    EXACT,
    OWN,
    STRUCTURE,
    ValueEntry,
    class_name,
    own_entry,
    per_rank_entry,
)

_IN_PLACE = (torch.nn.Module, torch.Tensor)


@dataclass(frozen=True, slots=True)
class StateView:
    """The state at one time, as far as this rank has it."""

    chunks: tuple[Chunk, ...]
    entries: tuple[ValueEntry, ...]
    kinds: Mapping[str, Kind]
    """Types and shapes of everything by name, also of tensors that only other ranks have."""
    current: Check
    """Returns whether training still updates these tensors."""
    sharded: Collection[str] = frozenset()
    """Names of tensors that are sharded over ranks."""
    remade: Collection[str] = frozenset()
    """Names of what modules make anew on request, each of one value or several."""
    optimized: Collection[torch.Tensor] = ()
    """Tensors that change only when an optimizer of the state steps."""
    buffers: Mapping[str, bool] = field(default_factory=dict)
    """Names of buffers, and whether torch copies the first rank's to all at each forward."""


class _Part(NamedTuple):
    """What one entry of the mapping consists of."""

    leaves: Mapping[Path, Any]
    """Tensors and values by path."""
    readers: Mapping[Path, Callable[[], Any]]
    """Return the present value of each leaf that is pickled; the others are tensors."""
    checks: tuple[Check, ...] = ()
    """Functions that return whether this still describes the entry."""
    entries: tuple[ValueEntry, ...] = ()
    """Values beside the leaves."""
    remade: Collection[str] = ()
    buffers: Mapping[str, bool] = {}


class State:
    """The mapping that the script gave: modules, optimizers, objects with state_dict(), values."""

    def __init__(self, values: MutableMapping[str, Any], *, piece: int = PIECE) -> None:
        """Check the mapping. Raises `UsageError` for keys and entries that cannot be saved.

        Tensors of more than `piece` bytes are saved in several pieces.
        """
        _check_names(values)
        self._piece = piece
        self.values = Unwrapped(values)
        for name, value in self.values.items():
            refuse_others(name, value)
        self.rank, self.world_size = 0, 1
        """Rank and world size, for what is per rank."""
        self.begun: Any = None
        """What the state consisted of when the script began: see `growth.begin`."""
        self.retrained: set[str] = set()
        """Modules with parameters that have been frozen or unfrozen since."""
        self.by_themselves: Collection[str] = ()
        """Optimizers whose state in the checkpoint is what their own state_dict() returned."""

    def put(self, entries: Mapping[str, Any]) -> None:
        """Add entries, also to the script's mapping. Raises `UsageError` as the constructor."""
        _check_names(entries)
        self.values.update(entries)
        for name in entries:
            refuse_others(name, self.values[name])

    def view(self) -> StateView:
        """Return the state as it is now. Raises `UsageError` for what cannot be saved."""
        chunks: list[Chunk] = []
        entries = [own_entry(lambda: True, EXACT)]
        kinds: dict[str, Kind] = {}
        parts = [self._part(name, value) for name, value in self.values.items()]
        sharded: set[str] = set()
        paths: dict[str, Path] = {}
        most = self._piece
        for part in parts:
            entries += part.entries
            for path, leaf in part.leaves.items():
                fqn = named(path, paths)
                if path in part.readers:
                    kinds[fqn] = Kind()
                    inner = inner_tensors(leaf)
                    for name, tensor in inner.items():
                        below = *path, inner_name(name)
                        chunks += chunks_of(named(below, paths), below, tensor, most)
                    get = functools.partial(description, leaf) if inner else part.readers[path]
                    entries.append(ValueEntry(fqn, path, get))
                    continue
                tensors.refuse(fqn, leaf)
                kinds[fqn] = Kind(dtype_name(leaf), tuple(leaf.shape))
                if isinstance(leaf, DTensor):
                    sharded.add(fqn)
                chunks += chunks_of(fqn, path, leaf, most)
        refuse_unsaved(self.values, [chunk.tensor for chunk in chunks])
        checks = [self._check(), *(check for part in parts for check in part.checks)]
        return StateView(
            tuple(chunks),
            tuple(entries),
            kinds,
            lambda: all(check() for check in checks),
            sharded,
            frozenset().union(*(part.remade for part in parts)),
            tuple(self._optimized()),
            {name: first for part in parts for name, first in part.buffers.items()},
        )

    def _check(self) -> Check:
        """Return a check that entries are the same, and objects where they are saved in place."""

        def followed() -> list[Any]:
            return [
                value
                for value in self.values.values()
                if isinstance(value, torch.nn.Module) or hasattr(value, "state_dict")
            ]

        names, objects = [*self.values], followed()
        return lambda: are_same(followed(), objects) and [*self.values] == names

    def _optimized(self) -> Iterator[torch.Tensor]:
        for value in self.values.values():
            if isinstance(value, torch.optim.Optimizer):
                yield from changed_by_steps(value)

    def _part(self, name: str, value: Any) -> "_Part":
        match value:
            case PerRank():
                return _Part({}, {}, entries=(per_rank_entry(name, value, self.rank),))
            case torch.nn.Module():
                for key, tensor in (*value.named_parameters(), *value.named_buffers()):
                    tensors.refuse(f"{name}.{key}", tensor)
                state = get_model_state_dict(value)
                remade = Remade(name, value, state)
                return _Part(
                    flat_state(name, state),
                    {path: remade.reader(path) for path in remade.flat},
                    (module_check(value), remade.is_current),
                    (own_entry(remade.structure, STRUCTURE, name),) if remade.names else (),
                    remade.names,
                    _buffers(name, value, state),
                )
            case torch.optim.Optimizer() if self._model_of(value) is not None:
                state = self._optimizer_state(value)
                flat = flat_state(name, state)
                readers = _optimizer_readers(value, state, flat)
                entries = [
                    own_entry(get, CONTAINERS, name, *map(str, path))
                    for path, get in containers_of(value, state["state"]).items()
                ]
                entries.append(_class_entry(name, value))
                return _Part(flat, readers, (optimizer_check(value),), tuple(entries))
            case torch.optim.Optimizer() if has_a_form_of_its_own(value):
                part = _followed(name, value.state_dict)
                groups = functools.partial(names_in_groups, self.values, value)
                own = own_entry(groups, BY_ITSELF, name), _class_entry(name, value)
                return part._replace(entries=(*part.entries, *own))
            case torch.Tensor() if not tensors.is_value(value):
                tensors.refuse(name, value)
                get = functools.partial(structure_of, (name,), value, {(name,): value})
                entries = [own_entry(get, STRUCTURE, name)] if get() != name else []
                check = tensor_check(self.values, name, value)
                return _Part({(name,): value}, {}, (check,), tuple(entries))
            case _ if hasattr(value, "state_dict"):
                part = _followed(name, value.state_dict)
                if isinstance(value, torch.optim.Optimizer):
                    part = part._replace(entries=(*part.entries, _class_entry(name, value)))
                return part
            case _ if tensors_in(name, value):
                return _followed(name, _reader(self.values, name))
        checks = (
            (tensor_check(self.values, name, value),) if isinstance(value, torch.Tensor) else ()
        )
        return _Part({(name,): value}, {(name,): _reader(self.values, name)}, checks)

    def stepped(self, *, is_new: bool = True) -> None:
        """Move data samplers on by a step: data count by steps, not by what a loader has fetched.

        A step that is reported again counts if another batch was taken for it.
        """
        for value in self.values.values():
            own = value.value if isinstance(value, PerRank) else value
            if isinstance(own, ElasticSampler) and (is_new or waits(own)):
                own.advance()

    def make_optimizer_state(self, saved: Mapping[Path, Kind], left: Collection[str]) -> None:
        """Create state to load into, as it was `saved`, of all optimizers but those `left`."""
        for name, value in self.values.items():
            if name in left or not isinstance(value, torch.optim.Optimizer):
                continue
            model = self._model_of(value)
            if model is not None:
                names = self.parameters(value)
                own = {path: kind for path, kind in saved.items() if path[0] == name}
                same = (OWN, CLASS, name, class_name(value)) in saved
                make_state(name, value, model, names, own, same_class=same)

    def optimizers(self) -> Iterator[tuple[str, torch.optim.Optimizer]]:
        """Yield the optimizers whose state is saved by the names of parameters."""
        for name, value in self.values.items():
            if isinstance(value, torch.optim.Optimizer) and self._model_of(value) is not None:
                yield name, value

    def parameters(self, optimizer: torch.optim.Optimizer) -> dict[torch.Tensor, str]:
        """Return the names of an optimizer's parameters."""
        return {
            parameter: fqn
            for group, names in zip(optimizer.param_groups, self.groups(optimizer), strict=True)
            for parameter, fqn in zip(group["params"], names, strict=True)
        }

    def groups(self, optimizer: torch.optim.Optimizer) -> tuple[tuple[str, ...], ...]:
        """Return the names of the parameters in each of an optimizer's groups."""
        model = self._model_of(optimizer)
        assert model is not None
        names = {id(each): name for name, each in parameters_by_name(model).items()}
        return tuple(
            tuple(names[id(each)] for each in group["params"]) for group in optimizer.param_groups
        )

    def nameable(self, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
        """Return the parameters that an optimizer's groups may have, by the names in question."""
        model = self._model_of(optimizer)
        modules = {n: v for n, v in self.values.items() if isinstance(v, torch.nn.Module)}
        found = parameters_by_name(Together(modules))
        return {**found, **(parameters_by_name(model) if model is not None else {})}

    def by_parameter(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """Return the live state of each parameter, by the parameter's name."""
        return dict(self._optimizer_state(optimizer)["state"])

    def per_rank(self) -> Iterator[tuple[str, PerRank[Any]]]:
        """Yield the `se.PerRank` entries."""
        return ((name, own) for name, own in self.values.items() if isinstance(own, PerRank))

    def is_stateful(self, value: Any) -> bool:
        """Return whether an entry is loaded through its own load_state_dict, not in place."""
        if isinstance(value, _IN_PLACE):
            return False
        if isinstance(value, torch.optim.Optimizer):
            return self._model_of(value) is None
        return hasattr(value, "load_state_dict")

    def is_value(self, value: Any) -> bool:
        """Return whether an entry is replaced by what was saved.

        Tensors in it are filled in place.
        """
        if isinstance(value, torch.Tensor):
            return tensors.is_value(value)
        known = isinstance(value, torch.nn.Module | torch.optim.Optimizer | PerRank)
        return not known and not hasattr(value, "load_state_dict")

    def contained(self, names: Iterable[str]) -> dict[str, torch.Tensor]:
        """Return the tensors in these containers, by name."""
        return {
            ".".join(map(str, path)): leaf
            for name in names
            for path, leaf in tensors_in(name, self.values[name]).items()
            if not tensors.is_value(leaf)
        }

    def _model_of(self, optimizer: torch.optim.Optimizer) -> torch.nn.Module | None:
        """Return the module that names the optimizer's parameters.

        None if the optimizer is saved by numbers.
        """
        if any(self.values.get(name) is optimizer for name in self.by_themselves):
            return None
        return owner(self.values, optimizer)

    def _optimizer_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        model = self._model_of(optimizer)
        assert model is not None
        with no_step(optimizer):
            return get_optimizer_state_dict(model, optimizer)


def _class_entry(name: str, optimizer: torch.optim.Optimizer) -> ValueEntry:
    """Return a value whose name alone tells the class, before anything is read."""
    return own_entry(lambda: True, CLASS, name, class_name(optimizer))


def _check_names(values: Mapping[Any, Any]) -> None:
    if OWN in values:
        raise UsageError(f'state["{OWN}"]: this name is reserved for spotelastic')
    for name in values:
        if type(name) is not str:
            raise UsageError(f"state[{name!r}]: the keys of a state have to be strings")


def _buffers(name: str, module: torch.nn.Module, state: Mapping[str, Any]) -> dict[str, bool]:
    """Return the names of buffers, and whether each forward makes them the first rank's."""
    broadcast = any(
        isinstance(each, DistributedDataParallel) and each.broadcast_buffers
        for each in module.modules()
    )
    places = {place(buffer) for buffer in module.buffers()}
    return {
        f"{name}.{key}": broadcast
        for key, leaf in state.items()
        if isinstance(leaf, torch.Tensor) and place(leaf) in places
    }


def _followed(name: str, get: Callable[[], Any]) -> _Part:
    followed = Followed(name, get)
    return _Part(
        followed.flat,
        {path: followed.reader(path) for path in _values(followed.flat)},
        (followed.is_current,),
        (own_entry(followed.structure, STRUCTURE, name),),
    )


def _values(flat: Mapping[Path, Any]) -> Iterator[Path]:
    return (
        path
        for path, leaf in flat.items()
        if not isinstance(leaf, torch.Tensor) or tensors.is_value(leaf)
    )


def _reader(values: Mapping[Any, Any], name: Any) -> Callable[[], Any]:
    return lambda: apart(values[name])


def _optimizer_readers(
    optimizer: torch.optim.Optimizer, state: Mapping[str, Any], flat: Mapping[Path, Any]
) -> dict[Path, Callable[[], Any]]:
    """Return functions that read the values of an optimizer.

    Options change under a scheduler; the names of parameters do not. A parameter's state is the
    optimizer's own dictionary; that of a group is a copy. Either may contain containers, of values
    too.
    """
    readers: dict[Path, Callable[[], Any]] = {}
    for path in _values(flat):
        if len(path) > 3 and path[1] == "param_groups" and path[3] != "params":
            readers[path] = _reader_within(optimizer.param_groups[int(path[2])], path[3:])
        elif len(path) > 3 and path[1] == "state":
            readers[path] = _reader_within(state["state"][path[2]], path[3:])
        else:
            readers[path] = _reader(flat, path)
    return readers


def _reader_within(container: Container, path: Path) -> Callable[[], Any]:
    """Return a function that reads what is at this path now. DCP makes all keys strings."""

    def entry(held: Any, key: str | int) -> Any:
        if isinstance(held, list):
            return held[int(key)]
        if key in held:
            return held[key]
        return next(value for known, value in held.items() if str(known) == key)

    return lambda: apart(functools.reduce(entry, path, container))
