"""Measures the files that git ignores in a working folder, which a script may still need.

Caches, environments and compiled files are not counted: they can be made again. Nor is what
.spotelasticignore leaves out: that is intended.
"""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

MOST = 20_000
"""Most files that are looked at, so that `up` is not held up."""
MADE_AGAIN = frozenset({"node_modules", "build", "dist", "wandb", "venv", "env"})
"""Names of folders whose contents can be made again."""
SUFFIXES = (".pyc", ".pyo", ".so", ".log", ".egg-info", ".swp")
"""Endings of files that can be made again."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """The files that are not shipped."""

    files: int
    size: int
    """Bytes of all these files."""
    largest: str
    """Path of the largest file, in the working folder."""
    largest_size: int
    """Bytes of the largest file."""
    rule: str
    """A line for .spotelasticignore that includes the largest file or its ignored folder."""
    all: bool
    """False if there are more files than were looked at."""


def measure(folder: Path, ignored: Iterable[Path]) -> LeftOut | None:
    """Measure the ignored files and folders in `folder`; None if there are none."""
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
    """Yield each ignored top, a readable file that it is or contains, and the file's bytes."""
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
