"""Decides how a tensor can be saved: copied as bytes, pickled, or not at all.

Most are copied as bytes. For some the bytes mean something else (conjugated, negated), some have
several elements in one place, and some have no memory of their own. These are sparse and quantized
tensors, and those that a class builds from others. They are pickled as values and made anew.
"""

from collections.abc import Sequence

import torch
from torch.distributed.tensor import DTensor, Partial
from torch.nn.parameter import is_lazy

from spotelastic.errors import UsageError
from spotelastic.torch_names import copy_all, is_zero_tensor

_ORDINARY = torch.Tensor, torch.nn.Parameter


def is_value(tensor: torch.Tensor) -> bool:
    """Return whether a tensor has to be pickled and cannot be copied as bytes."""
    if type(tensor) not in _ORDINARY and (isinstance(tensor, DTensor) or is_lazy(tensor)):
        return False
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_quantized:
        return True
    if type(tensor) in _ORDINARY:
        return False
    return is_wrapper(tensor) or _is_without_memory(tensor)


def is_wrapper(tensor: torch.Tensor) -> bool:
    """Return whether its class builds it from other tensors, and tells from which."""
    told = hasattr(tensor, "__tensor_flatten__") and hasattr(tensor, "__tensor_unflatten__")
    return told and type(tensor) is not torch.Tensor


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's part of a sharded tensor, the very object; any other tensor as it is."""
    if not isinstance(tensor, DTensor):
        return tensor
    names, _ = tensor.__tensor_flatten__()  # type: ignore[no-untyped-call]
    part: torch.Tensor = getattr(tensor, names[0])
    return part


def _is_without_memory(tensor: torch.Tensor) -> bool:
    try:
        return not (tensor.is_meta or tensor.data_ptr()) and tensor.numel() > 0
    except RuntimeError:
        return True


def refuse(name: str, tensor: torch.Tensor) -> None:
    """Raise `UsageError` for a tensor that has nothing to save, or is not all on this rank."""
    if type(tensor) in _ORDINARY:
        return
    if is_lazy(tensor):
        raise UsageError(
            f"{name} has no shape yet: run its module once before the first save, as a lazy module"
            " wants"
        )
    if isinstance(tensor, DTensor):
        if any(isinstance(placement, Partial) for placement in tensor.placements):
            raise UsageError(
                f"{name} is a DTensor with a Partial placement: each rank has a summand of it;"
                " redistribute it before it is saved"
            )
        if is_value(local := local_part(tensor)):
            kind = type(local).__name__
            raise UsageError(
                f"{name} is a DTensor of {kind}, a tensor made of others, whose parts cannot be "
                "given to another number of ranks: keep it whole on each rank, or leave this kind "
                "of tensor away where fully_shard is used"
            )


def has_nothing(tensor: torch.Tensor) -> str:
    """Return why a tensor has no elements to copy; empty where it has some."""
    if tensor.is_meta:
        return "is on the meta device, without any elements: give it memory, as with to_empty()"
    if is_zero_tensor(tensor):
        return "is a zero tensor of autograd, without any memory: clone it"
    return ""


def is_raw(tensor: torch.Tensor) -> bool:
    """Return whether the elements are what the bytes say, one after the other."""
    return tensor.is_contiguous() and not (tensor.is_conj() or tensor.is_neg())


def pour(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    """Copy each source into its target, which may have several elements in one place.

    Raises `UsageError` where such elements differ in the source.
    """
    simple: list[tuple[torch.Tensor, torch.Tensor]] = []
    odd: list[tuple[torch.Tensor, torch.Tensor]] = []
    for target, source in zip(targets, sources, strict=True):
        is_odd = target.is_conj() or target.is_neg() or _may_overlap(target)
        (odd if is_odd else simple).append((target, source))
    if simple:
        copy_all([target for target, _ in simple], [source for _, source in simple])
    for target, source in odd:
        _pour_one(target, source)


def _pour_one(target: torch.Tensor, source: torch.Tensor) -> None:
    into, of = target, source
    for axis, (size, stride) in enumerate(zip(target.shape, target.stride(), strict=True)):
        if size > 1 and stride == 0:
            into, of = into.narrow(axis, 0, 1), of.narrow(axis, 0, 1)
    into.copy_(of)
    if target.dtype == source.dtype and not same_bits(target, source):
        raise UsageError(
            "the checkpoint is of another state: a tensor has several elements in one place of its"
            " memory here, which differ in the checkpoint"
        )


def same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Return whether two tensors have the same elements, to the last bit."""
    return torch.equal(bits(left), bits(right).to(left.device))


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy of the elements, as bytes."""
    plain = tensor.detach().resolve_conj().resolve_neg()
    return plain.clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8)


def _may_overlap(tensor: torch.Tensor) -> bool:
    """Return whether two elements may share a place, as far as the strides tell."""
    if tensor.is_contiguous():
        return False
    reach = 0
    places = sorted(zip(tensor.stride(), tensor.shape, strict=True))
    for stride, size in places:
        if size == 0:
            return False
        if size > 1:
            if stride <= reach:
                return True
            reach += stride * (size - 1)
    return False
