"""Encodes tensors and values in the legacy format of `torch.save`, without torch.

In that format everything but the raw elements stands before them, so that all offsets are known
before a byte is written. Stock readers load it with `weights_only=True`. Follows
torch/serialization.py of torch 2.13.
"""

import math
import pickle
from functools import lru_cache

from spotelastic_checkpoints.format.opcodes import Emitter

_MAGIC = 0x1950A86A20F9469CFC6C
_PROTOCOL = 1001
_SYSTEM = {
    "protocol_version": 1001,
    "little_endian": True,
    "type_sizes": {"short": 2, "int": 4, "long": 4},
}

ITEM_SIZES = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
    "complex64": 8,
    "complex128": 16,
    "uint16": 2,
    "uint32": 4,
    "uint64": 8,
    "float8_e4m3fn": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2": 1,
    "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
}
"""Bytes per element of every dtype that can be written."""

TYPED = {
    "float64": "DoubleStorage",
    "float32": "FloatStorage",
    "float16": "HalfStorage",
    "bfloat16": "BFloat16Storage",
    "int64": "LongStorage",
    "int32": "IntStorage",
    "int16": "ShortStorage",
    "int8": "CharStorage",
    "uint8": "ByteStorage",
    "bool": "BoolStorage",
    "complex64": "ComplexFloatStorage",
    "complex128": "ComplexDoubleStorage",
}
"""Storage classes of dtypes that are older than untyped storages.

Elements of other dtypes are written as bytes. Torch writes an untyped storage in this format, but
does not read it.
"""


def nbytes(dtype: str, sizes: tuple[int, ...]) -> int:
    """Return the bytes of a tensor's elements."""
    return math.prod(sizes) * ITEM_SIZES[dtype]


@lru_cache(maxsize=4096)
def tensor_prefix(dtype: str, sizes: tuple[int, ...]) -> bytes:
    """Return what stands before the raw bytes of a contiguous tensor."""
    count = math.prod(sizes) if dtype in TYPED else nbytes(dtype, sizes)
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
    typed = dtype in TYPED
    strides = tuple(math.prod(sizes[axis + 1 :]) for axis in range(len(sizes)))
    emitter = Emitter()
    emitter.global_("torch._utils", "_rebuild_tensor_v2" if typed else "_rebuild_tensor_v3")
    emitter.raw(b"((")
    emitter.value("storage")
    emitter.global_("torch", TYPED.get(dtype, "ByteStorage"))
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
