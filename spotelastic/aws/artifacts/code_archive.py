"""The working folder, as the archive that every node unpacks.

`pack` reads the folder as git would (nested .gitignore files, those of the repository above it, but
what is tracked is not ignored; never .git itself), less spotelastic.toml and what files of the same
syntax say that are called .spotelasticignore. It makes the same bytes of the same contents, on any
machine and at any time: the SHA-256 of the archive is its name, and an unchanged folder is shipped
once. `unpack` trusts nothing: the hash first, then tarfile's data filter, and the target appears
complete or not at all.
"""

import gzip
import hashlib
import io
import os
import shutil
import stat
import subprocess
import tarfile
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pathspec

from spotelastic.aws.artifacts.left_out import LeftOut, measure
from spotelastic.errors import EnvironmentFailure, UsageError

LIMIT = 256 * 2**20
"""Bytes a working folder may hold: what is larger is data, and belongs in a bucket."""
NEVER = frozenset({".git", "__pycache__", ".spotelastic"})
OUTPUTS = ("conditional-writes", "spotelastic-run.json")
"""Files that a storage of checkpoints has: it is an output of a run, whatever its folder is named.
A `runs` of another program has none of them."""
FLAGS = "spotelastic.toml"
"""At the top of the folder. What `up` is told there reaches the nodes without it: as a part of the
code, a change of `max` would start all workers anew."""
OURS = ".spotelasticignore"
IGNORES = (".gitignore", OURS)
"""The later one has the last word: it may also bring back what git leaves out."""
GIT_WITHIN = 30.0
"""Seconds."""


@dataclass(frozen=True, slots=True)
class Archive:
    """A packed folder: a gzipped tar, named by the SHA-256 of its bytes."""

    sha256: str
    data: bytes
    files: int
    left_out: LeftOut | None = field(default=None, compare=False)
    """What git's rules, and no others, keep from being shipped."""


@dataclass(frozen=True, slots=True)
class Rules:
    """One file of rules, for everything below `base`."""

    base: Path
    spec: pathspec.GitIgnoreSpec

    def verdict(self, path: Path, *, folder: bool) -> bool | None:
        """True: ignored, False: re-included by a "!" line, None: not mentioned."""
        name = path.relative_to(self.base).as_posix() + ("/" if folder else "")
        return self.spec.check_file(name).include


def pack(folder: Path, *, limit: int = LIMIT) -> Archive:
    """Raises `UsageError` for a folder larger than `limit`, with links that lead out of it, or with
    something that cannot be read."""
    folder = folder.resolve()
    ignored: list[Path] = []
    paths = sorted({*_files(folder, ignored), *_tracked_although_ignored(folder)})
    _check_size(folder, paths, limit)
    raw = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=raw, mode="wb", mtime=0, compresslevel=6) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for path in paths:
            _add(tar, folder, path)
    data = raw.getvalue()
    above, shipped = _rules_above(folder, (OURS,)), set(paths)
    by_git = (p for p in ignored if p not in shipped and not _left_out_by_us(p, folder, above))
    return Archive(hashlib.sha256(data).hexdigest(), data, len(paths), measure(folder, by_git))


def unpack(data: bytes, sha256: str, target: Path) -> None:
    """Unpack into the new folder `target`; raises `EnvironmentFailure` for a damaged archive."""
    found = hashlib.sha256(data).hexdigest()
    if found != sha256:
        raise EnvironmentFailure(
            f"the code archive is damaged: expected SHA-256 {sha256[:12]}, found {found[:12]}; "
            "run `spotelastic up` again to ship it anew"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        beside.chmod(0o755)
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as tar:
            tar.extractall(beside, filter="data")
        beside.rename(target)
    except (tarfile.TarError, OSError, EOFError) as error:
        raise EnvironmentFailure(f"cannot unpack the code archive into {target}: {error}") from None
    finally:
        shutil.rmtree(beside, ignore_errors=True)


# -- what belongs to the folder ------------------------------------------------------------------


def _files(folder: Path, ignored: list[Path]) -> Iterator[Path]:
    """Adds to `ignored` what the rules leave out: files, and folders as a whole."""
    for path in _walk(folder, _rules_above(folder), ignored):
        if path != folder / FLAGS:
            yield path


def _walk(folder: Path, rules: tuple[Rules, ...], ignored: list[Path]) -> Iterator[Path]:
    rules = rules + _rules_of(folder)
    with _reading(folder), os.scandir(folder) as found:
        entries = list(found)
    for entry in entries:
        path = Path(entry.path)
        if entry.name in NEVER:
            continue
        inside = entry.is_dir(follow_symlinks=False)
        if _ignored(path, rules, folder=inside):
            ignored.append(path)
            continue
        if not inside:
            # Sockets, pipes and devices are nothing that could be shipped.
            if entry.is_symlink() or entry.is_file(follow_symlinks=False):
                yield path
        elif not any(_has(path, name) for name in ("pyvenv.cfg", *OUTPUTS)):
            # A virtual environment belongs to its machine.
            yield from _walk(path, rules, ignored)


def _has(folder: Path, name: str) -> bool:
    with _reading(folder):
        return (folder / name).exists()


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Another user's folder, a file system that is gone: no defect, and in no archive."""
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"cannot read {path}: {error.strerror}; list it in .spotelasticignore"
        ) from None


def _tracked_although_ignored(folder: Path) -> Iterator[Path]:
    """What a .gitignore names and git holds all the same: who clones the repository has it."""
    asked = ["git", "-C", str(folder), "ls-files", "-z", "--cached", "--ignored"]
    try:
        told = subprocess.run(
            [*asked, "--exclude-standard"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=GIT_WITHIN,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError):  # there is no git here, or no repository
        return
    above = _rules_above(folder, (OURS,))
    for name in filter(None, told.split(b"\0")):
        inside = Path(os.fsdecode(name))
        if str(inside) == FLAGS or not NEVER.isdisjoint(inside.parts):
            continue
        path = folder / inside
        if not _left_out_by_us(path, folder, above) and _is_there(path):
            yield path


def _is_there(path: Path) -> bool:
    with _reading(path):
        return path.is_symlink() or path.is_file()


def _left_out_by_us(path: Path, folder: Path, rules: tuple[Rules, ...]) -> bool:
    """The path, or a folder that it is in."""
    place = folder
    for name in path.relative_to(folder).parts:
        rules = rules + _rules_of(place, (OURS,))
        place /= name
        if _ignored(place, rules, folder=place != path):
            return True
    return False


def _ignored(path: Path, rules: tuple[Rules, ...], *, folder: bool) -> bool:
    """The deepest file that mentions the path decides, as in git."""
    for rule in reversed(rules):
        verdict = rule.verdict(path, folder=folder)
        if verdict is not None:
            return verdict
    return False


def _rules_of(folder: Path, names: Sequence[str] = IGNORES) -> tuple[Rules, ...]:
    found = []
    for name in names:
        lines = _lines(folder / name)
        if lines:
            found.append(Rules(folder, pathspec.GitIgnoreSpec.from_lines(lines)))
    return tuple(found)


def _lines(file: Path) -> list[str]:
    """Of a file of rules; none where there is no such file."""
    try:
        if not file.is_file():
            return []
        return file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:  # what it leaves out would be shipped without it
        raise UsageError(f"cannot read {file}: {error.strerror}; make it readable") from None


def _rules_above(folder: Path, names: Sequence[str] = IGNORES) -> tuple[Rules, ...]:
    """Of the files between the repository's root and the folder, outermost first."""
    above: list[Path] = []
    for parent in (folder, *folder.parents):
        if parent != folder:
            above.append(parent)
        if _has(parent, ".git"):
            return tuple(rule for path in reversed(above) for rule in _rules_of(path, names))
    return ()


def _check_size(folder: Path, paths: list[Path], limit: int) -> None:
    sizes: Counter[str] = Counter()
    for path in paths:
        top = path.relative_to(folder).parts
        with _reading(path):
            size = path.lstat().st_size
        sizes[top[0] + "/" if len(top) > 1 else top[0]] += size
    total = sum(sizes.values())
    if total > limit:
        largest = ", ".join(f"{name} ({_mib(size)})" for name, size in sizes.most_common(3))
        raise UsageError(
            f"the working folder {folder} holds {_mib(total)}, more than {_mib(limit)}: "
            f"the largest are {largest}; list what the script does not need in .spotelasticignore"
        )


def _mib(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"


# -- the archive ---------------------------------------------------------------------------------


def _add(tar: tarfile.TarFile, folder: Path, path: Path) -> None:
    """Name, contents and the executable bit: nothing that differs between two machines."""
    info = tarfile.TarInfo(path.relative_to(folder).as_posix())
    if path.is_symlink():
        info.type = tarfile.SYMTYPE
        info.linkname = _inner_link(folder, path)
        tar.addfile(info)
        return
    with _reading(path):
        executable = path.stat().st_mode & stat.S_IXUSR
        contents = path.read_bytes()
    info.mode = 0o755 if executable else 0o644
    info.size = len(contents)
    tar.addfile(info, io.BytesIO(contents))


def _inner_link(folder: Path, path: Path) -> str:
    """The link's target relative to it, so that it also holds where the archive is unpacked."""
    target = Path(os.path.normpath(path.parent / path.readlink()))
    if not target.is_relative_to(folder):
        raise UsageError(
            f"{path} is a link to {target}, outside of the working folder: "
            "copy what it links to, or list it in .spotelasticignore"
        )
    return os.path.relpath(target, path.parent)
