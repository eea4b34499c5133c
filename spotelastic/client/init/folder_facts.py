"""Looks what a folder holds that its job needs: scripts, a list of packages, large files."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from spotelastic.aws.artifacts.requirements import FILES
from spotelastic.client.init.script_facts import ScriptFacts, script_facts
from spotelastic.errors import UsageError

LARGE = 32 * 2**20
"""Size from which a file is named: the folder is shipped, and may have 256 MiB in all."""
MOST_FILES = 2000
"""Files that are looked at; a folder with more is not searched to its end."""
UNSEEN = frozenset({"__pycache__", "node_modules", "venv", "runs", "wandb", "build", "dist"})


@dataclass(frozen=True, slots=True)
class FolderFacts:
    """What a folder holds."""

    packages: str = ""
    """The file that lists packages, as `up` would take it; empty: none is here."""
    large: tuple[tuple[str, int], ...] = ()
    """Large files, with their sizes, the largest first."""


def folder_facts(folder: Path) -> FolderFacts:
    """Look through a folder."""
    packages = next((name for name in FILES if (folder / name).is_file()), "")
    sizes = [(file.relative_to(folder).as_posix(), _size(file)) for file in _files(folder)]
    large = sorted((each for each in sizes if each[1] >= LARGE), key=lambda each: -each[1])
    return FolderFacts(packages, tuple(large[:5]))


def read_script(folder: Path, script: Path) -> ScriptFacts:
    """Return what a script says; nothing if it is not there or cannot be read."""
    try:
        return script_facts((folder / script).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return ScriptFacts()


def find_script(folder: Path, usual: str) -> Path:
    """Return the script that `up` is to train, if none is named: the usual one, else the only one
    that trains.

    Raises `UsageError` if several do.
    """
    if (folder / usual).is_file():
        return Path(usual)
    scripts = [Path(file.name) for file in _entries(folder) if file.suffix == ".py"]
    facts = {script: read_script(folder, script) for script in scripts}
    training = [script for script in scripts if facts[script].trains or facts[script].is_elastic]
    if len(training) > 1:
        names = ", ".join(map(str, training))
        raise UsageError(f"several scripts here train: name one of {names}")
    return training[0] if training else Path(usual)


def _files(folder: Path) -> Iterator[Path]:
    """Yield files, without those of hidden folders and of caches; the first ones of very many."""
    left, waiting = MOST_FILES, [folder]
    while waiting and left > 0:
        for entry in _entries(waiting.pop(0)):
            if entry.name.startswith(".") or entry.name in UNSEEN or entry.is_symlink():
                continue
            if entry.is_dir():
                waiting.append(entry)
            elif entry.is_file():
                left -= 1
                yield entry


def _entries(folder: Path) -> Sequence[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return ()


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0
