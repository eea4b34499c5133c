"""Says in a few words where workers stand, from the stacks that they have written (pure)."""

import re
from collections.abc import Mapping
from pathlib import Path

_FRAME = re.compile(r'  File "(?P<file>[^"]*)", line (?P<line>\d+) in (?P<name>.*)')
RANKS_NAMED = 8
"""Number of places that a line names at most."""


def place(stack: str, folder: Path) -> str:
    """Return the user's innermost frame, and what it has called; empty without a stack.

    A frame is the user's if its file is in `folder` and no installed package.
    """
    frames = [match.groupdict() for match in map(_FRAME.match, stack.splitlines()) if match]
    if not frames:
        return ""
    inner = frames[0]
    mine = next((each for each in frames if _is_users(each["file"], folder)), inner)
    told = f"{Path(mine['file']).name}:{mine['line']} in {mine['name']}"
    if mine is inner:
        return told
    return f"{told} ({Path(inner['file']).name}:{inner['line']} in {inner['name']})"


def _is_users(file: str, folder: Path) -> bool:
    path = Path(file)
    return path.is_relative_to(folder) and not {"site-packages", "lib"} & set(path.parts)


def places(found: Mapping[int, str]) -> str:
    """Return where each rank stands: `rank 0, 1 at train.py:12 in load; rank 2 does not answer`."""
    ranks: dict[str, list[int]] = {}
    for rank, where in sorted(found.items()):
        ranks.setdefault(where, []).append(rank)
    told = [
        f"rank {', '.join(map(str, some))} {f'at {where}' if where else 'does not answer'}"
        for where, some in ranks.items()
    ]
    more = ["…"] if len(told) > RANKS_NAMED else []
    return "; ".join([*told[:RANKS_NAMED], *more])
