"""Reads the files of an agent's event log.

A record is a list: its kind, its time, and what that kind tells.

| kind      | what it tells                                                        |
|-----------|----------------------------------------------------------------------|
| `OPENED`  | header; the node's state; the state of the run                       |
| `EVENT`   | name of the event's type; the event                                  |
| `STORE`   | the watched prefix; what etcd delivered of it                        |
| `STATE`   | fields of the node's state that changed without an event             |
| `SEEN`    | fields of the run's state that changed without a delivery            |
| `DECIDED` | when to look again; actions, each with its name; new ids that it took |
| `LOST`    | why a record could not be written                                    |
| `CLOSED`  | the traceback with which the agent ended; empty: as decided          |
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from spotelastic.agent.event_log.codec import decode
from spotelastic.agent.event_log.log import CLOSED, FORMAT, LENGTH, OPENED, earlier
from spotelastic.errors import UsageError


@dataclass(frozen=True, slots=True)
class LogRecord:
    """One record. `told` has what its kind tells, as plain values."""

    kind: int
    at: float
    told: Sequence[Any]


@dataclass(frozen=True, slots=True)
class LogFile:
    """The records of one file, and its header. An incomplete last record is left out."""

    header: dict[str, Any]
    records: tuple[LogRecord, ...]

    def follows(self, other: "LogFile") -> bool:
        """Whether this file goes on where the other one ends."""
        mine, its = self.header, other.header
        return bool(mine["log"] == its["log"] and mine["part"] == its["part"] + 1)


def parse(data: bytes, name: str) -> LogFile:
    """Returns the file with this content. Raises `UsageError` for what is no event log."""
    records = tuple(_records(data))
    if not records or records[0].kind != OPENED:
        raise UsageError(f"{name} is not the event log of an agent")
    header = records[0].told[0]
    if header.get("format") != FORMAT:
        raise UsageError(
            f"{name} has format {header.get('format')}, and this version of spotelastic reads "
            f"format {FORMAT}: replay it with version {header.get('version')}"
        )
    return LogFile(header, records)


def load(current: Path) -> tuple[LogFile, ...]:
    """Returns the files of a log, oldest first. Raises `UsageError` if there is none."""
    try:
        newest = parse(current.read_bytes(), str(current))
        before = earlier(current)
        older = [parse(before.read_bytes(), str(before))] if before.exists() else []
    except OSError as error:
        raise UsageError(f"{current} cannot be read: {error.strerror}") from error
    return (*older, newest)


def was_killed(path: Path) -> bool:
    """Whether the log is that of an agent which has not come to its end."""
    try:
        last = parse(path.read_bytes(), str(path)).records[-1]
    except (OSError, UsageError):
        return False
    return last.kind != CLOSED


def split(data: bytes) -> Iterator[bytes]:
    """Yields the bytes of each complete record. The agent may be killed while it writes one."""
    at = 0
    while at + LENGTH <= len(data):
        end = at + LENGTH + int.from_bytes(data[at : at + LENGTH], "big")
        if end > len(data):
            return
        yield data[at + LENGTH : end]
        at = end


def _records(data: bytes) -> Iterator[LogRecord]:
    for record in split(data):
        try:
            kind, when, *told = decode(record)
        except (msgspec.MsgspecError, TypeError, ValueError):
            return
        yield LogRecord(kind, when, told)
