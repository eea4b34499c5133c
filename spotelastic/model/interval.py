"""The time between two saves as users write it: steps, seconds or `auto`."""

import re
from dataclasses import dataclass
from typing import Self

TIME = r"(\d+(?:\.\d+)?)(s|m|min|h)"
"""Pattern of a time, with its number and unit as groups."""
_UNITS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_TEXT = re.compile(rf"(\d+)|{TIME}")


@dataclass(frozen=True, slots=True)
class Interval:
    """An interval in steps (0: never) or in seconds. With neither, measurements decide ("auto")."""

    steps: int | None = None
    seconds: float | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `500` (steps), `30s`, `10m`, `2h` or `auto`. Raises ValueError."""
        if text == "auto":
            return cls()
        found = _TEXT.fullmatch(text)
        if found is None:
            raise ValueError("give steps (500), a time (10m), or auto")
        if found[1]:
            return cls(steps=int(found[1]))
        seconds = float(found[2]) * _UNITS[found[3]]
        if not seconds:
            raise ValueError("a time is more than nothing; 0 (steps) means never")
        return cls(seconds=seconds)

    def __str__(self) -> str:
        if self.steps is not None:
            return str(self.steps)
        return "auto" if self.seconds is None else f"{self.seconds:g}s"
