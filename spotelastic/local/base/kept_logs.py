"""Stores the output of workers of the local cloud as files, which outlive the cloud.

    <root>/<cluster>/<stream>.jsonl     one line of JSON for each line of output

The log group `/spotelastic/<cluster>` is the folder, as in CloudWatch it outlives the cluster.
"""

import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from spotelastic.aws.messaging import log_group
from spotelastic.aws.messaging.log_group import GroupLine, LogStream
from spotelastic.local.base.kept_objects import key_of, path_of

GROUPS = "/spotelastic/"
"""What the names of groups begin with that are kept."""
_SUFFIX = ".jsonl"
Written = tuple[int, str]
"""A line: milliseconds since the epoch, and its text."""


class KeptLogs:
    """A folder of log groups, written by one cloud at a time."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def clusters(self) -> list[str]:
        """Return the names of the clusters that have written something."""
        found = self.root.iterdir() if self.root.is_dir() else ()
        return sorted(path.name for path in found if path.is_dir())

    def streams(self, cluster: str) -> list[str]:
        """Return the names of a cluster's streams."""
        its = self.root / cluster
        paths = (Path(folder, file) for folder, _, files in os.walk(its) for file in files)
        return sorted(
            key_of(path.relative_to(its).with_suffix(""))
            for path in paths
            if path.suffix == _SUFFIX
        )

    def create(self, cluster: str, stream: str) -> None:
        """Create an empty stream."""
        self.append(cluster, stream, ())

    def append(self, cluster: str, stream: str, lines: Iterable[Written]) -> None:
        """Add lines to a stream."""
        path = self._path(cluster, stream)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))

    def read(self, cluster: str, stream: str) -> list[Written]:
        """Return a stream's lines; none if it does not exist.

        Of a cloud that was killed, the last line may be incomplete. It is left out.
        """
        lines = []
        with suppress(FileNotFoundError):
            for line in self._path(cluster, stream).read_bytes().splitlines():
                with suppress(msgspec.DecodeError):
                    lines.append(msgspec.json.decode(line, type=Written))
        return lines

    def written_at(self, cluster: str, stream: str) -> float:
        """Return when a stream was last written, in seconds since the epoch."""
        return self._path(cluster, stream).stat().st_mtime

    def delete(self, cluster: str) -> None:
        """Delete all that clusters of this name have written; nothing is no error."""
        shutil.rmtree(self.root / cluster, ignore_errors=True)

    def forget(self, before: float) -> None:
        """Delete the streams that were last written before then, in seconds since the epoch."""
        for folder, _, files in os.walk(self.root, topdown=False):
            for path in (Path(folder, file) for file in files):
                with suppress(FileNotFoundError):
                    if path.stat().st_mtime < before:
                        path.unlink()
            with suppress(OSError):  # it is not empty
                Path(folder).rmdir()

    def _path(self, cluster: str, stream: str) -> Path:
        path = self.root / cluster / path_of(stream)
        return path.with_name(path.name + _SUFFIX)


@dataclass(frozen=True, slots=True)
class KeptOutput:
    """The kept output of the local clusters of one name, also while no local cloud runs."""

    logs: KeptLogs
    cluster: str

    def streams(self) -> list[LogStream]:
        """Return the streams of all workers."""
        return sorted(filter(None, map(log_group.parse, self.logs.streams(self.cluster))))

    def lines(self, begin: str, since: int) -> Iterator[GroupLine]:
        """Yield lines by time, of streams that begin so, and since then (in milliseconds)."""
        found: list[GroupLine] = []
        for stream in self.streams():
            if str(stream).startswith(begin):
                found += self._of(stream, since)
        yield from sorted(found, key=lambda line: line.at)

    def _of(self, stream: LogStream, since: int) -> Sequence[GroupLine]:
        lines = self.logs.read(self.cluster, str(stream))
        return [
            GroupLine(f"{stream}:{number}", stream, at, text.rstrip())
            for number, (at, text) in enumerate(lines)
            if at >= since
        ]


def cluster_of(group: str) -> str | None:
    """Return the cluster of a log group; None for a group of something else."""
    name = group.removeprefix(GROUPS)
    return name if name not in ("", group) and "/" not in name else None
