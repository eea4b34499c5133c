"""Replays the event logs of agents: from a dump's archive, or from the file on a node.

PYTHONPATH=tests python -m support.event_logs FILE [NODE]
"""

import sys
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path, PurePosixPath

from support.event_files import LogFile, load, parse
from support.event_replay import Replayed, replay

from spotelastic.errors import UsageError
from spotelastic.model.counting import counted


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
        raise UsageError(f"{file}: it has no event log of an agent")
    if node is not None and node not in found:
        raise UsageError(f"{file}: it has no log of {node}; it has {', '.join(found)}")
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
        raise UsageError(f"{file}: {error}") from error
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


BECAUSE = 4
"""Most events that are shown for one decision: the last ones."""


def lines(told: NodeReplay) -> Iterator[str]:
    """Yield the lines of a node. Decisions to do nothing are counted only."""
    decisions = told.decisions
    yield f"{told.node}: {len(decisions)} decisions, recorded by spotelastic {told.version}"
    for each in decisions:
        when = datetime.fromtimestamp(each.at).strftime("%H:%M:%S.%f")[:-3]
        if each.actions or each.difference or each.closed is not None:
            more = len(each.because) - BECAUSE
            before = [counted(more, "other event")] if more > 0 else []
            reason = "; ".join([*before, *each.because[-BECAUSE:]]) or "the time has come"
            yield f"{when}  {reason}"
        for action in each.actions:
            yield f"              -> {action}"
        if each.closed is not None:
            yield f"              ended: {each.closed.rstrip() or 'as decided'}"
        if each.difference:
            yield f"              DIFFERS: {each.difference}"
    if told.difference is None:
        yield f"{told.node}: this version decides the same"


def main(file: str, node: str | None = None) -> int:
    found = replays(Path(file), node)
    for each in found:
        for line in lines(each):
            print(line)
    return any(each.difference for each in found)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
