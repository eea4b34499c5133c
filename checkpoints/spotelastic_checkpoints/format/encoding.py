"""Encodes tensors and values in the legacy format of `torch.save`, without torch.

In that format everything but the raw elements stands before them, so that all offsets are known
before a byte is written. Stock readers load it with `weights_only=True`. Follows
torch/serialization.py of torch 2.13.
"""

import math
import pickle
from functools import lru_cache
from typing import NamedTuple

from spotelastic_checkpoints.format.opcodes import Emitter

_MAGIC = 0x1950A86A20F9469CFC6C
_PROTOCOL = 1001
_SYSTEM = {
    "protocol_version": 1001,
    "little_endian": True,
    "type_sizes": {"short": 2, "int": 4, "long": 4},
}


class Dtype(NamedTuple):
    """How a dtype of torch is written."""

    size: int
    """Bytes per element."""
    storage: str = ""
    """The class of its storage, if it is older than untyped storages.

    Elements of other dtypes are written as bytes. Torch writes an untyped storage in this format,
    but does not read it.
    """
    safetensors: str = ""
    """Its name in safetensors, which do not have all."""


DTYPES = {
    "float64": Dtype(8, "DoubleStorage", "F64"),
    "float32": Dtype(4, "FloatStorage", "F32"),
    "float16": Dtype(2, "HalfStorage", "F16"),
    "bfloat16": Dtype(2, "BFloat16Storage", "BF16"),
    "int64": Dtype(8, "LongStorage", "I64"),
    "int32": Dtype(4, "IntStorage", "I32"),
    "int16": Dtype(2, "ShortStorage", "I16"),
    "int8": Dtype(1, "CharStorage", "I8"),
    "uint8": Dtype(1, "ByteStorage", "U8"),
    "bool": Dtype(1, "BoolStorage", "BOOL"),
    "complex64": Dtype(8, "ComplexFloatStorage"),
    "complex128": Dtype(16, "ComplexDoubleStorage"),
    "uint16": Dtype(2, safetensors="U16"),
    "uint32": Dtype(4, safetensors="U32"),
    "uint64": Dtype(8, safetensors="U64"),
    "float8_e4m3fn": Dtype(1, safetensors="F8_E4M3"),
    "float8_e4m3fnuz": Dtype(1),
    "float8_e5m2": Dtype(1, safetensors="F8_E5M2"),
    "float8_e5m2fnuz": Dtype(1),
    "float8_e8m0fnu": Dtype(1),
}
"""Every dtype that can be written."""
ITEM_SIZES = {name: dtype.size for name, dtype in DTYPES.items()}


def nbytes(dtype: str, sizes: tuple[int, ...]) -> int:
    """Return the bytes of a tensor's elements."""
    return math.prod(sizes) * ITEM_SIZES[dtype]


@lru_cache(maxsize=4096)
def tensor_prefix(dtype: str, sizes: tuple[int, ...]) -> bytes:
    """Return what stands before the raw bytes of a contiguous tensor."""
    count = math.prod(sizes) if DTYPES[dtype].storage else nbytes(dtype, sizes)
    return (
        _preamble()
        + _tensor(dtype, sizes, count)
        + _pickle(["0"])
        + count.to_bytes(8, "little", signed=True)
    )


def plain_value(value: object) -> bytes:
    """Encode a Python value that contains no tensors."""
    return _preamble() + pickle.dumps(value, protocol=2) + _pickle([])


@lru_cache(maxsize=1)
def _preamble() -> bytes:
    return _pickle(_MAGIC) + _pickle(_PROTOCOL) + _pickle(_SYSTEM)


def _pickle(value: object) -> bytes:
    emitter = Emitter()
    emitter.value(value)
    return emitter.done()


def _tensor(dtype: str, sizes: tuple[int, ...], count: int) -> bytes:
    typed = DTYPES[dtype].storage
    strides = tuple(math.prod(sizes[axis + 1 :]) for axis in range(len(sizes)))
    emitter = Emitter()
    emitter.global_("torch._utils", "_rebuild_tensor_v2" if typed else "_rebuild_tensor_v3")
    emitter.raw(b"((")
    emitter.value("storage")
    emitter.global_("torch", typed or "ByteStorage")
    emitter.value("0")
    emitter.value("cpu")
    emitter.value(count)
    emitter.value(None)
    emitter.raw(b"tQ")
    emitter.value(0)
    emitter.value(sizes)
    emitter.value(strides)
    emitter.value(False)
    emitter.reduce("collections", "OrderedDict")
    if not typed:
        emitter.global_("torch", dtype)
    emitter.raw(b"tR")
    return emitter.done()
