"""Makes msgspec's decoders, one for each type, and one at a time.

Must never happen: two threads have msgspec look at a type for the first time at once. It publishes
its description of a dataclass before that is complete (0.22, at least), and a thread that decodes
with it then crashes the process. A decoder that is made holds complete descriptions only. So
threads decode with these, and not with `msgspec.json.decode(..., type=)`.
"""

import threading
from collections.abc import Hashable
from functools import cache
from typing import Any, TypeVar, cast

import msgspec

T = TypeVar("T")

_making = threading.Lock()


def from_json(data: bytes | memoryview | str, kind: type[T]) -> T:
    """Decode JSON. Raises `msgspec.DecodeError`."""
    value: T = _decoded(_json(cast(Hashable, kind)), data)
    return value


def from_msgpack(data: bytes | memoryview | msgspec.Raw, kind: type[T]) -> T:
    """Decode msgpack. Raises `msgspec.DecodeError`."""
    value: T = _decoded(_msgpack(cast(Hashable, kind)), data)
    return value


def _decoded(decoder: Any, data: Any) -> Any:
    try:
        return decoder.decode(data)
    except (UnicodeDecodeError, RecursionError) as error:
        # Text that is no UTF-8, or thousands of lists in each other: msgspec lets these through.
        raise msgspec.DecodeError(str(error)) from None


@cache
def _json(kind: Any) -> msgspec.json.Decoder[Any]:
    with _making:
        return msgspec.json.Decoder(kind)


@cache
def _msgpack(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    with _making:
        return msgspec.msgpack.Decoder(kind)
