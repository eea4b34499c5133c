"""Values of the state that are not tensors: pickled as `torch.save` does, read as plain data only.

What lies in an object store may have been put there by anybody who can write to it. So a value is
unpickled by torch's restricted unpickler, which knows tensors and plain containers, here numpy's
arrays and numbers too, and what the script has allowed with `torch.serialization.add_safe_globals`.
A value that could not be read again is refused before it is first saved.
"""

import io
import re
import sys
from typing import Any

import torch
from spotelastic_checkpoints import encoding

from spotelastic.errors import UsageError


def encode(name: str, value: Any) -> bytes:
    """As `torch.save` in its legacy format would write it. Raises `UsageError`."""
    if _is_plain(value):
        return encoding.plain_value(value)
    buffer = io.BytesIO()
    try:
        torch.save(value, buffer, _use_new_zipfile_serialization=False)
    except Exception as error:
        raise UsageError(f"{name}: {type(value).__name__} cannot be saved: {error}") from error
    return buffer.getvalue()


def decode(name: str, data: bytes | memoryview) -> Any:
    """Raises `UsageError` naming what is more than data."""
    try:
        with torch.serialization.safe_globals(_numpy_globals()):
            return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:
        raise UsageError(
            f"{name} is more than data{refers_to(error)}: keep plain values and tensors in the "
            "state, or allow its class with torch.serialization.add_safe_globals"
        ) from error


def check(name: str, value: Any, data: bytes) -> None:
    """That `decode` will take it back. Raises `UsageError`."""
    if not _is_plain(value):
        decode(name, data)


def refers_to(error: Exception) -> str:
    """What torch's restricted unpickler stumbled over; its own advice is to load all the same."""
    found = re.search(r"GLOBAL ([\w.]+)", str(error))
    return f" (it refers to {found[1]})" if found else ""


def _is_plain(value: Any) -> bool:
    kind = type(value)
    if kind in (type(None), bool, int, float, str, bytes):
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
