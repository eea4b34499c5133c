"""Finds the file that lists a working folder's packages, and hashes what it asks for.

Pure but for reading the folder. `environments.py` makes the packages available on a node.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

from spotelastic.errors import UsageError
from spotelastic.model.job import Environment

FILES: dict[str, str] = {
    "uv.lock": "uv",
    "requirements.txt": "pip",
    "environment.yml": "conda",
    "environment.yaml": "conda",
}
"""Files that are looked for, the first one first: a lock file says more than a list."""
NONE = "none"
"""The value of --environment that asks for no packages."""
_VERSION = 2
"""Part of the hash; raised when environments are built in another way."""
_INCLUDE = re.compile(r"^\s*(?:-r|-c|--requirement|--constraint)[ =]*(\S+)")
_LOCAL = re.compile(r"^\s*(?:-e|--editable)\b|^\s*(?:\.{1,2}/|\.$|\.\[|/|file:)|@\s*file:")
_LOCKED_FOLDER = re.compile(r'^source = \{ (?:editable|directory) = "(?!\." )', re.MULTILINE)
"""In uv.lock, a package from a folder other than the project's own, which is not installed."""


def find(folder: Path, asked: str | None, code: str) -> Environment | None:
    """Return the environment of a folder whose archive is `code`; None if it needs none.

    `asked` names the file, or is "none". Raises `UsageError` if the file does not exist.
    """
    if asked == NONE:
        return None
    name = asked or next((name for name in FILES if (folder / name).is_file()), None)
    if name is None:
        return None
    kind = _kind(name)
    parts = [_VERSION, kind, name]
    parts += [[path.name, _read(path)] for path in files(folder / name, kind)]
    if kind == "pip":
        parts += _local_parts(folder / name, code)
    if kind == "uv" and _LOCKED_FOLDER.search(_read(folder / name)):
        parts.append(code)
    key = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
    return Environment(kind, name, key)  # type: ignore[arg-type]


def _kind(name: str) -> str:
    base = Path(name).name
    if base in FILES:
        return FILES[base]
    if base.endswith((".yml", ".yaml")):
        return "conda"
    if base.endswith(".txt"):
        return "pip"
    raise UsageError(
        f"--environment {name}: expected uv.lock, a requirements file (.txt), "
        "a conda environment (.yml), or none"
    )


def files(path: Path, kind: str) -> Iterator[Path]:
    """Yield all files that decide what is installed, each once."""
    if kind == "uv":
        yield path
        yield path.with_name("pyproject.toml")
        return
    seen: list[Path] = []
    left = [path]
    while left:
        path = left.pop()
        if path not in seen:
            seen.append(path)
            yield path
            if kind == "pip":
                left += [
                    Path(os.path.normpath(path.parent / name)) for name in _included(_read(path))
                ]


def _included(text: str) -> list[str]:
    found = (_INCLUDE.match(line) for line in text.splitlines())
    return [match[1] for match in found if match and "://" not in match[1]]


def _local_parts(path: Path, code: str) -> list[str]:
    """Return hashes of what is installed from the working folder.

    For a file it is the file's hash, for a folder that of all the code.
    """
    parts = []
    for file in files(path, "pip"):
        for line in filter(_LOCAL.search, _read(file).splitlines()):
            wheel = file.parent / line.split("file:")[-1].split(";")[0].split("#")[0].strip()
            parts.append(hashlib.sha256(_bytes(wheel) or code.encode()).hexdigest())
    return parts


def _bytes(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except FileNotFoundError:
        raise UsageError(f"there is no {path.name} in {path.parent}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {path}: {error}") from None
