"""Writes pickles that refer to classes by name, without importing them.

Supports only what the files of `torch.distributed.checkpoint` need: protocol 2, with a memo for
classes only. `pickletools.dis` shows what was written.
"""

import struct
from collections.abc import Callable, Hashable, Iterable, Mapping


class Emitter:
    """Builds one pickle. Every method appends opcodes that leave one value on the stack."""

    def __init__(self) -> None:
        self._parts: list[bytes] = [b"\x80\x02"]
        self._classes: dict[tuple[str, str], int] = {}
        self._written: dict[Hashable, bytes] = {}

    def done(self) -> bytes:
        """Return the finished pickle."""
        return b"".join(self._parts) + b"."

    def raw(self, opcodes: bytes) -> None:
        """Append opcodes as they are."""
        self._parts.append(opcodes)

    def value(self, value: object) -> None:
        """Append None, a bool, int or str, or tuples, lists and dicts of these."""
        match value:
            case str():
                data = value.encode("utf-8", "surrogatepass")
                self.raw(b"X" + struct.pack("<I", len(data)) + data)
            case None:
                self.raw(b"N")
            case bool():
                self.raw(b"\x88" if value else b"\x89")
            case int():
                self.raw(_integer(value))
            case tuple():
                self.tuple_(value)
            case list():
                self.raw(b"](")
                for element in value:
                    self.value(element)
                self.raw(b"e")
            case Mapping():
                self.raw(b"}(")
                for key, element in value.items():
                    self.value(key)
                    self.value(element)
                self.raw(b"u")
            case _:
                raise TypeError(f"no opcodes for {type(value).__name__}")

    def tuple_(self, values: Iterable[object]) -> None:
        """Append a tuple."""
        self.raw(b"(")
        for value in values:
            self.value(value)
        self.raw(b"t")

    def global_(self, module: str, name: str) -> None:
        """Append a class or function by its name. The name is written in full only once."""
        number = self._classes.get((module, name))
        if number is not None:
            self.raw(b"h" + bytes([number]))
            return
        number = self._classes[module, name] = len(self._classes)
        self.raw(f"c{module}\n{name}\n".encode() + b"q" + bytes([number]))

    def again(self, write: Callable[..., None], *what: Hashable) -> None:
        """Append what `write(self, *what)` appends, from a cache after the first time.

        What names a class for the first time is not cached, because it names the class in full.
        """
        key = (write, *what)
        known = self._written.get(key)
        if known is not None:
            self._parts.append(known)
            return
        begin, classes = len(self._parts), len(self._classes)
        write(self, *what)
        if len(self._classes) == classes:
            self._written[key] = b"".join(self._parts[begin:])

    def new(self, module: str, name: str) -> None:
        """Append an instance that is made without `__init__`.

        Its state has to follow, then `build`.
        """
        self.global_(module, name)
        self.raw(b")\x81")

    def build(self) -> None:
        """Set the state of the instance before it on the stack."""
        self.raw(b"b")

    def reduce(self, module: str, name: str, *arguments: object) -> None:
        """Append the result of a call."""
        self.global_(module, name)
        self.tuple_(arguments)
        self.raw(b"R")


def _integer(value: int) -> bytes:
    if 0 <= value < 1 << 8:
        return b"K" + bytes([value])
    if 0 <= value < 1 << 16:
        return b"M" + struct.pack("<H", value)
    if -(1 << 31) <= value < 1 << 31:
        return b"J" + struct.pack("<i", value)
    length = value.bit_length() // 8 + 1
    return b"\x8a" + bytes([length]) + value.to_bytes(length, "little", signed=True)
