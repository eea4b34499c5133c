"""What a training script wants saved, as flat lists of tensors and values that stay live.

Names are those that torch.distributed.checkpoint gives (`model.layer.weight`,
`optimizer.state.layer.weight.exp_avg`), so that its loaders read what we write. The lists hold the
very tensors that training updates: a save walks them and calls no `state_dict()` of a model or an
optimizer. Whether they are still the right ones is a comparison of addresses.
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
"""Bytes above which a tensor, or a rank's part of one, is split: no file is long then, and ranks
share the upload of what they have in common."""
_IN_PLACE = (torch.nn.Module, torch.Tensor)
OWN = "spotelastic"
"""First part of the names of what we add to the state ourselves."""

PER_RANK = "per-rank"
BY_ITSELF = "by-itself"
"""Before the name of an optimizer that was saved as its own state_dict() has it: the names of the
parameters of its groups,"""
CLASS = "class"
"""and before the name and the class of any other."""

Key = tuple[str, tuple[int, ...]]


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
        return self.fqn, self.offsets

    def declared(self, *, lowest: bool = False) -> Declared:
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
    """A value that is pickled. `rank` is SHARED, or the rank that it belongs to."""

    fqn: str
    path: Path
    get: Callable[[], Any]
    rank: int = SHARED

    @property
    def key(self) -> Key:
        return self.fqn, ()

    @property
    def shown(self) -> str:
        """What a user knows it as."""
        return self.fqn.removeprefix(f"{OWN}.structure.")


@dataclass(frozen=True, slots=True)
class StateView:
    """The state at one moment, as far as this rank has it."""

    chunks: tuple[Chunk, ...]
    cells: tuple[ValueEntry, ...]
    kinds: Mapping[str, Kind]
    """By name, of everything: also of tensors that lie on other ranks alone."""
    current: Callable[[], bool]
    """Whether training still updates these tensors."""
    sharded: Collection[str] = frozenset()
    """Names of the tensors that are spread over ranks."""
    remade: Collection[str] = frozenset()
    """Names of what modules make anew, each of one value or of several."""
    optimized: Collection[torch.Tensor] = ()
    """What changes when an optimizer of the state steps, and at no other time."""
    buffers: Mapping[str, bool] = field(default_factory=dict)
    """Names of modules' buffers, and whether torch makes them the first rank's at each forward."""


class _Part(NamedTuple):
    """What one entry of the mapping amounts to."""

    leaves: Mapping[Path, Any]
    readers: Mapping[Path, Callable[[], Any]]
    """Of the leaves that are pickled; the others are tensors."""
    checks: tuple[Callable[[], bool], ...] = ()
    cells: tuple[ValueEntry, ...] = ()
    """Beside the leaves."""
    remade: Collection[str] = ()
    buffers: Mapping[str, bool] = {}


class State:
    """The mapping that the script gave: modules, optimizers, things with state_dict(), containers
    of tensors, values."""

    def __init__(self, values: MutableMapping[str, Any]) -> None:
        if OWN in values:
            raise UsageError(f'state["{OWN}"]: this name is taken by spotelastic itself')
        for name in values:
            if type(name) is not str:
                raise UsageError(f"state[{name!r}]: the keys of a state are strings")
        self.values = Unwrapped(values)
        for name, value in self.values.items():
            refuse_others(name, value)
        self.rank, self.world_size = 0, 1
        """Whose state this is, for what is per rank."""
        self.by_themselves: Collection[str] = ()
        """Optimizers whose state in the checkpoint is what their own state_dict() returned."""

    def view(self) -> StateView:
        chunks: list[Chunk] = []
        cells: list[ValueEntry] = []
        kinds: dict[str, Kind] = {}
        parts = [self._part(name, value) for name, value in self.values.items()]
        sharded: set[str] = set()
        paths: dict[str, Path] = {}
        for part in parts:
            cells += part.cells
            for path, leaf in part.leaves.items():
                fqn = named(path, paths)
                if path in part.readers:
                    kinds[fqn] = Kind()
                    inner = inner_tensors(leaf)
                    for name, tensor in inner.items():
                        below = *path, inner_name(name)
                        chunks += chunks_of(named(below, paths), below, tensor)
                    get = functools.partial(description, leaf) if inner else part.readers[path]
                    cells.append(ValueEntry(fqn, path, get))
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
                else:  # without a call: there may be thousands
                    chunks.append(Chunk(fqn, path, leaf.detach(), shape, (0,) * len(shape), shape))
        checks = [self._check(), *(check for part in parts for check in part.checks)]
        return StateView(
            tuple(chunks),
            tuple(cells),
            kinds,
            lambda: all(check() for check in checks),
            sharded,
            frozenset().union(*(part.remade for part in parts)),
            tuple(self._optimized()),
            {name: first for part in parts for name, first in part.buffers.items()},
        )

    def _check(self) -> Callable[[], bool]:
        """The same entries; of what is saved in place, the same objects."""

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
                return _Part({}, {}, cells=(per_rank_cell(name, value, self.rank),))
            case torch.nn.Module():
                for key, tensor in (*value.named_parameters(), *value.named_buffers()):
                    tensors.refuse(f"{name}.{key}", tensor)
                state = get_model_state_dict(value)
                remade = Remade(name, value, state)
                return _Part(
                    flat_state(name, state),
                    {path: remade.reader(path) for path in remade.flat},
                    (_module_check(value), remade.is_current),
                    (structure_cell(name, remade.structure),) if remade.names else (),
                    remade.names,
                    _buffers(name, value, state),
                )
            case torch.optim.Optimizer() if self._model_of(value) is not None:
                state = self._optimizer_state(value)
                flat = flat_state(name, state)
                readers = _optimizer_readers(value, state, flat)
                # The name alone tells it: that is known before anything is read.
                known = _own_cell(lambda: True, CLASS, name, class_name(value))
                return _Part(flat, readers, (_optimizer_check(value),), (known,))
            case torch.optim.Optimizer() if has_a_form_of_its_own(value):
                part = _followed(name, value.state_dict)
                groups = functools.partial(names_in_groups, self.values, value)
                return part._replace(cells=(*part.cells, _own_cell(groups, BY_ITSELF, name)))
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
        """A step was made: data count by steps, not by what a loader has fetched. One that is
        told of again counts where another batch was taken for it."""
        for value in self.values.values():
            own = value.value if isinstance(value, PerRank) else value
            if isinstance(own, ElasticSampler) and (is_new or own.waits):
                own.advance()

    def make_optimizer_state(self, saved: Mapping[Path, Kind], left: Collection[str]) -> None:
        """Of all optimizers but those to be `left`: something to load into, for what was saved."""
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
        """Those whose state is saved by the names of the parameters."""
        for name, value in self.values.items():
            if isinstance(value, torch.optim.Optimizer) and self._model_of(value) is not None:
                yield name, value

    def by_parameter(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """The live state of each parameter, by the parameter's name."""
        return dict(self._optimizer_state(optimizer)["state"])

    def per_rank(self) -> Iterator[tuple[str, PerRank[Any]]]:
        return ((name, own) for name, own in self.values.items() if isinstance(own, PerRank))

    def is_stateful(self, value: Any) -> bool:
        """An entry that is loaded through its own load_state_dict, not in place."""
        if isinstance(value, _IN_PLACE):
            return False
        if isinstance(value, torch.optim.Optimizer):
            return self._model_of(value) is None
        return hasattr(value, "load_state_dict")

    def is_value(self, value: Any) -> bool:
        """An entry that is replaced by what was saved; tensors in it are loaded in place."""
        if isinstance(value, torch.Tensor):
            return tensors.is_value(value)
        known = isinstance(value, torch.nn.Module | torch.optim.Optimizer | PerRank)
        return not known and not hasattr(value, "load_state_dict")

    def contained(self, names: Iterable[str]) -> dict[str, torch.Tensor]:
        """The tensors in containers, by name, of those that are values."""
        return {
            ".".join(map(str, path)): leaf
            for name in names
            if holds_tensors(name, value := self.values[name])
            for path, leaf in flat_state(name, value).items()
            if isinstance(leaf, torch.Tensor) and not tensors.is_value(leaf)
        }

    def _model_of(self, optimizer: torch.optim.Optimizer) -> torch.nn.Module | None:
        """The one that names its parameters; without one it is saved by their numbers."""
        if any(self.values.get(name) is optimizer for name in self.by_themselves):
            return None
        return owner(self.values, optimizer)

    def _optimizer_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        model = self._model_of(optimizer)
        assert model is not None
        with no_step(optimizer):
            return dict(get_optimizer_state_dict(model, optimizer))


def dtype_name(tensor: torch.Tensor) -> str:
    return _name_of(tensor.dtype)


@functools.cache
def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def chunks_of(fqn: str, path: Path, tensor: torch.Tensor) -> list[Chunk]:
    """The pieces of a tensor that are saved one by one; of a DTensor, those that lie here."""
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
    """Of what begins at `offsets` of a tensor of this shape: all of it if small, else some rows
    each, of the first axis that has several."""
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
    """Parameters and buffers may be replaced, or be given other memory; a view keeps that of before
    from being used for others. Modules may be, too, and any may get its first."""

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
    # Most have none of one kind or another: they are only looked at, all at once.
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
    """Names of the buffers, and whether each forward makes them the first rank's."""
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

    # The objects themselves: the ids of those that are gone are given to others.
    known, known_keys = held()
    return is_current


def _note(container: Container, objects: list[Any], keys: list[Any]) -> None:
    """The containers and tensors of an optimizer, and the keys by which all else is read. A tensor
    that is the same may have been given other memory: its place is noted with the keys."""
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
    # A list of values alone is one itself.
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
        (structure_cell(name, followed.structure),),
    )


def per_rank_path(name: str, rank: int) -> Path:
    return OWN, PER_RANK, name, str(rank)


def per_rank_cell(name: str, own: PerRank[Any], rank: int) -> ValueEntry:
    """A name that only this rank has: like a part of a sharded tensor, all of them make a whole."""
    path = per_rank_path(name, rank)
    return ValueEntry(".".join(map(str, path)), path, lambda: own.saved(name))


def structure_cell(name: str, get: Callable[[], Any]) -> ValueEntry:
    return _own_cell(get, "structure", name)


def _own_cell(get: Callable[[], Any], *path: str) -> ValueEntry:
    return ValueEntry(".".join((OWN, *path)), (OWN, *path), get)


def class_name(value: object) -> str:
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
    """Hyper-parameters change under a scheduler; the names of the parameters do not.

    The state of a parameter is the optimizer's own dictionary, that of a group is a copy. Either
    may hold containers, of values too.
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
    """Of what stands there at that moment; DCP makes all keys strings."""

    def entry(held: Any, key: str | int) -> Any:
        if isinstance(held, list):
            return held[int(key)]
        if key in held:
            return held[key]
        return next(value for known, value in held.items() if str(known) == key)

    return lambda: apart(functools.reduce(entry, path, container))
