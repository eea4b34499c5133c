"""Notes what a step changes before its optimizers step, and puts that back when it is begun again.

An attempt at a step draws random numbers, and forward changes buffers (BatchNorm). It may move
schedulers, scalers and values of the state. Optimizers have not stepped then, so that parameters
and their moments are as they were. What is small is copied when the step begins. Of what is large
torch's count of writes is noted: if that has changed, the attempt cannot be undone, and the state
is restored from a save instead. Writes through `.data` are not counted, so a few elements of some
parameters are compared as well: a script may have an optimizer of its own.
"""

import copy
from collections.abc import Callable, Collection, MutableMapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import torch

from spotelastic import torch_names
from spotelastic.training.data import randomness
from spotelastic.training.data import sampler as samplers
from spotelastic.training.data.sampler import ElasticSampler, Position
from spotelastic.training.rehearsal.fingerprint import kept_on
from spotelastic.training.state.derived import copied_into, poured
from spotelastic.training.state.lasting import Lasting
from spotelastic.training.state.state import State
from spotelastic.training.state.state_checks import are_same
from spotelastic.training.state.tensors import local_part

SMALL = 1 << 20
"""Bytes up to which a tensor is copied."""
CARRIES = "gradients are kept from one block to the next, and no save has them"
MANY = 1000
"""Parts up to which a container of plain values is copied."""
SAMPLED = 8
"""Parameters of which a few elements are compared, and large tensors besides."""
_ELEMENTS = 16
_UNCHANGING = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device)


class Undo:
    """What there was when a step began."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._begun: _Begun | None = None
        self._modules: list[torch.nn.Module] = []
        self._trained: list[torch.Tensor] = []
        self._parts: list[torch.nn.Module] = []
        self._insides: list[tuple[dict[str, Any], dict[str, Any]]] = []
        """What each part consists of, and what it did when that was last looked at."""
        self._shape = -1
        self._copies: dict[int, torch.Tensor] = {}
        self.others: list[Callable[[], str]] = []
        """Return what else cannot be put back; empty if it can."""
        self._carries = False
        """Whether the last step left gradients, and no optimizer has stepped with them."""

    def note(self) -> None:
        """Note what there is, at the beginning of a step."""
        modules = [
            value for value in self._state.values.values() if isinstance(value, torch.nn.Module)
        ]
        if not are_same(modules, self._modules) or _shape(self._parts) != self._shape:
            self._modules = modules
            self._trained = [each for module in modules for each in module.parameters()]
            self._parts = [part for module in modules for part in module.modules()]
            self._insides = [(vars(part), _copied_once(vars(part))) for part in self._parts]
            self._shape = _shape(self._parts)
        begun = _Begun(randomness.capture(), self._carries, {**self._state.values})
        begun.parameters += self._trained
        self._note_buffers(begun)
        for name, value in self._state.values.items():
            if isinstance(value, torch.optim.Optimizer):
                begun.groups.append((value, [*map(_options, value.param_groups)], kept_on(value)))
                for group in value.param_groups:
                    begun.parameters += group["params"]
                    moments = (value.state.get(each, {}) for each in _some(group["params"]))
                    begun.parameters += [
                        each
                        for own in moments
                        for each in own.values()
                        if isinstance(each, torch.Tensor)
                    ]
            elif isinstance(value, ElasticSampler):
                begun.samplers.append((value, samplers.position(value)))
            elif not isinstance(value, torch.nn.Module | Lasting):
                try:
                    told = value.state_dict() if _is_stateful(value) else value
                    begun.values[name] = _copied(told, begun.watched, [MANY])
                except Exception:  # some object cannot be copied
                    begun.unknown = True
        begun.versions = torch_names.write_counts(begun.parameters)
        begun.had_gradient = [parameter.grad is not None for parameter in begun.parameters]
        begun.watched_versions = torch_names.write_counts(begun.watched)
        begun.sampled = [*_some(begun.parameters), *_some(begun.watched)]
        begun.trained = [parameter.requires_grad for parameter in self._trained]
        begun.training = [part.training for part in self._parts]
        begun.samples = [sample.clone() for sample in _samples(begun.sampled)]
        self._begun = begun

    def finished(self, stepped: Collection[int] | None) -> None:
        """Take the step as made.

        `stepped` are the ids of the optimizers that have stepped in it; None: the script has
        others, of which nothing is known.

        What an optimizer has not stepped with may be added to in the next step.
        """
        begun, self._begun = self._begun, None
        if begun is None or stepped is None:
            self._carries = False
        elif not stepped:
            self._carries = _have_gradients(begun.parameters)
        else:
            left = (optimizer for optimizer, *_ in begun.groups if id(optimizer) not in stepped)
            groups = (group["params"] for optimizer in left for group in optimizer.param_groups)
            self._carries = any(map(_have_gradients, groups))

    def carried(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return parameters whose gradients the next step may add to, with copies of these."""
        if not self._carries:
            return []
        values = self._state.values.values()
        own = (each for each in values if isinstance(each, torch.optim.Optimizer))
        groups = (group["params"] for optimizer in own for group in optimizer.param_groups)
        return [(each, each.grad.clone()) for each in chain(*groups) if each.grad is not None]

    def concerns(self, optimizer: torch.optim.Optimizer) -> bool:
        """Return whether an optimizer changes something of the state."""
        own = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        trained = {*map(id, self._trained)}
        known = any(value is optimizer for value in self._state.values.values())
        if known or any(id(parameter) in trained for parameter in own):
            return True
        places = {chunk.tensor.untyped_storage().data_ptr() for chunk in self._state.view().chunks}
        return any(local_part(each).untyped_storage().data_ptr() in places for each in own)

    @property
    def problem(self) -> str:
        """Why what was changed cannot be put back; empty if it can.

        It cannot once an optimizer has stepped.
        """
        begun = self._begun
        if begun is None:
            return ""
        if begun.carries:
            return CARRIES
        if begun.unknown:
            return "the state has something that cannot be copied at each step"
        if begun.versions != torch_names.write_counts(begun.parameters):
            return "parameters, or their moments, change before the step vote (see step.vote())"
        same = begun.watched_versions == torch_names.write_counts(begun.watched)
        if not same or any(
            held.get(name) is not tensor
            for held, name, tensor, own in begun.buffers
            if own is None and tensor is not None
        ):
            return "a tensor above 1 MiB changes before the step vote"
        if not all(map(torch.equal, begun.samples, _samples(begun.sampled))):
            return "parameters, or tensors above 1 MiB, change through .data before the step vote"
        return next((problem for ask in self.others if (problem := ask())), "")

    def put_back(self, *, stays: bool = False) -> None:
        """Undo what was done since the step began, as far as it was noted.

        With `stays`, the place in the data is not concerned.
        """
        begun = self._begun
        if begun is None:
            return
        self.put_back_shape()
        self._put_back_modules(begun)
        self._put_back_entries(begun.held)
        for optimizer, groups, attributes in begun.groups:
            for group, options in zip(optimizer.param_groups, groups, strict=False):
                for key, noted in options.items():
                    group[key] = _poured(group.get(key), noted)
            for name in kept_on(optimizer).keys() - attributes.keys():
                delattr(optimizer, name)
            vars(optimizer).update(attributes)
        for name, noted in begun.values.items():
            self._put_back_value(name, noted)
        for sampler, position in () if stays else begun.samplers:
            samplers.go_back(sampler, position)
        for parameter, had in zip(begun.parameters, begun.had_gradient, strict=True):
            if not had:
                parameter.grad = None
            elif parameter.grad is not None:
                parameter.grad = torch.zeros_like(parameter.grad)
        randomness.apply(begun.randomness)

    def _put_back_entries(self, held: dict[str, Any]) -> None:
        values = self._state.values
        for name in values.keys() - held.keys():
            del values[name]
        for name, value in held.items():
            if values.get(name) is not value:
                values[name] = value

    def put_back_shape(self) -> None:
        """Put back what modules and optimizers consist of, so that a save of it can be restored."""
        if _shape(self._parts) != self._shape:
            for now, before in self._insides:
                _put_back_inside(now, before)
        for optimizer, groups, _ in self._begun.groups if self._begun is not None else ():
            for group in optimizer.param_groups[len(groups) :]:
                for parameter in group["params"]:
                    optimizer.state.pop(parameter, None)
            del optimizer.param_groups[len(groups) :]

    def _put_back_modules(self, begun: "_Begun") -> None:
        for held, name, tensor, copied in begun.buffers:
            held[name] = tensor
            if tensor is not None and copied is not None:
                _fill(tensor, copied)
        for parameter, is_trained in zip(self._trained, begun.trained, strict=False):
            if parameter.requires_grad != is_trained:
                parameter.requires_grad_(is_trained)
        for part, is_training in zip(self._parts, begun.training, strict=False):
            part.training = is_training

    def go_on_anew(self) -> None:
        """End iterations over data: the ranks have changed, and so have their shares."""
        for value in self._state.values.values():
            if isinstance(value, ElasticSampler):
                samplers.go_back(value, samplers.position(value))

    def _note_buffers(self, begun: "_Begun") -> None:
        """Copy buffers into the copies of the last step, which costs no new memory."""
        copies: dict[int, torch.Tensor] = {}
        into, come = [], []
        places = [part._buffers for part in self._parts if part._buffers]
        for held, name, tensor in ((each, *one) for each in places for one in each.items()):
            if tensor is None:
                begun.buffers.append((held, name, None, None))
                continue
            own = copies.get(id(tensor))
            if own is None:
                own = self._copies.get(id(tensor))
                if own is None or not _is_like(own, tensor):
                    if not _is_copied(tensor):
                        begun.watched.append(tensor)
                        begun.buffers.append((held, name, tensor, None))
                        continue
                    own = torch.empty_like(tensor)
                copies[id(tensor)] = own
                into.append(own)
                come.append(tensor.detach())
            begun.buffers.append((held, name, tensor, own))
        if into:
            torch_names.copy_all(into, come)
        self._copies = copies

    def _put_back_value(self, name: str, noted: Any) -> None:
        value: Any = self._state.values.get(name)
        if _is_stateful(value):
            value.load_state_dict(_copied_back(noted))
            if isinstance(value, torch.amp.GradScaler):
                with suppress(AssertionError):  # it has scaled nothing yet
                    value.update(value.get_scale())  # it forgets what it has unscaled
        else:
            self._state.values[name] = _poured(value, noted)


@dataclass
class _Begun:
    """What there was when the step began."""

    randomness: dict[str, Any]
    carries: bool
    held: dict[str, Any]
    """The entries of the state."""
    buffers: list[
        tuple[MutableMapping[str, Any], str, torch.Tensor | None, torch.Tensor | None]
    ] = field(default_factory=list)
    """Where each buffer is held, its name, the tensor or None, and a copy of one that is small."""
    groups: list[tuple[torch.optim.Optimizer, list[dict[str, Any]], dict[str, Any]]] = field(
        default_factory=list
    )
    """Optimizers, the options of their groups, and what libraries keep on them, as a scaler its
    scale.
    """
    trained: list[bool] = field(default_factory=list)
    """`requires_grad` of each parameter of the state's modules."""
    training: list[bool] = field(default_factory=list)
    """`training` of each of their parts."""
    parameters: list[torch.Tensor] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    had_gradient: list[bool] = field(default_factory=list)
    sampled: list[torch.Tensor] = field(default_factory=list)
    samples: list[torch.Tensor] = field(default_factory=list)
    watched: list[torch.Tensor] = field(default_factory=list)
    """Tensors that are not copied."""
    watched_versions: list[int] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)
    samplers: list[tuple[ElasticSampler, Position]] = field(default_factory=list)
    unknown: bool = False
    """Whether something may change unnoticed."""


def _is_stateful(value: Any) -> bool:
    return hasattr(value, "state_dict") and hasattr(value, "load_state_dict")


def _copied(value: Any, watched: list[torch.Tensor], left: list[int]) -> Any:
    """Return a copy. Tensors that are large stay the same ones, and are watched."""
    left[0] -= 1
    if left[0] < 0:
        raise ValueError("it is not worth to be copied at each step")
    if isinstance(value, _UNCHANGING):
        return value
    if isinstance(value, torch.Tensor):
        if type(value) is not torch.Tensor or not _is_copied(value):
            watched.append(value)
            return value
        return value.detach().clone()
    kind = type(value)
    if kind is dict:
        return {key: _copied(each, watched, left) for key, each in value.items()}
    if kind in (list, tuple):
        return kind(_copied(each, watched, left) for each in value)
    return copy.deepcopy(value)


def _copied_back(noted: Any) -> Any:
    """Return a copy of what was noted: it may have to be put back a second time."""
    return _copied(noted, [], [MANY * MANY])


def _options(group: dict[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in group.items() if key not in ("params", "param_names")}
    return {key: _copied_back(value) for key, value in kept.items()}


def _poured(old: Any, noted: Any) -> Any:
    """Return what was noted, in the tensors and containers there are: variables hold them."""
    return poured(old, _copied_back(noted), exact=True, leaf=_fill)


def _some(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    return tensors[:: len(tensors) // SAMPLED + 1]


def _shape(parts: list[torch.nn.Module]) -> int:
    """Return how many modules, parameters, buffers and hooks of forward are directly in these."""
    return sum(
        len(part._modules)
        + len(part._parameters)
        + len(part._buffers)
        + len(part._forward_hooks)
        + len(part._forward_pre_hooks)
        for part in parts
    )


def _copied_once(inside: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of what a module consists of, with what it has by name: parts, hooks."""
    return {key: each.copy() if isinstance(each, dict) else each for key, each in inside.items()}


def _put_back_inside(now: dict[str, Any], before: dict[str, Any]) -> None:
    """Put back which parts, parameters, buffers, hooks and attributes a module has.

    The attributes that it has kept may have other values than when they were looked at.
    """
    for key in now.keys() - before.keys():
        del now[key]
    for key, each in before.items():
        if isinstance(each, dict) and now.get(key) is not each:
            held = now.setdefault(key, each)
            held.clear()
            held.update(each)
        elif key not in now:
            now[key] = each


def _is_copied(tensor: torch.Tensor) -> bool:
    """Return whether it is small, and can be filled: an expanded one has fewer elements."""
    if tensor.layout is not torch.strided or tensor.nbytes > SMALL:
        return False
    return tensor.is_contiguous() or 0 not in tensor.stride()


def _fill(tensor: torch.Tensor, copied: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode(tensor.is_inference()), torch.no_grad():
        return copied_into(tensor, copied)


def _samples(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return views of the first bytes, so that NaN is equal to itself."""
    return [
        tensor.detach().view(-1)[:_ELEMENTS].view(torch.uint8)
        for tensor in tensors
        if type(tensor.detach()) is torch.Tensor and tensor.layout is torch.strided
        if tensor.is_contiguous() and tensor.numel()
    ]


def _is_like(left: torch.Tensor, right: torch.Tensor) -> bool:
    return left.shape == right.shape and left.dtype == right.dtype and left.device == right.device


def _have_gradients(parameters: list[torch.Tensor]) -> bool:
    return any(parameter.grad is not None for parameter in parameters)
