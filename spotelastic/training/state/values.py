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

from spotelastic.errors import UsageError
from spotelastic.training.state import tensors

_MOST_BITS = 2032
"""Bits of the longest integer that the restricted unpickler reads."""
_MADE_OF_OTHERS = "a tensor that is made of others"
"""Noted for a tensor that a class builds from others."""
_NOT_IN_LEGACY = frozenset(
    getattr(torch, name) for name, dtype in encoding.DTYPES.items() if not dtype.storage
)
"""Dtypes that torch does not read in its legacy format."""


class Noting:
    """Replaces the module `pickle`, and notes the types of what is pickled and not plain."""

    def __init__(self) -> None:
        noted: set[Any] = set()

        class Pickler(pickle.Pickler):
            def reducer_override(self, value: Any) -> Any:
                _refuse_shards(value)
                noted.add(_kind(value))
                if isinstance(value, torch.Tensor) and tensors.is_value(value):
                    noted.add(_MADE_OF_OTHERS)
                if _is_read_only(value):
                    return _read_only(value)
                if type(value) is deque:  # A deque is otherwise filled after it was made.
                    return deque, ([*value], value.maxlen)
                return NotImplemented

        self.noted, self.Pickler = noted, Pickler

    __name__, dump = "pickle", staticmethod(pickle.dump)

    @property
    def needs_archive(self) -> bool:
        """Whether what was pickled needs torch's newer format.

        torch does not read all dtypes in its legacy format, although it writes them. It also
        creates tensors there before it reads their content. The sizes of nested tensors and the
        scales of quantized ones would then be arbitrary.
        """
        return _MADE_OF_OTHERS in self.noted or any(
            isinstance(kind, tuple) and kind[1] in _NOT_IN_LEGACY for kind in self.noted
        )


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
    """Return a value as `torch.save` writes it in its legacy format. Raises `UsageError`."""
    noting = noting or Noting()
    try:
        if _is_plain(value):
            return encoding.plain_value(value)
        return _saved(value, noting)
    except UsageError as error:
        raise UsageError(f"{name} {error}") from None
    except RecursionError:
        raise UsageError(f"{name} is nested too deeply to be saved, or contains itself") from None
    except Exception as error:
        raise UsageError(f"{name}: {type(value).__name__} cannot be saved: {error}") from error


def _saved(value: Any, noting: Noting) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer, noting, _use_new_zipfile_serialization=False)
    if noting.needs_archive:
        buffer = io.BytesIO()
        torch.save(value, buffer, noting)
    return buffer.getvalue()


def _kind(value: Any) -> Any:
    """Return what decides whether a thing can be read, besides what else is pickled with it."""
    if isinstance(value, type) or callable(value):
        return value
    dtype = getattr(value, "dtype", None)
    return type(value) if dtype is None else (type(value), dtype, getattr(value, "layout", None))


def _is_read_only(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and type(value) is numpy.ndarray and not value.flags.writeable


def _read_only(array: Any) -> tuple[Any, ...]:
    """Return how to make a read-only array again: over bytes. A pickled one could be written.

    Raises `UsageError` where that is not possible.
    """
    if array.dtype.hasobject:
        raise UsageError("holds a read-only array of objects: copy it")
    order = "F" if array.flags.fnc else "C"
    strides = array.copy(order).strides
    return type(array), (array.shape, array.dtype, array.tobytes(order), 0, strides)


def _refuse_shards(value: Any) -> None:
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
