"""What a training script wants saved, as flat lists of tensors and values that stay live.

Names are those that torch.distributed.checkpoint gives (`model.layer.weight`,
`optimizer.state.layer.weight.exp_avg`), so that its loaders read what we write. The lists hold the
very tensors that training updates: a save walks them and calls no `state_dict()` of a model or an
optimizer. Whether they are still the right ones is a comparison of addresses.
"""

import copy
import functools
from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from spotelastic_checkpoints import encoding
from spotelastic_checkpoints.layout import SHARED, Declared
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
)
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from spotelastic.errors import UsageError
from spotelastic.training.data import ElasticSampler
from spotelastic.training.fitting import Kind

PIECE = 32 << 20
"""Bytes above which a plain tensor is split, so that ranks share its upload."""
OWN = "spotelastic"
"""First part of the names of what we add to the state ourselves."""

Path = tuple[str | int, ...]
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

    def declared(self) -> Declared:
        dtype = dtype_name(self.tensor)
        if dtype not in encoding.ITEM_SIZES:
            raise UsageError(f"{self.fqn}: tensors of dtype {dtype} cannot be saved")
        return Declared(self.fqn, self.path, dtype, self.shape, self.offsets, self.sizes)


@dataclass(frozen=True, slots=True)
class Cell:
    """A value that is pickled. `rank` is SHARED, or the rank that it belongs to."""

    fqn: str
    path: Path
    get: Callable[[], Any]
    rank: int = SHARED

    @property
    def key(self) -> Key:
        return self.fqn, ()


@dataclass(frozen=True, slots=True)
class View:
    """The state at one moment, as far as this rank has it."""

    chunks: tuple[Chunk, ...]
    cells: tuple[Cell, ...]
    kinds: Mapping[str, Kind]
    """By name, of everything: also of tensors that lie on other ranks alone."""
    current: Callable[[], bool]
    """Whether training still updates these tensors."""
    sharded: Collection[str] = frozenset()
    """Names of the tensors that are spread over ranks."""


class State:
    """The mapping that the script gave: modules, optimizers, things with state_dict(), values."""

    def __init__(self, values: MutableMapping[str, Any]) -> None:
        if OWN in values:
            raise UsageError(f'state["{OWN}"]: this name is taken by spotelastic itself')
        self.values = values

    def view(self) -> View:
        chunks: list[Chunk] = []
        cells: list[Cell] = []
        kinds: dict[str, Kind] = {}
        checks: list[Callable[[], bool]] = []
        sharded: set[str] = set()
        for name, value in self.values.items():
            match value:
                case torch.nn.Module():
                    flat = flat_state(name, get_model_state_dict(value))
                    checks.append(_module_check(value))
                    get = _extra_state(name, value, flat)
                case torch.optim.Optimizer() if self._model_of(value) is not None:
                    state = self._optimizer_state(value)
                    flat = flat_state(name, state)
                    checks.append(_optimizer_check(value))
                    get = _optimizer_cells(value, state, flat)
                case torch.Tensor():
                    flat = {(name,): value}
                    checks.append(_same(self.values, name, value))
                    get = {}
                case _ if hasattr(value, "state_dict"):
                    followed = _Followed(name, value)
                    flat = followed.flat
                    checks.append(followed.is_current)
                    get = {path: followed.reader(path) for path in flat}
                    own = OWN, "structure", name
                    cells.append(Cell(".".join(own), own, followed.structure))
                case _:
                    flat = {(name,): value}
                    get = {(name,): _reader(self.values, name)}
            for path, leaf in flat.items():
                fqn = ".".join(map(str, path))
                if isinstance(leaf, torch.Tensor):
                    chunks += chunks_of(fqn, path, leaf)
                    if isinstance(leaf, DTensor):
                        sharded.add(fqn)
                    kinds[fqn] = Kind(dtype_name(leaf), tuple(leaf.shape))
                else:
                    cells.append(Cell(fqn, path, get[path]))
                    kinds[fqn] = Kind()
        current = lambda: all(check() for check in checks)  # noqa: E731
        return View(tuple(chunks), tuple(cells), kinds, current, sharded)

    def stepped(self) -> None:
        """A step was made: data count by steps, not by what a loader has fetched."""
        for value in self.values.values():
            if isinstance(value, ElasticSampler):
                value.advance()

    def initialise(self) -> None:
        """Make optimizers create their state, so that there is something to load into."""
        for value in self.values.values():
            if isinstance(value, torch.optim.Optimizer) and self._model_of(value) is not None:
                self._optimizer_state(value)

    def optimizers(self) -> Iterator[tuple[str, torch.optim.Optimizer, dict[str, Any]]]:
        """Name, optimizer, and the live state of each parameter by the parameter's name."""
        for name, value in self.values.items():
            if isinstance(value, torch.optim.Optimizer) and self._model_of(value) is not None:
                yield name, value, self._optimizer_state(value)["state"]

    def is_stateful(self, name: str) -> bool:
        """Loaded through its own load_state_dict, not in place."""
        value = self.values[name]
        in_place = isinstance(value, torch.nn.Module | torch.Tensor) or (
            isinstance(value, torch.optim.Optimizer) and self._model_of(value) is not None
        )
        return not in_place and hasattr(value, "load_state_dict")

    def _model_of(self, optimizer: torch.optim.Optimizer) -> torch.nn.Module | None:
        """The one that has all its parameters; without one it is saved by their numbers."""
        parameters = {id(p) for group in optimizer.param_groups for p in group["params"]}
        for value in self.values.values():
            if isinstance(value, torch.nn.Module) and parameters <= set(
                map(id, value.parameters())
            ):
                return value
        return None

    def _optimizer_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        model = self._model_of(optimizer)
        assert model is not None
        return dict(get_optimizer_state_dict(model, optimizer))


def dtype_name(tensor: torch.Tensor) -> str:
    return _name_of(tensor.dtype)


@functools.cache
def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def flat_state(name: str, state: Mapping[str, Any]) -> dict[Path, Any]:
    values, paths = flatten_state_dict({name: dict(state)})
    return {paths[fqn]: value for fqn, value in values.items()}


def _structure(fqn: str, value: Any, leaves: Collection[str]) -> Any:
    """The containers of a state, with the names of what they hold in its place.

    DCP's names alone do not tell whether a key was "3" or 3, and forget what is empty.
    """
    if fqn in leaves:
        return fqn
    if isinstance(value, list):
        return [_structure(f"{fqn}.{n}", entry, leaves) for n, entry in enumerate(value)]
    kept = copy.copy(value) if isinstance(value, MutableMapping) else {}
    for key, entry in value.items():
        kept[key] = _structure(f"{fqn}.{key}", entry, leaves)
    return kept


def chunks_of(fqn: str, path: Path, tensor: torch.Tensor) -> Iterator[Chunk]:
    """The pieces of a tensor that are saved one by one; of a DTensor, those that lie here."""
    shape = tuple(tensor.shape)
    if isinstance(tensor, DTensor):
        local = tensor.to_local().detach()
        _, offsets = compute_local_shape_and_global_offset(
            tensor.shape, tensor.device_mesh, tensor.placements
        )
        if local.numel() or not tensor.numel():
            yield Chunk(fqn, path, local, shape, tuple(offsets), tuple(local.shape))
        return
    tensor = tensor.detach()
    nothing = (0,) * len(shape)
    if tensor.nbytes <= PIECE or shape[0] < 2:
        yield Chunk(fqn, path, tensor, shape, nothing, shape)
        return
    at_once = max(1, PIECE * shape[0] // tensor.nbytes)
    for start in range(0, shape[0], at_once):
        part = tensor[start : start + at_once]
        yield Chunk(fqn, path, part, shape, (start, *nothing[1:]), tuple(part.shape))


def _module_check(module: torch.nn.Module) -> Callable[[], bool]:
    """Parameters and buffers may be replaced; their storage tells."""

    def addresses() -> list[int]:
        return [
            tensor.data_ptr()
            for part in parts
            for tensor in part.values()
            if tensor is not None and not isinstance(tensor, DTensor)
        ]

    parts = [
        part for child in module.modules() for part in (child._parameters, child._buffers) if part
    ]
    known = addresses()
    return lambda: addresses() == known


def _optimizer_check(optimizer: torch.optim.Optimizer) -> Callable[[], bool]:
    def identities() -> list[int]:
        return [
            id(value)
            for state in optimizer.state.values()
            for value in state.values()
            if isinstance(value, torch.Tensor)
        ]

    known = identities()
    return lambda: identities() == known


class _Followed:
    """What a thing with state_dict() says: asked once per save, when it is checked."""

    def __init__(self, name: str, value: Any) -> None:
        self._name, self._value = name, value
        self._ask()
        self._known = self._addresses()

    def is_current(self) -> bool:
        self._ask()
        return self._addresses() == self._known

    def structure(self) -> Any:
        leaves = {".".join(map(str, path)) for path in self.flat}
        return _structure(self._name, self._state, leaves)

    def reader(self, path: Path) -> Callable[[], Any]:
        return lambda: self.flat[path]

    def _ask(self) -> None:
        self._state = dict(self._value.state_dict())
        self.flat = flat_state(self._name, self._state)

    def _addresses(self) -> dict[Path, int]:
        return {path: _address(leaf) for path, leaf in self.flat.items()}


def _address(leaf: Any) -> int:
    return leaf.data_ptr() if isinstance(leaf, torch.Tensor) else 0


def _same(values: Mapping[str, Any], name: str, tensor: torch.Tensor) -> Callable[[], bool]:
    return lambda: values.get(name) is tensor


def _extra_state(
    name: str, module: torch.nn.Module, flat: Mapping[Path, Any]
) -> dict[Path, Callable[[], Any]]:
    """What modules keep beside tensors (get_extra_state) is made anew whenever it is asked for."""

    def live(path: Path) -> Callable[[], Any]:
        return lambda: flat_state(name, get_model_state_dict(module))[path]

    return {path: live(path) for path, leaf in flat.items() if not torch.is_tensor(leaf)}


def _constants(flat: Mapping[Path, Any]) -> dict[Path, Callable[[], Any]]:
    return {path: _reader(flat, path) for path in flat}


def _reader(values: Mapping[Any, Any], name: Any) -> Callable[[], Any]:
    return lambda: values[name]


def _optimizer_cells(
    optimizer: torch.optim.Optimizer, state: Mapping[str, Any], flat: Mapping[Path, Any]
) -> dict[Path, Callable[[], Any]]:
    """Hyper-parameters change under a scheduler; the names of the parameters do not.

    The state of a parameter is the optimizer's own dictionary, that of a group is a copy.
    """

    def live(number: int, key: str) -> Callable[[], Any]:
        return lambda: optimizer.param_groups[number][key]

    cells = _constants(flat)
    for path in flat:
        if len(path) == 4 and path[1] == "param_groups" and path[3] != "params":
            cells[path] = live(int(path[2]), str(path[3]))
        elif len(path) == 4 and path[1] == "state":
            cells[path] = _reader(state["state"][path[2]], str(path[3]))
    return cells
