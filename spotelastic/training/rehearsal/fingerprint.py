"""Takes fingerprints of all that a training step leaves, and tells where two of them differ.

A step that is made again has to leave what it left the first time. What is compared is whatever the
Checkpointer saves, and besides that gradients, `training` and `requires_grad` flags, buffers that
are not saved, an optimizer's own attributes, random numbers and the loss. Tensors are hashed where
they lie, so that a fingerprint takes no memory on a GPU. Of each a few elements are kept, which
tell how large a difference is.
"""

import math
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from spotelastic.training.data import randomness
from spotelastic.training.state.generators import SavedGenerator, is_generator
from spotelastic.training.state.rank_agreement import digest_of_tensor, digest_of_value
from spotelastic.training.state.state import State
from spotelastic.training.state.tensors import local_part
from spotelastic.training.state.value_entries import OWN

SAMPLED = 1024
"""Elements that are kept of each tensor."""
GRADIENT = "gradient of "
"""Beginning of the names of gradients."""
LONG = 10_000
"""Parts up to which a container that a module keeps is compared."""
SHOWN = 40
"""Characters up to which a value is shown."""
_UNKNOWN = b"unknown"
"""Stands for what cannot be hashed: it is equal to itself."""
_PLAIN = (type(None), bool, int, float, str)
_OF_EVERY_OPTIMIZER = ("defaults", "state", "param_groups")


@dataclass(slots=True)
class StepFingerprint:
    """What a process had at one moment, by the names that the script's user knows."""

    digests: dict[str, bytes] = field(default_factory=dict)
    samples: dict[str, torch.Tensor] = field(default_factory=dict)
    """Some elements of each tensor of floats, and floats among the values, as float64."""
    shown: dict[str, str] = field(default_factory=dict)
    """Values that are short enough to be shown."""
    tensors: set[str] = field(default_factory=set)
    saved: frozenset[str] = frozenset()
    """Names of what a save has in it."""

    def add(self, name: str, value: Any) -> None:
        """Add a tensor or a value."""
        if isinstance(value, DTensor):
            value = local_part(value)
        if type(value) in (torch.Tensor, torch.nn.Parameter):
            self._add_tensor(name, value.detach())
            return
        digest = digest_of_value(value)
        self.digests[name] = _UNKNOWN if digest is None else digest
        if isinstance(value, _PLAIN) and len(repr(value)) <= SHOWN:
            self.shown[name] = repr(value)
        if isinstance(value, float):
            self.samples[name] = torch.tensor([value], dtype=torch.float64)

    def _add_tensor(self, name: str, tensor: torch.Tensor) -> None:
        self.tensors.add(name)
        try:
            self.digests[name] = digest_of_tensor(tensor)
        except RuntimeError:  # a layout without bytes of its own
            digest = digest_of_value(tensor)
            self.digests[name] = _UNKNOWN if digest is None else digest
            return
        if tensor.numel() == 1 and not tensor.is_complex():
            self.shown[name] = repr(tensor.item())
        if tensor.is_floating_point() and tensor.numel():
            flat = tensor.reshape(-1)
            some = flat[:: max(1, -(-flat.numel() // SAMPLED))]
            self.samples[name] = some.to("cpu", torch.float64, copy=True)


@dataclass(frozen=True, slots=True)
class Difference:
    """Something that is not what it was."""

    name: str
    first: str
    """The value that it had the first time; empty where that is too long to be shown."""
    second: str
    size: float | None
    """How large the difference is beside what the step has changed of it, or beside its size where
    that is not known; None where no number tells.
    """

    def __str__(self) -> str:
        if self.first and self.second:
            return f"{self.name} is {self.second}, was {self.first}"
        if self.size is None or not math.isfinite(self.size):
            return f"{self.name} differs"
        return f"{self.name} differs by {self.size:.2g} of its change"


def take(state: State, loss: Any = None) -> StepFingerprint:
    """Return the fingerprint of this rank's state, and of what a step leaves besides."""
    found = StepFingerprint()
    view = state.view()
    for chunk in view.chunks:
        at = f"[{', '.join(map(str, chunk.offsets))}]" if any(chunk.offsets) else ""
        found.add(f"{chunk.fqn}{at}", chunk.tensor)
    for entry in view.entries:
        if entry.path[0] != OWN:
            found.add(entry.fqn, entry.get())
    # Of buffers the first rank's are saved, and restored on all.
    others = view.buffers if state.rank else ()
    found.saved = frozenset(name for name in found.digests if name not in others)
    stepped = _stepped(state)
    for name, value in state.values.items():
        if isinstance(value, torch.nn.Module):
            for key, each in _of_module(name, value, stepped):
                if key not in found.digests:
                    found.add(key, each)
        elif isinstance(value, torch.optim.Optimizer):
            for key, each in kept_on(value).items():
                found.add(f"{name}.{key}", each)
    for kind, numbers in randomness.capture().items():
        found.add(f"random numbers of {kind}", numbers)
    found.add("step.loss", loss)
    return found


def kept_on(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return what libraries, or an optimizer's own class, keep in attributes of it."""
    return {
        key: each
        for key, each in vars(optimizer).items()
        if not (key in _OF_EVERY_OPTIMIZER or _is_torchs(key, optimizer) or callable(each))
    }


def differences(
    first: StepFingerprint, second: StepFingerprint, before: StepFingerprint | None = None
) -> list[Difference]:
    """Return what differs.

    What others follow from comes first: values before parameters, and these before gradients; then
    the largest.

    `before` is what there was before the step, beside which the size of differences is told.
    """
    names = [*first.digests, *(name for name in second.digests if name not in first.digests)]
    found = [
        Difference(
            name,
            _shown(first, name),
            _shown(second, name),
            _size(name, first.samples, second.samples, before.samples if before else {}),
        )
        for name in names
        if first.digests.get(name) != second.digests.get(name)
    ]

    def place(each: Difference) -> tuple[bool, bool, float]:
        return each.name.startswith(GRADIENT), each.name in first.tensors, -(each.size or 0.0)

    return sorted(found, key=place)


def _stepped(state: State) -> set[int]:
    """Return the ids of the parameters that optimizers of the state step; none if there are none.

    Gradients of others may add up for ever: nothing reads them.
    """
    own = (each for each in state.values.values() if isinstance(each, torch.optim.Optimizer))
    groups = (group for optimizer in own for group in optimizer.param_groups)
    return {id(each) for group in groups for each in group["params"]}


def _of_module(
    name: str, module: torch.nn.Module, stepped: Collection[int]
) -> Iterator[tuple[str, Any]]:
    for key, buffer in module.named_buffers():
        yield f"{name}.{key}", buffer
    for key, parameter in module.named_parameters():
        yield f"requires_grad of {name}.{key}", parameter.requires_grad
        if parameter.grad is not None and (not stepped or id(parameter) in stepped):
            yield f"{GRADIENT}{name}.{key}", parameter.grad
        yield from _attributes(f"{name}.{key}", parameter)
    for key, part in module.named_modules():
        yield from _attributes(".".join(filter(None, (name, key))), part)


def _attributes(name: str, owner: object) -> Iterator[tuple[str, Any]]:
    """Yield what a module or a parameter keeps as plain attributes, `training` among them."""
    for key, value in vars(owner).items():
        if _is_torchs(key, owner):
            continue
        if isinstance(value, (*_PLAIN, torch.Tensor)) or _is_plain_container(value):
            yield f"{name}.{key}", value
        elif is_generator(value):
            yield f"{name}.{key}", SavedGenerator(value).state_dict()


def _is_plain_container(value: Any) -> bool:
    if type(value) not in (list, deque, set, dict) or len(value) > LONG:
        return False
    parts = value.values() if isinstance(value, dict) else value
    return all(isinstance(each, (*_PLAIN, torch.Tensor)) for each in parts)


def _is_torchs(key: str, owner: object) -> bool:
    """Return whether an attribute may be torch's. Private ones of other classes are not."""
    return key.startswith("_") and type(owner).__module__.partition(".")[0] == "torch"


def _shown(fingerprint: StepFingerprint, name: str) -> str:
    if name not in fingerprint.digests:
        return "nothing"
    return fingerprint.shown.get(name, "")


def _size(
    name: str,
    first: Mapping[str, torch.Tensor],
    second: Mapping[str, torch.Tensor],
    before: Mapping[str, torch.Tensor],
) -> float | None:
    one, other = first.get(name), second.get(name)
    if one is None or other is None or one.shape != other.shape:
        return None
    start = before.get(name)
    beside = one if start is None or start.shape != one.shape else one - start
    gap = float(torch.linalg.vector_norm(one - other))
    whole = float(torch.linalg.vector_norm(beside))
    return gap / whole if whole else math.inf if gap else 0.0
