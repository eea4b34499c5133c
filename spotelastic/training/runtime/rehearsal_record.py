"""Says at which steps a run rehearses, and keeps for how many ranks it has (pure).

A run rehearses early, once for each version of the script and each number of ranks, and rarely
again. The record is saved with the state. So all ranks have the same, those that come as well. A
rank that was lost may have told its last outcome to some of the others only. So those that go on in
their processes agree on the record when they enter a round.
"""

import hashlib
import math
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

EARLY = 2
"""Steps after which a round rehearses: optimizers have their state, and compilers are warm."""
SHARE = 0.002
"""Part of the time that later rehearsals may take."""
LEAST = 500
"""Fewest steps between two rehearsals."""


@dataclass(frozen=True, slots=True)
class RehearsalRecord:
    """What a run has rehearsed."""

    script: str = ""
    """Hash of the script."""
    ranks: tuple[int, ...] = ()
    """Numbers of ranks for which it has."""
    later: int = 0
    """The step from which on it does again."""
    restores: bool = False
    """Whether an attempt that was put back has not come back as it was. Then it is restored."""

    def is_due(self, step: int, world_size: int, resumed: int) -> bool:
        """Return whether `step` is rehearsed, in a round that has gone on from step `resumed`."""
        if world_size not in self.ranks:
            return step >= resumed + EARLY
        return step >= self.later

    def rehearsed(
        self,
        step: int,
        world_size: int,
        *,
        seconds: float,
        step_time: float,
        restores: bool = False,
    ) -> Self:
        """Return the record after a step was rehearsed.

        It took `seconds` more than the step. `restores`: only a restore has brought it back as it
        was.
        """
        drawn = hashlib.blake2b(f"{self.script}/{step}".encode(), digest_size=4).digest()
        spread = 1 + int.from_bytes(drawn, "little") / (1 << 32)
        apart = max(LEAST, math.ceil(seconds / (SHARE * step_time)) if step_time > 0 else LEAST)
        ranks = tuple(sorted({*self.ranks, world_size}))
        return replace(
            self,
            ranks=ranks,
            later=step + math.ceil(apart * spread),
            restores=self.restores or restores,
        )

    def value(self) -> dict[str, Any]:
        """Return what is saved."""
        return asdict(self)


def of_script(saved: Mapping[str, Any] | None) -> RehearsalRecord:
    """Return the record that was saved; an empty one where another version of the script did."""
    script = script_hash()
    if saved is None or saved.get("script") != script:
        return RehearsalRecord(script)
    return RehearsalRecord(
        script, tuple(saved["ranks"]), saved["later"], saved.get("restores", False)
    )


def script_hash() -> str:
    """Return a hash of the file that this process runs; empty where there is none."""
    path = getattr(sys.modules.get("__main__"), "__file__", None)
    try:
        return hashlib.blake2b(Path(path or "").read_bytes(), digest_size=8).hexdigest()
    except OSError:
        return ""
