"""Pickles the state's values as `torch.save` does, and reads them back as plain data only.

Any process with write access to an object store may have put values there. So they are unpickled by
torch's restricted unpickler. It knows tensors and plain containers, here also numpy's arrays and
numbers, and what the script allows with `torch.serialization.add_safe_globals`. A value that could
not be read again is refused before it is first saved.
"""

import io
import pickle
import re
import sys
from collections import deque
from contextlib import AbstractContextManager
from typing import Any

import torch
from spotelastic_checkpoints.format import encoding
from torch.distributed.tensor import DTensor
from torch.optim.lr_scheduler import LRScheduler

from spotelastic.errors import UsageError
from spotelastic.training.state import tensors
from spotelastic.training.state.generators import is_generator

_OBJECTS = torch.nn.Module, torch.optim.Optimizer, LRScheduler
"""What would come back as another object than the one that trains."""
_MOST_BITS = 2032
"""Bits of the longest integer that the restricted unpickler reads."""


class Noting:
    """Replaces the module `pickle`, and notes the types of what is pickled and not plain."""

    def __init__(self) -> None:
        noted: set[Any] = set()

        class Pickler(pickle.Pickler):
            def reducer_override(self, value: Any) -> Any:
                _refuse(value)
                noted.add(_kind(value))
                if type(value) is deque:  # A deque is otherwise filled after it was made.
                    return deque, ([*value], value.maxlen)
                return NotImplemented

        self.noted, self.Pickler = noted, Pickler

    __name__, dump = "pickle", staticmethod(pickle.dump)


class Encoders:
    """Encodes the same values again and again.

    A value is decoded at first, and whenever it contains something of a new type. One that cannot
    be read again is thus refused before it is saved.
    """

    def __init__(self) -> None:
        self._known: dict[str, tuple[Noting, set[Any]]] = {}

    def encode(self, name: str, value: Any) -> bytes:
        """Return the value as bytes. Raises `UsageError` where it could not be read again."""
        noting, known = self._known.setdefault(name, (Noting(), set()))
        noting.noted.clear()
        data = encode(name, value, noting)
        if type(value) not in known or not noting.noted <= known:
            decode(name, data)
            known.add(type(value))
            known |= noting.noted
        return data


def encode(name: str, value: Any, noting: Noting | None = None) -> bytes:
    """Return a value as `torch.save` writes it. Raises `UsageError`."""
    try:
        if _is_plain(value):
            return encoding.plain_value(value)
        buffer = io.BytesIO()
        torch.save(value, buffer, noting or Noting())
        return buffer.getvalue()
    except UsageError as error:
        raise UsageError(f"{name} {error}") from None
    except RecursionError:
        raise UsageError(f"{name} is nested too deeply to be saved, or contains itself") from None
    except Exception as error:
        raise UsageError(f"{name}: {type(value).__name__} cannot be saved: {error}") from error


def _kind(value: Any) -> Any:
    """Return what decides whether a thing can be read, besides what else is pickled with it."""
    if isinstance(value, type) or callable(value):
        return value
    dtype = getattr(value, "dtype", None)
    return type(value) if dtype is None else (type(value), dtype, getattr(value, "layout", None))


def _refuse(value: Any) -> None:
    if isinstance(value, _OBJECTS) or is_generator(value):
        raise UsageError(f"holds an object of {type(value).__name__}: make it an entry of its own")
    if isinstance(value, DTensor):
        raise UsageError(
            "holds a DTensor, of which each rank has a part: keep it in a dict or a list"
        )
    if isinstance(value, torch.Tensor) and (problem := tensors.has_nothing(value)):
        raise UsageError(f"holds a tensor that {problem}")


def decode(name: str, data: bytes | memoryview) -> Any:
    """Return the value. Raises `UsageError`, with the class, where it is more than data."""
    try:
        with allowed():
            return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:
        raise UsageError(
            f"{name} is more than data{refers_to(error)}: keep plain values and tensors in the "
            "state, or allow its class with torch.serialization.add_safe_globals"
        ) from error


def allowed() -> AbstractContextManager[None]:
    """Return a context in which torch's restricted unpickler accepts what counts as data."""
    return torch.serialization.safe_globals([bytes, deque, *_numpy_globals()])


def refers_to(error: Exception) -> str:
    """Return what torch's restricted unpickler refused. Its own advice is to load anyway."""
    found = re.search(r"GLOBAL ([\w.]+)", str(error))
    return f" (it refers to {found[1]})" if found else ""


def _is_plain(value: Any) -> bool:
    kind = type(value)
    if kind in (type(None), bool, float, str, bytes):
        return True
    if kind is int:
        if value.bit_length() > _MOST_BITS:
            raise UsageError(f"has an integer of more than {_MOST_BITS:,} bits")
        return True
    if kind in (tuple, list):
        return all(map(_is_plain, value))
    if kind is dict:
        return all(_is_plain(k) and _is_plain(v) for k, v in value.items())
    return False


def _numpy_globals() -> list[Any]:
    """Return the classes of numpy's arrays and numbers; none where numpy is not in use."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return []
    core = getattr(numpy, "_core", None) or numpy.core
    kinds = {type(numpy.dtype(kind)) for kind in numpy.sctypeDict.values()}
    return [
        core.multiarray._reconstruct,
        core.multiarray.scalar,
        numpy.ndarray,
        numpy.dtype,
        *sorted(kinds, key=str),
    ]
