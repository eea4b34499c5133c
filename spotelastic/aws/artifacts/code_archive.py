"""Packs the working folder into the archive that every node unpacks, and unpacks it there.

`pack` selects files as git would: by nested .gitignore files and those of the repository above, but
tracked files are never ignored, and .git is never included. spotelastic.toml is left out, and so is
what .spotelasticignore files (same syntax) name, or an operating system has left there. The same
contents give the same bytes at any time, on any machine with the same zlib. The archive's SHA-256
is its name, so an unchanged folder is shipped once.

`unpack` trusts nothing: it checks the hash first, uses tarfile's data filter, and the target
appears complete or not at all.
"""

import gzip
import hashlib
import io
import os
import shutil
import stat
import tarfile
import tempfile
import unicodedata
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from spotelastic.aws.artifacts.ignore_rules import OURS, IgnoreRules, git, rules_for
from spotelastic.aws.artifacts.left_out import LeftOut, measure
from spotelastic.aws.artifacts.system_files import left_by_system
from spotelastic.errors import EnvironmentFailure, UsageError
from spotelastic.model.requests.dump import is_dump

LIMIT = 256 * 2**20
"""Most bytes of a working folder. More than that is data, and belongs in a bucket."""
NEVER = frozenset({".git", "__pycache__", ".spotelastic"})
"""Names that are never packed."""
OUTPUTS = ("conditional-writes", "spotelastic-run.json")
"""Files that mark a folder as a checkpoint storage: the output of a run, whatever its name.

A `runs` folder of another program contains none of them.
"""
FLAGS = "spotelastic.toml"
"""The file of settings at the top of the folder. It is not shipped: as part of the code, a change
of `max` would restart all workers."""


@dataclass(frozen=True, slots=True)
class Archive:
    """A packed folder: a gzipped tar, named by the SHA-256 of its bytes."""

    sha256: str
    data: bytes
    files: int
    left_out: LeftOut | None = field(default=None, compare=False)
    """What git's rules alone keep from being shipped."""
    names: frozenset[str] = field(default=frozenset(), compare=False)
    """The paths of the files, relative to the folder."""

    def require(self, name: str) -> None:
        """Raise `UsageError` if the nodes do not get the file, by exactly this name.

        macOS opens `train.py` where the file is named `Train.py`, and Linux does not.
        """
        if name in self.names:
            return
        if twin := next((each for each in sorted(self.names) if _alike(each, name)), None):
            raise UsageError(
                f"{name}: the file is named {twin}, and nodes, which run Linux, tell that apart: "
                "write its name so"
            )
        raise UsageError(
            f"{name} is not shipped to the nodes, as an ignore file leaves it out: take it out "
            f"there, or add the line !/{name} to {OURS}"
        )


def pack(folder: Path, *, limit: int = LIMIT) -> Archive:
    """Pack the folder.

    Raises `UsageError` for a folder larger than `limit`, for links that lead out of it, and for
    files that cannot be read.
    """
    folder = folder.resolve()
    ignored: list[Path] = []
    found = {*_walk(folder, rules_for(folder), ignored), *_tracked_although_ignored(folder)}
    paths = sorted(found - {folder / FLAGS})
    _check_size(folder, paths, limit)
    raw = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=raw, mode="wb", mtime=0, compresslevel=6) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for path in paths:
            _add(tar, folder, path)
    data = raw.getvalue()
    shipped, rules = set(paths), rules_for(folder)
    by_git = (p for p in ignored if p not in shipped and not _left_out_by_us(p, folder, rules))
    return Archive(
        hashlib.sha256(data).hexdigest(),
        data,
        len(paths),
        measure(folder, by_git),
        frozenset(path.relative_to(folder).as_posix() for path in paths),
    )


def _alike(one: str, other: str) -> bool:
    """Whether a file system of macOS takes two names for one."""
    return _folded(one) == _folded(other)


def _folded(name: str) -> str:
    return unicodedata.normalize("NFD", unicodedata.normalize("NFD", name).casefold())


def unpack(data: bytes, sha256: str, target: Path) -> None:
    """Unpack into the new folder `target`; raises `EnvironmentFailure` for a damaged archive."""
    found = hashlib.sha256(data).hexdigest()
    if found != sha256:
        raise EnvironmentFailure(
            f"the code archive is damaged: expected SHA-256 {sha256[:12]}, found {found[:12]}; "
            "run `spotelastic up` to ship it again"
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


def _walk(folder: Path, rules: IgnoreRules, ignored: list[Path]) -> Iterator[Path]:
    """Yield the files to pack.

    Adds what the rules leave out to `ignored`: files, and folders as a whole.
    """
    with _reading(folder), os.scandir(folder) as found:
        entries = list(found)
    for entry in entries:
        path = Path(entry.path)
        if entry.name in NEVER or is_dump(entry.name) or left_by_system(path):
            continue
        inside = entry.is_dir(follow_symlinks=False)
        if rules.ignores(path, folder=inside):
            ignored.append(path)
            continue
        if not inside:
            # Sockets, pipes and devices cannot be shipped.
            if entry.is_symlink() or entry.is_file(follow_symlinks=False):
                yield path
        elif not any(_has(path, name) for name in ("pyvenv.cfg", *OUTPUTS)):
            # A virtual environment works on its own machine only.
            with _reading(path):
                below = rules.inside(path)
            yield from _walk(path, below, ignored)


def _has(folder: Path, name: str) -> bool:
    with _reading(folder):
        return (folder / name).exists()


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn a failed read (another user's folder, a lost file system) into a `UsageError`."""
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"cannot read {path}: {error.strerror}; list it in .spotelasticignore"
        ) from None


def _tracked_although_ignored(folder: Path) -> Iterator[Path]:
    """Yield files that git tracks although a .gitignore names them: every clone has them."""
    asked = ("ls-files", "-z", "--cached", "--ignored", "--exclude-standard")
    told, rules = git(folder, *asked) or b"", rules_for(folder)
    for name in filter(None, told.split(b"\0")):
        inside = Path(os.fsdecode(name))
        path = folder / inside
        if not NEVER.isdisjoint(inside.parts) or left_by_system(path):
            continue
        if not _left_out_by_us(path, folder, rules) and _is_there(path):
            yield path


def _is_there(path: Path) -> bool:
    with _reading(path):
        return path.is_symlink() or path.is_file()


def _left_out_by_us(path: Path, folder: Path, rules: IgnoreRules) -> bool:
    """Whether .spotelasticignore names the path, or a folder that contains it."""
    place = folder
    for name in path.relative_to(folder).parts:
        if place != folder:
            rules = rules.ours_inside(place)
        place /= name
        if rules.ours(place, folder=place != path):
            return True
    return False


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
    """Add a file by name, contents and executable bit: nothing that differs between machines."""
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
    """Return a link's target relative to the link.

    So the link also holds where the archive is unpacked.
    """
    target = Path(os.path.normpath(path.parent / path.readlink()))
    if not target.is_relative_to(folder):
        raise UsageError(
            f"{path} is a link to {target}, outside of the working folder: "
            "copy what it links to, or list it in .spotelasticignore"
        )
    return os.path.relpath(target, path.parent)
