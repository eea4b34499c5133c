"""How fast the shards that only one node holds are copied into another node's memory."""

import re
from dataclasses import dataclass
from typing import Self

RATE = r"(\d+(?:\.\d+)?)(KB|MB|GB)(?:/s)?"
"""Pattern of a rate, with its number and unit as groups."""
_UNITS = {"KB": 1e3, "MB": 1e6, "GB": 1e9}
_TEXT = re.compile(RATE)


@dataclass(frozen=True, slots=True)
class Replication:
    """Whether nodes keep replicas of each other's shards, and how fast they copy them."""

    rate: float | None = 0.0
    """Most bytes per second that a node sends; 0: no replicas; None: the daemons choose."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `auto`, `off`, or a rate such as `50MB` or `1.5GB/s`. Raises ValueError."""
        if text in ("auto", "off"):
            return cls(None if text == "auto" else 0.0)
        found = _TEXT.fullmatch(text)
        if found is None:
            raise ValueError("give auto, off, or bytes per second (100MB)")
        rate = float(found[1]) * _UNITS[found[2]]
        if not rate:
            raise ValueError("a rate is more than nothing; off means no replicas")
        return cls(rate)

    @property
    def on(self) -> bool:
        """Whether there are replicas."""
        return self.rate != 0.0

    def __str__(self) -> str:
        if self.rate is None:
            return "auto"
        if not self.rate:
            return "off"
        unit = next((u for u in ("GB", "MB") if self.rate >= _UNITS[u]), "KB")
        return f"{self.rate / _UNITS[unit]:g}{unit}"
