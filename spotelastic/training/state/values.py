"""Values of the state that are not tensors: pickled as `torch.save` does, read as plain data only.

What lies in an object store may have been put there by anybody who can write to it. So a value is
unpickled by torch's restricted unpickler, which knows tensors and plain containers, here numpy's
arrays and numbers too, and what the script has allowed with `torch.serialization.add_safe_globals`.
A value that could not be read again is refused before it is first saved.
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
"""Of an integer: the restricted unpickler reads no longer ones."""
_MADE_OF_OTHERS = "a tensor that is made of others"
_NOT_IN_LEGACY = frozenset(
    getattr(torch, name) for name in encoding.ITEM_SIZES if name not in encoding.TYPED
)


class Noting:
    """Stands for the module `pickle`, and notes of what kinds the things are that are pickled, but
    for plain ones."""

    def __init__(self) -> None:
        noted: set[Any] = set()

        class Pickler(pickle.Pickler):
            def reducer_override(self, value: Any) -> Any:
                _refuse_shards(value)
                noted.add(_kind(value))
                if isinstance(value, torch.Tensor) and tensors.is_value(value):
                    noted.add(_MADE_OF_OTHERS)
                if type(value) is deque:  # which is otherwise filled when it has been made
                    return deque, ([*value], value.maxlen)
                return NotImplemented

        self.noted, self.Pickler = noted, Pickler

    __name__, dump = "pickle", staticmethod(pickle.dump)

    @property
    def needs_archive(self) -> bool:
        """torch does not read all dtypes in its legacy format, although it writes them. It also
        makes tensors there before it reads what is in them: the sizes of nested ones and the scales
        of quantized ones would be anything."""
        return _MADE_OF_OTHERS in self.noted or any(
            isinstance(kind, tuple) and kind[1] in _NOT_IN_LEGACY for kind in self.noted
        )


class Encoders:
    """What is encoded again and again. It is decoded at first, and whenever something of a kind is
    in it that was not: a value that cannot be read again is refused before it is saved."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Noting, set[Any]]] = {}

    def encode(self, name: str, value: Any) -> bytes:
        """Raises `UsageError`."""
        noting, known = self._known.setdefault(name, (Noting(), set()))
        noting.noted.clear()
        data = encode(name, value, noting)
        if type(value) not in known or not noting.noted <= known:
            decode(name, data)
            known.add(type(value))
            known |= noting.noted
        return data


def encode(name: str, value: Any, noting: Noting | None = None) -> bytes:
    """As `torch.save` in its legacy format would write it. Raises `UsageError`."""
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
    """Whether a thing can be read depends on this, and on what else is pickled with it."""
    if isinstance(value, type) or callable(value):
        return value
    dtype = getattr(value, "dtype", None)
    return type(value) if dtype is None else (type(value), dtype, getattr(value, "layout", None))


def _refuse_shards(value: Any) -> None:
    if isinstance(value, DTensor):
        raise UsageError(
            "holds a DTensor, of which each rank has a part: keep it in a dict or a list"
        )
    if isinstance(value, torch.Tensor) and (problem := tensors.has_nothing(value)):
        raise UsageError(f"holds a tensor that {problem}")


def decode(name: str, data: bytes | memoryview) -> Any:
    """Raises `UsageError` naming what is more than data."""
    try:
        with allowed():
            return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:
        raise UsageError(
            f"{name} is more than data{refers_to(error)}: keep plain values and tensors in the "
            "state, or allow its class with torch.serialization.add_safe_globals"
        ) from error


def allowed() -> AbstractContextManager[None]:
    """What counts as data beside what torch's restricted unpickler and the script allow."""
    return torch.serialization.safe_globals([bytes, deque, *_numpy_globals()])


def refers_to(error: Exception) -> str:
    """What torch's restricted unpickler stumbled over; its own advice is to load all the same."""
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
    """What numpy's arrays and numbers are made of; nothing where numpy is not in use."""
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
