"""Tells which files of a working folder are ignored: by git's rules, and by .spotelasticignore.

In a repository git itself is asked, so that every encoding, every place of patterns (nested files,
.git/info/exclude, the user's own file) and every special case counts as in git. Its files are read
here only where git cannot answer: outside of a repository, or on a machine without git.

What must never happen: a file that the user has ignored, such as a key, is shipped because an
ignore file was read in another way than its author meant. A file that cannot be read is refused.
"""

import codecs
import os
import subprocess
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pathspec

from spotelastic.errors import UsageError

OURS = ".spotelasticignore"
"""spotelastic's own ignore file: git's syntax. It may include again what git ignores."""
GITS = ".gitignore"
GIT_WITHIN = 30.0
"""Seconds that git may take."""
WIDE = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
"""How a text begins that is in UTF-16 or UTF-32, in which no pattern would match."""


@dataclass(frozen=True, slots=True)
class PatternFile:
    """One file of patterns, for everything below `base`."""

    base: Path
    spec: pathspec.GitIgnoreSpec

    def verdict(self, path: Path, *, folder: bool) -> bool | None:
        """Return True for ignored, False for included again by "!", None for not mentioned."""
        name = path.relative_to(self.base).as_posix() + ("/" if folder else "")
        return self.spec.check_file(name).include


@dataclass(frozen=True, slots=True)
class IgnoreRules:
    """What counts for the entries of one folder. Each folder below has rules of its own."""

    by_us: tuple[PatternFile, ...] = ()
    """.spotelasticignore files of this folder and those above it, outermost first."""
    by_git: tuple[PatternFile, ...] = ()
    """Git's files, where git could not be asked."""
    told: frozenset[Path] | None = None
    """The ignored files and folders of the repository, as git tells them."""

    def ours(self, path: Path, *, folder: bool) -> bool | None:
        """Return what .spotelasticignore files say of an entry; None if they do not mention it."""
        return _deepest(self.by_us, path, folder=folder)

    def ignores(self, path: Path, *, folder: bool) -> bool:
        """Whether an entry is left out: .spotelasticignore has the last word."""
        said = self.ours(path, folder=folder)
        if said is not None:
            return said
        if self.told is not None:
            return _composed(path) in self.told
        return bool(_deepest(self.by_git, path, folder=folder))

    def ours_inside(self, folder: Path) -> "IgnoreRules":
        """Return what .spotelasticignore files alone say of the entries of a folder below."""
        return IgnoreRules(self.by_us + _patterns(folder, OURS))

    def inside(self, folder: Path) -> "IgnoreRules":
        """Return the rules for the entries of a folder below."""
        by_us = self.ours_inside(folder).by_us
        if (folder / ".git").exists():  # a repository in the folder has rules of its own
            return IgnoreRules(by_us, _repository_patterns(folder), _ask_git(folder))
        return IgnoreRules(by_us, self.by_git + _patterns(folder, GITS), self.told)


def rules_for(folder: Path) -> IgnoreRules:
    """Return the rules for the entries of a working folder, from its repository's root on.

    Raises `UsageError` for a file of rules that cannot be read.
    """
    above = _up_to_repository(folder)
    by_us = tuple(each for parent in above for each in _patterns(parent, OURS))
    told = _ask_git(folder)
    if told is not None and _composed(folder) in told:
        # The user trains in a folder that the repository ignores as a whole, as build/ may be:
        # only what is said in it counts.
        return IgnoreRules(by_us, _patterns(folder, GITS))
    below = (each for parent in above[1:] for each in _patterns(parent, GITS))
    return IgnoreRules(by_us, (*_repository_patterns(above[0]), *below), told)


def _up_to_repository(folder: Path) -> tuple[Path, ...]:
    """Return the folders from the repository's root down to this one; itself if it is in none."""
    for index, parent in enumerate((folder, *folder.parents)):
        if (parent / ".git").exists():
            return tuple(reversed((folder, *folder.parents)[: index + 1]))
    return (folder,)


def _deepest(files: Sequence[PatternFile], path: Path, *, folder: bool) -> bool | None:
    """Return the verdict of the deepest file that mentions the path, as in git."""
    for file in reversed(files):
        verdict = file.verdict(path, folder=folder)
        if verdict is not None:
            return verdict
    return None


def _ask_git(folder: Path) -> frozenset[Path] | None:
    """Return the ignored files and folders below `folder`; None if git cannot say.

    `matching` names a folder as a whole only if a pattern names it, so that .spotelasticignore may
    still include a file of it again.
    """
    asked = ["status", "--porcelain", "-z", "--ignored=matching", "-uall", "--", "."]
    # Relative to the folder: git may spell the root otherwise (links; on a Mac upper case).
    inside, listed = git(folder, "rev-parse", "--show-prefix"), git(folder, *asked)
    if inside is None or listed is None:
        return None
    begin = b"!! " + inside.removesuffix(b"\n")
    names = (entry[len(begin) :] for entry in listed.split(b"\0") if entry.startswith(begin))
    return frozenset(_composed(folder / os.fsdecode(name)) for name in names)


def _composed(path: Path) -> Path:
    """Return a path as git spells it, which on a Mac composes letters that the disk decomposes."""
    return Path(unicodedata.normalize("NFC", str(path)))


def git(folder: Path, *arguments: str) -> bytes | None:
    """Return what a git command in the folder prints; None without git, or where git refuses."""
    try:
        return subprocess.run(
            # A file system monitor is a program that a repository's settings may name.
            ["git", "-c", "core.fsmonitor=false", "-C", str(folder), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
            timeout=GIT_WITHIN,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None


# -- files of patterns ---------------------------------------------------------------------------


def _repository_patterns(root: Path) -> tuple[PatternFile, ...]:
    """Return the patterns at a repository's root: those that only this clone has come first."""
    return _read(root / ".git" / "info" / "exclude", root) + _patterns(root, GITS)


def _patterns(folder: Path, name: str) -> tuple[PatternFile, ...]:
    return _read(folder / name, folder)


def _read(file: Path, base: Path) -> tuple[PatternFile, ...]:
    lines = _lines(file)
    return (PatternFile(base, pathspec.GitIgnoreSpec.from_lines(lines)),) if lines else ()


def _lines(file: Path) -> list[str]:
    """Return the lines of a file of patterns as git reads them; none if it does not exist.

    Git skips a byte order mark, ends a line at a line feed alone, and compares bytes.
    """
    try:
        if not file.is_file():
            return []
        data = file.read_bytes()
    except OSError as error:  # going on without it would ship what it leaves out
        raise UsageError(f"cannot read {file}: {error.strerror}; make it readable") from None
    if data.startswith(WIDE) or b"\0" in data:
        raise UsageError(
            f"{file} is no text in UTF-8, so that its patterns would name nothing: save it as UTF-8"
        )
    lines = data.removeprefix(codecs.BOM_UTF8).split(b"\n")
    return [os.fsdecode(line.removesuffix(b"\r")) for line in lines]
