"""What git ignores in a working folder, and a script may need: data that it has made or fetched.

What a folder of the same project would have again by itself (caches, environments, compiled files)
is not counted, nor what .spotelasticignore leaves out: somebody meant that.
"""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

MOST = 20_000
"""Files that are looked at: nobody waits for more than that."""
MADE_AGAIN = frozenset({"node_modules", "build", "dist", "wandb", "venv", "env"})
SUFFIXES = (".pyc", ".pyo", ".so", ".log", ".egg-info", ".swp")


@dataclass(frozen=True, slots=True)
class LeftOut:
    files: int
    size: int
    """Bytes."""
    largest: str
    """Its path in the working folder, and"""
    largest_size: int
    rule: str
    """what brings it in a line of .spotelasticignore: the file, or the folder that is ignored."""
    all: bool
    """False: there are more than were looked at."""


def measure(folder: Path, ignored: Iterable[Path]) -> LeftOut | None:
    """Of the files and folders that are ignored in `folder`; None where there is nothing."""
    found = list(islice(_files(ignored), MOST + 1))
    if not found:
        return None
    top, path, size = max(found[:MOST], key=lambda each: each[2])
    return LeftOut(
        files=min(len(found), MOST),
        size=sum(each[2] for each in found[:MOST]),
        largest=path.relative_to(folder).as_posix(),
        largest_size=size,
        rule=f"!/{top.relative_to(folder).as_posix()}" + ("" if top == path else "/"),
        all=len(found) <= MOST,
    )


def _files(ignored: Iterable[Path]) -> Iterator[tuple[Path, Path, int]]:
    """What is ignored, a file that it is or holds, and its bytes; only what can be read."""
    for top in ignored:
        if _made_again(top.name):
            continue
        if not top.is_dir() or top.is_symlink():
            yield from _file(top, top)
            continue
        for parent, folders, files in os.walk(top):
            inside = Path(parent)
            if "pyvenv.cfg" in files:
                folders.clear()
                continue
            folders[:] = [name for name in folders if not _made_again(name)]
            for name in files:
                if not _made_again(name):
                    yield from _file(top, inside / name)


def _file(top: Path, path: Path) -> Iterator[tuple[Path, Path, int]]:
    try:
        if path.is_file():
            yield top, path, path.stat().st_size
    except OSError:
        return


def _made_again(name: str) -> bool:
    return name.startswith((".", "__")) or name in MADE_AGAIN or name.endswith(SUFFIXES)
