"""Describes a script's state as flat lists of the tensors and values that a save copies.

Names are those that torch.distributed.checkpoint gives (`model.layer.weight`,
`optimizer.state.layer.weight.exp_avg`), so that its loaders read what is saved. The lists hold the
very tensors that training updates: a save goes through them and calls no `state_dict()` of a model
or an optimizer. Whether they are still the right ones is found out by comparing addresses.
"""

import functools
import operator
from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    MutableMapping,
    Sequence,
)
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from spotelastic_checkpoints.format import encoding
from spotelastic_checkpoints.format.layout import SHARED, Declared
from torch.distributed.checkpoint.state_dict import (
    get_optimizer_state_dict,
)
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.nn.parallel import DistributedDataParallel

from spotelastic.errors import UsageError
from spotelastic.training.data.sampler import ElasticSampler
from spotelastic.training.state import tensors
from spotelastic.training.state.compatibility import Kind
from spotelastic.training.state.composite_tensors import description, inner_name, inner_tensors
from spotelastic.training.state.derived import (
    Container,
    Followed,
    Path,
    Remade,
    apart,
    flat_state,
    holds_tensors,
    named,
    place,
)
from spotelastic.training.state.module_state import get_model_state_dict
from spotelastic.training.state.optimizer_wrappers import Unwrapped
from spotelastic.training.state.optimizers import (
    changed_by_steps,
    make_state,
    no_step,
    refuse_others,
)
from spotelastic.training.state.parameter_owners import (
    has_a_form_of_its_own,
    names_in_groups,
    owner,
)
from spotelastic.training.state.per_rank import PerRank

PIECE = 32 << 20
"""Bytes above which a tensor, or a rank's part of one, is split.

Files stay short then, and ranks share the upload of what they have in common.
"""
_IN_PLACE = (torch.nn.Module, torch.Tensor)
OWN = "spotelastic"
"""First part of the names of values that spotelastic adds to the state."""

PER_RANK = "per-rank"
"""Second part of the names of `se.PerRank` entries."""
BY_ITSELF = "by-itself"
"""Second part of the names of values with the parameters' names of an optimizer that is saved as
its own state_dict() has it.
"""
CLASS = "class"
"""Second part of the names of values that tell the class of any other optimizer."""

Key = tuple[str, tuple[int, ...]]
"""Identifies an item within a state: its name and offsets."""


class Chunk(NamedTuple):
    """A tensor, or the part of one that this rank has, with its place in the whole."""

    fqn: str
    path: Path
    tensor: torch.Tensor
    shape: tuple[int, ...]
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def key(self) -> Key:
        """Identifies the chunk within the state."""
        return self.fqn, self.offsets

    def declared(self, *, lowest: bool = False) -> Declared:
        """Return the chunk's declaration. Raises `UsageError` where it cannot be saved.

        `lowest` says that the lowest rank's copy counts.
        """
        dtype = dtype_name(self.tensor)
        if problem := tensors.has_nothing(self.tensor):
            raise UsageError(f"{self.fqn} {problem}")
        if dtype not in encoding.ITEM_SIZES:
            raise UsageError(f"{self.fqn}: tensors of dtype {dtype} cannot be saved")
        return Declared(
            self.fqn, self.path, dtype, self.shape, self.offsets, self.sizes, lowest=lowest
        )


@dataclass(frozen=True, slots=True)
class ValueEntry:
    """A value that is pickled at each save."""

    fqn: str
    path: Path
    get: Callable[[], Any]
    """Returns the value as it is now."""
    rank: int = SHARED
    """The rank that it belongs to, or `SHARED`."""

    @property
    def key(self) -> Key:
        """Identifies the value within the state."""
        return self.fqn, ()

    @property
    def shown(self) -> str:
        """The name that a user knows it by."""
        return self.fqn.removeprefix(f"{OWN}.structure.")


@dataclass(frozen=True, slots=True)
class StateView:
    """The state at one time, as far as this rank has it."""

    chunks: tuple[Chunk, ...]
    entries: tuple[ValueEntry, ...]
    kinds: Mapping[str, Kind]
    """Types and shapes of everything by name, also of tensors that only other ranks have."""
    current: Callable[[], bool]
    """Returns whether training still updates these tensors."""
    sharded: Collection[str] = frozenset()
    """Names of tensors that are sharded over ranks."""
    remade: Collection[str] = frozenset()
    """Names of what modules make anew on request, each of one value or several."""
    optimized: Collection[torch.Tensor] = ()
    """Tensors that change only when an optimizer of the state steps."""
    buffers: Mapping[str, bool] = field(default_factory=dict)
    """Names of modules' buffers, and whether torch copies the first rank's to all at each
    forward.
    """


class _Part(NamedTuple):
    """What one entry of the mapping consists of."""

    leaves: Mapping[Path, Any]
    """Tensors and values by path."""
    readers: Mapping[Path, Callable[[], Any]]
    """Functions that return the present value of each leaf that is pickled; the others are
    tensors.
    """
    checks: tuple[Callable[[], bool], ...] = ()
    """Functions that return whether this still describes the entry."""
    entries: tuple[ValueEntry, ...] = ()
    """Values beside the leaves."""
    remade: Collection[str] = ()
    buffers: Mapping[str, bool] = {}


class State:
    """The mapping that the script gave: modules, optimizers, objects with state_dict(), values."""

    def __init__(self, values: MutableMapping[str, Any]) -> None:
        """Check the mapping. Raises `UsageError` for keys and entries that cannot be saved."""
        if OWN in values:
            raise UsageError(f'state["{OWN}"]: this name is reserved for spotelastic')
        for name in values:
            if type(name) is not str:
                raise UsageError(f"state[{name!r}]: the keys of a state have to be strings")
        self.values = Unwrapped(values)
        for name, value in self.values.items():
            refuse_others(name, value)
        self.rank, self.world_size = 0, 1
        """Rank and world size, for what is per rank."""
        self.by_themselves: Collection[str] = ()
        """Optimizers whose state in the checkpoint is what their own state_dict() returned."""

    def view(self) -> StateView:
        """Return the state as it is now. Raises `UsageError` for what cannot be saved."""
        chunks: list[Chunk] = []
        entries: list[ValueEntry] = []
        kinds: dict[str, Kind] = {}
        parts = [self._part(name, value) for name, value in self.values.items()]
        sharded: set[str] = set()
        paths: dict[str, Path] = {}
        for part in parts:
            entries += part.entries
            for path, leaf in part.leaves.items():
                fqn = named(path, paths)
                if path in part.readers:
                    kinds[fqn] = Kind()
                    inner = inner_tensors(leaf)
                    for name, tensor in inner.items():
                        below = *path, inner_name(name)
                        chunks += chunks_of(named(below, paths), below, tensor)
                    get = functools.partial(description, leaf) if inner else part.readers[path]
                    entries.append(ValueEntry(fqn, path, get))
                    continue
                if type(leaf) is not torch.Tensor:
                    tensors.refuse(fqn, leaf)
                shape = tuple(leaf.shape)
                kinds[fqn] = Kind(dtype_name(leaf), shape)
                is_sharded = isinstance(leaf, DTensor)
                if is_sharded:
                    sharded.add(fqn)
                if is_sharded or leaf.nbytes > PIECE:
                    chunks += chunks_of(fqn, path, leaf)
                else:  # No function is called here: there may be thousands.
                    chunks.append(Chunk(fqn, path, leaf.detach(), shape, (0,) * len(shape), shape))
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

    def _check(self) -> Callable[[], bool]:
        """Return a check that entries are the same, and objects where they are saved in place."""

        def followed() -> list[Any]:
            return [
                value
                for value in self.values.values()
                if isinstance(value, torch.nn.Module) or hasattr(value, "state_dict")
            ]

        names, objects = [*self.values], followed()

        def is_current() -> bool:
            now = followed()
            return _are_same(now, objects) and [*self.values] == names

        return is_current

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
                    (_module_check(value), remade.is_current),
                    (structure_entry(name, remade.structure),) if remade.names else (),
                    remade.names,
                    _buffers(name, value, state),
                )
            case torch.optim.Optimizer() if self._model_of(value) is not None:
                state = self._optimizer_state(value)
                flat = flat_state(name, state)
                readers = _optimizer_readers(value, state, flat)
                # The name alone tells it, which is known before anything is read.
                known = _own_entry(lambda: True, CLASS, name, class_name(value))
                return _Part(flat, readers, (_optimizer_check(value),), (known,))
            case torch.optim.Optimizer() if has_a_form_of_its_own(value):
                part = _followed(name, value.state_dict)
                groups = functools.partial(names_in_groups, self.values, value)
                return part._replace(entries=(*part.entries, _own_entry(groups, BY_ITSELF, name)))
            case torch.Tensor() if not tensors.is_value(value):
                tensors.refuse(name, value)
                return _Part({(name,): value}, {}, (_same(self.values, name, value),))
            case _ if hasattr(value, "state_dict"):
                return _followed(name, value.state_dict)
            case _ if holds_tensors(name, value):
                return _followed(name, _reader(self.values, name))
        checks = (_same(self.values, name, value),) if isinstance(value, torch.Tensor) else ()
        return _Part({(name,): value}, {(name,): _reader(self.values, name)}, checks)

    def stepped(self, *, is_new: bool = True) -> None:
        """Move data samplers on by a step: data count by steps, not by what a loader has fetched.

        A step that is reported again counts if another batch was taken for it.
        """
        for value in self.values.values():
            own = value.value if isinstance(value, PerRank) else value
            if isinstance(own, ElasticSampler) and (is_new or own.waits):
                own.advance()

    def make_optimizer_state(self, saved: Mapping[Path, Kind], left: Collection[str]) -> None:
        """Create state to load into, as it was `saved`, of all optimizers but those `left`."""
        for name, value in self.values.items():
            if name in left or not isinstance(value, torch.optim.Optimizer):
                continue
            model = self._model_of(value)
            if model is not None:
                groups = zip(
                    value.param_groups, self._optimizer_state(value)["param_groups"], strict=True
                )
                names = {
                    parameter: fqn
                    for group, named_group in groups
                    for parameter, fqn in zip(group["params"], named_group["params"], strict=True)
                }
                own = {path: kind for path, kind in saved.items() if path[0] == name}
                same = (OWN, CLASS, name, class_name(value)) in saved
                make_state(name, value, model, names, own, same_class=same)

    def optimizers(self) -> Iterator[tuple[str, torch.optim.Optimizer]]:
        """Yield the optimizers whose state is saved by the names of parameters."""
        for name, value in self.values.items():
            if isinstance(value, torch.optim.Optimizer) and self._model_of(value) is not None:
                yield name, value

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
            if holds_tensors(name, value := self.values[name])
            for path, leaf in flat_state(name, value).items()
            if isinstance(leaf, torch.Tensor) and not tensors.is_value(leaf)
        }

    def _model_of(self, optimizer: torch.optim.Optimizer) -> torch.nn.Module | None:
        """Return the module that names the optimizer's parameters; None if it is saved by
        numbers.
        """
        if any(self.values.get(name) is optimizer for name in self.by_themselves):
            return None
        return owner(self.values, optimizer)

    def _optimizer_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        model = self._model_of(optimizer)
        assert model is not None
        with no_step(optimizer):
            return dict(get_optimizer_state_dict(model, optimizer))


def dtype_name(tensor: torch.Tensor) -> str:
    """Return the name of a tensor's dtype, without "torch."."""
    return _name_of(tensor.dtype)


@functools.cache
def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def chunks_of(fqn: str, path: Path, tensor: torch.Tensor) -> list[Chunk]:
    """Return the pieces of a tensor that are saved one by one; of a DTensor, those on this rank."""
    shape = tuple(tensor.shape)
    if not isinstance(tensor, DTensor):
        return _pieces(fqn, path, tensor.detach(), shape, (0,) * len(shape))
    local = tensor.to_local().detach()
    _, offsets = compute_local_shape_and_global_offset(
        tensor.shape, tensor.device_mesh, tensor.placements
    )
    if not local.numel() and tensor.numel():
        return []
    return _pieces(fqn, path, local, shape, tuple(offsets))


def _pieces(
    fqn: str, path: Path, tensor: torch.Tensor, shape: tuple[int, ...], offsets: tuple[int, ...]
) -> list[Chunk]:
    """Return the pieces of what begins at `offsets` of a tensor of this shape.

    A small one is one piece. A large one is cut into rows of the first axis that has several.
    """
    axis = next((at for at, size in enumerate(tensor.shape) if size > 1), None)
    if axis is None or tensor.nbytes <= PIECE:
        return [Chunk(fqn, path, tensor, shape, offsets, tuple(tensor.shape))]
    rows = tensor.shape[axis]
    at_once = max(1, PIECE * rows // tensor.nbytes)
    parts = []
    for start in range(0, rows, at_once):
        part = tensor.narrow(axis, start, min(at_once, rows - start))
        place = (*offsets[:axis], offsets[axis] + start, *offsets[axis + 1 :])
        parts += _pieces(fqn, path, part, shape, place)
    return parts


def _module_check(module: torch.nn.Module) -> Callable[[], bool]:
    """Return a check that a module still has the same parameters, buffers and submodules.

    They may be replaced or moved to other memory. A view keeps the old memory from being reused.
    """

    def filled() -> list[torch.Tensor]:
        return [tensor for part in parts for tensor in part.values() if tensor is not None]

    def children() -> list[torch.nn.Module | None]:
        return [child for held in owners for child in held.values()]

    def is_current() -> bool:
        now, tensors_now = children(), filled()
        return (
            not any(bare)
            and _are_same(now, known_children)
            and _are_same(tensors_now, known)
            and [place(tensor) for tensor in tensors_now] == places
        )

    modules = [*module.modules()]
    owners = [held for each in modules if (held := each._modules)]
    parts = [part for each in modules for part in (each._parameters, each._buffers) if part]
    # Most modules have none of one kind or another. These are all looked at in one go.
    bare = [
        held
        for each in modules
        for held in (each._modules, each._parameters, each._buffers)
        if not held
    ]
    known, known_children = filled(), children()
    places = [place(tensor) for tensor in known]
    return is_current


def _are_same(left: Sequence[Any], right: Sequence[Any]) -> bool:
    return len(left) == len(right) and all(map(operator.is_, left, right))


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


def _optimizer_check(optimizer: torch.optim.Optimizer) -> Callable[[], bool]:
    """Return a check that an optimizer still has the same tensors and containers."""

    def held() -> tuple[list[Any], list[Any]]:
        objects: list[Any] = []
        keys: list[Any] = []
        for state in optimizer.state.values():
            _note(state, objects, keys)
        for group in optimizer.param_groups:
            _note(group, objects, keys)
        return objects, keys

    def is_current() -> bool:
        objects, keys = held()
        return _are_same(objects, known) and keys == known_keys

    # The objects themselves are kept: the ids of objects that are gone are reused.
    known, known_keys = held()
    return is_current


def _note(container: Container, objects: list[Any], keys: list[Any]) -> None:
    """Collect the containers and tensors of an optimizer, and the keys of all else.

    A tensor that is the same object may have other memory, so its place is noted with the keys.
    """
    if isinstance(container, list):
        before = len(objects)
        entries: Iterable[Any] = container
    else:
        objects.append(container)
        keys.append((*container,))
        entries = container.values()
    for entry in entries:
        if isinstance(entry, torch.Tensor):
            objects.append(entry)
            keys.append(place(entry))
        elif isinstance(entry, Mapping | list):
            _note(entry, objects, keys)
    # A list without tensors is a value itself.
    if isinstance(container, list) and len(objects) > before:
        objects.append(container)
        keys.append(len(container))


def _same(values: Mapping[str, Any], name: str, tensor: torch.Tensor) -> Callable[[], bool]:
    known = place(tensor)
    return lambda: values.get(name) is tensor and place(tensor) == known


def _followed(name: str, get: Callable[[], Any]) -> _Part:
    followed = Followed(name, get)
    return _Part(
        followed.flat,
        {path: followed.reader(path) for path in _values(followed.flat)},
        (followed.is_current,),
        (structure_entry(name, followed.structure),),
    )


def per_rank_path(name: str, rank: int) -> Path:
    """Return the path of a rank's `se.PerRank` entry."""
    return OWN, PER_RANK, name, str(rank)


def per_rank_entry(name: str, own: PerRank[Any], rank: int) -> ValueEntry:
    """Return a value with a name that only this rank has.

    As with parts of a sharded tensor, all of them together make a whole.
    """
    path = per_rank_path(name, rank)
    return ValueEntry(".".join(map(str, path)), path, lambda: own.saved(name))


def structure_entry(name: str, get: Callable[[], Any]) -> ValueEntry:
    """Return the value that has the containers of an entry."""
    return _own_entry(get, "structure", name)


def _own_entry(get: Callable[[], Any], *path: str) -> ValueEntry:
    return ValueEntry(".".join((OWN, *path)), (OWN, *path), get)


def class_name(value: object) -> str:
    """Return the full name of an object's class."""
    return f"{type(value).__module__}.{type(value).__qualname__}"


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
