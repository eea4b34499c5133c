"""Replays the event logs that real agents have written."""

from collections.abc import Iterator
from pathlib import Path

from support.event_files import LogFile, load
from support.event_replay import Replayed, replay

from spotelastic.model.protocol import PROTOCOL


def logs(folder: Path) -> dict[str, tuple[LogFile, ...]]:
    """The logs below a folder, by the name of their node."""
    found = (load(path) for path in sorted(folder.rglob("agent-*.events")))
    return {files[-1].header["node"]: files for files in found}


def decisions(folder: Path) -> dict[str, list[Replayed]]:
    """What each node decided, as this code decides it again."""
    return {node: list(replay(files)) for node, files in logs(folder).items()}


def differences(folder: Path) -> Iterator[str]:
    """In what this code decides otherwise than the agents did. Those of another version may."""
    for node, files in logs(folder).items():
        of_this_version = all(each.header["protocol"] == list(PROTOCOL) for each in files)
        for each in replay(files) if of_this_version else ():
            if each.difference:
                yield f"{node} at {each.at}: {each.difference} (after {', '.join(each.because)})"
