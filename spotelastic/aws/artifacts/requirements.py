"""Which packages a working folder asks for: the file that lists them, and a hash of its meaning.

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
"""By name, the one that counts first: a lock says more than a list."""
NONE = "none"
_VERSION = 2
"""Raised when environments are made in another way."""
_INCLUDE = re.compile(r"^\s*(?:-r|-c|--requirement|--constraint)[ =]*(\S+)")
_LOCAL = re.compile(r"^\s*(?:-e|--editable)\b|^\s*(?:\.{1,2}/|\.$|\.\[|/|file:)|@\s*file:")
_LOCKED_FOLDER = re.compile(r'^source = \{ (?:editable|directory) = "(?!\." )', re.MULTILINE)
"""In uv.lock, a package out of a folder; that of the project itself is not installed."""


def find(folder: Path, asked: str | None, code: str) -> Environment | None:
    """The environment of a folder whose archive is `code`; None where it asks for none.

    `asked` names the file, or is "none". Raises `UsageError` for one that is not there.
    """
    if asked == NONE:
        return None
    if asked is None:
        name = next((name for name in FILES if (folder / name).is_file()), None)
    else:
        name = asked
    if name is None:
        return None
    kind = _kind(name)
    parts = [_VERSION, kind, name]
    parts += [[path.name, _read(path)] for path in _files(folder / name, kind)]
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
        f"--environment {name}: is none of uv.lock, a requirements file (.txt), "
        "a conda environment (.yml), or none"
    )


def _files(path: Path, kind: str) -> Iterator[Path]:
    """All that decide what is installed, each once."""
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
    """What it installs out of the working folder: a file by its hash, a folder by all the code."""
    parts = []
    for file in _files(path, "pip"):
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
