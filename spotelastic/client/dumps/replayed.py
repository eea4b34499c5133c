"""Replays the event logs of agents: from a dump's archive, or from the file on a node."""

import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from spotelastic.agent.event_log.records import LogFile, load, parse
from spotelastic.agent.event_log.replay import Replayed, replay
from spotelastic.errors import UsageError


@dataclass(frozen=True, slots=True)
class NodeReplay:
    """The decisions of one node, as this version makes them again."""

    node: str
    version: str
    """The version that wrote the log."""
    decisions: tuple[Replayed, ...]

    @property
    def difference(self) -> Replayed | None:
        """The first decision that differs."""
        return next((each for each in self.decisions if each.difference), None)


def replays(file: Path, node: str | None) -> tuple[NodeReplay, ...]:
    """Return the replay of each log in the file, or of one node's.

    Raises `UsageError` for a file without logs, and for a node that it has none of.
    """
    found = {each[-1].header["node"]: each for each in _logs(file)}
    if not found:
        raise UsageError(f"--replay {file}: it has no event log of an agent")
    if node is not None and node not in found:
        raise UsageError(f"--replay {file}: it has no log of {node}; it has {', '.join(found)}")
    return tuple(
        NodeReplay(name, files[-1].header["version"], tuple(replay(files)))
        for name, files in found.items()
        if node in (None, name)
    )


def _logs(file: Path) -> Iterator[tuple[LogFile, ...]]:
    try:
        if not tarfile.is_tarfile(file):
            yield load(file)
            return
        contents = _contents(file)
    except (OSError, tarfile.TarError, EOFError) as error:
        raise UsageError(f"--replay {file}: {error}") from error
    for name, data in contents.items():
        if name.endswith(".events"):
            older = contents.get(f"{name}.1")
            before = () if older is None else (parse(older, f"{name}.1"),)
            yield (*before, parse(data, name))


def _contents(file: Path) -> Mapping[str, bytes]:
    """Return the event logs in an archive, by name."""
    found = {}
    with tarfile.open(file) as tar:
        for entry in tar:
            path = PurePosixPath(entry.name)
            content = tar.extractfile(entry) if entry.isfile() else None
            if content is not None and path.parent.name == "events":
                found[entry.name] = content.read()
    return found
