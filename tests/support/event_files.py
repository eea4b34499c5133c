"""Reads the files of an agent's event log; `event_log/codec.py` says what stands in them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from spotelastic.agent.event_log.codec import decode, split
from spotelastic.agent.event_log.log import FORMAT, OPENED, earlier
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
    """the file with this content. Raises `UsageError` for what is no event log."""
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
    """the files of a log, oldest first. Raises `UsageError` if there is none."""
    try:
        newest = parse(current.read_bytes(), str(current))
        before = earlier(current)
        older = [parse(before.read_bytes(), str(before))] if before.exists() else []
    except OSError as error:
        raise UsageError(f"{current} cannot be read: {error.strerror}") from error
    return (*older, newest)


def _records(data: bytes) -> Iterator[LogRecord]:
    for record in split(data):
        try:
            kind, when, *told = decode(record)
        except (msgspec.MsgspecError, TypeError, ValueError):
            return
        yield LogRecord(kind, when, told)
