"""Pure: writes pickles that name classes without importing them.

Only what the files of `torch.distributed.checkpoint` need: protocol 2, no memo but for classes.
`pickletools.dis` reads what comes out.
"""

import struct
from collections.abc import Callable, Hashable, Iterable, Mapping


class Emitter:
    """Builds one pickle; every method appends the opcodes that leave one value on the stack."""

    def __init__(self) -> None:
        self._parts: list[bytes] = [b"\x80\x02"]
        self._classes: dict[tuple[str, str], int] = {}
        self._written: dict[Hashable, bytes] = {}

    def done(self) -> bytes:
        return b"".join(self._parts) + b"."

    def raw(self, opcodes: bytes) -> None:
        self._parts.append(opcodes)

    def value(self, value: object) -> None:
        """None, bool, int, str, and tuples, lists and dicts of them."""
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
        self.raw(b"(")
        for value in values:
            self.value(value)
        self.raw(b"t")

    def global_(self, module: str, name: str) -> None:
        """A class or function by its name; named in full only once."""
        number = self._classes.get((module, name))
        if number is not None:
            self.raw(b"h" + bytes([number]))
            return
        number = self._classes[module, name] = len(self._classes)
        self.raw(f"c{module}\n{name}\n".encode() + b"q" + bytes([number]))

    def again(self, write: Callable[..., None], *what: Hashable) -> None:
        """What `write(self, *what)` appends, made only once.

        Whatever names a class for the first time does so in full, and is made once more.
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
        """An instance without a call of `__init__`; its state follows, then `build`."""
        self.global_(module, name)
        self.raw(b")\x81")

    def build(self) -> None:
        self.raw(b"b")

    def reduce(self, module: str, name: str, *arguments: object) -> None:
        """The result of a call."""
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
