"""Records which script, arguments and outcome made the checkpoints of a storage, and reports it.

The record is stored beside the checkpoints. The next run on the storage reads it, and says what it
resumes from and whether it was made by another command.
"""

import os
import re
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec

from spotelastic_checkpoints import checksummed_json
from spotelastic_checkpoints.commit.commit_protocol import RUN_RECORD, Commits, folder
from spotelastic_checkpoints.errors import CheckpointsError
from spotelastic_checkpoints.format import metadata
from spotelastic_checkpoints.protocol_version import FORMAT
from spotelastic_checkpoints.storage.object_store import Storage
from spotelastic_checkpoints.storage.open import folder_of
from spotelastic_checkpoints.types import Commit

NAME = RUN_RECORD
"""Key of the record in the storage."""
SECRET = re.compile(r"(?i)(key|token|secret|password|passwd|credential)")
"""Matches names of arguments that hold secrets."""
HIDDEN = "***"
"""Stands for the value of a secret."""


class Record(msgspec.Struct):
    """What made a run, and how it ended."""

    script: str
    args: list[str]
    """Arguments of the script, without values that look like secrets."""
    pid: int
    begun_at: float
    """When the run began (epoch seconds)."""
    state: Literal["running", "succeeded", "ended"] = "running"
    """"running", "succeeded", or "ended" in any other way."""
    found: Commit | None = None
    """The newest commit when this run began."""
    maker: "Record | None" = None
    """Record of the run that made the commit in `found`. A run that saves nothing has made nothing,
    however it ends.
    """
    version: int = FORMAT

    def of(self, commit: Commit | None) -> "Record | None":
        """Return the record of the run that made `commit`, the newest one now."""
        return self.maker if commit is not None and commit == self.found else self

    @property
    def command(self) -> str:
        """Command line, without secrets."""
        return " ".join([self.script, *self.args])


def made_by(script: str, args: Sequence[str]) -> Record:
    """Return the record of a run that this process begins."""
    return Record(script, without_secrets(args), os.getpid(), time.time())


def without_secrets(args: Sequence[str]) -> list[str]:
    """Return the arguments, hiding values of flags and assignments whose names suggest a secret."""
    kept, hide = [], False
    for arg in args:
        name, assigned, _ = arg.partition("=")
        is_flag = arg.startswith("-")
        if hide and not is_flag:
            kept.append(HIDDEN)
        elif assigned and SECRET.search(name):
            kept.append(f"{name}={HIDDEN}")
        else:
            kept.append(arg)
        hide = is_flag and not assigned and bool(SECRET.search(name))
    return kept


class StoredRun:
    """The commits and the record in a storage.

    A storage that does not answer is treated as empty here: the first commit reports what is wrong.
    """

    def __init__(self, storage: Storage, owner: str) -> None:
        self.storage, self.commits = storage, Commits(storage, owner)

    def commit(self) -> Commit | None:
        """Return the newest commit, or None."""
        with suppress(CheckpointsError):
            return self.commits.latest()
        return None

    def saved_at(self, commit: Commit) -> float | None:
        """Return when a commit was made (epoch seconds, by the store's clock).

        None if that is not known.
        """
        place = folder(commit)
        with suppress(CheckpointsError):
            return self.storage.times(f"{place}/").get(f"{place}/{metadata.NAME}")
        return None

    def record(self) -> Record | None:
        """Return the record, or None."""
        with suppress(CheckpointsError, msgspec.MsgspecError):
            blob = self.storage.get(NAME)
            return checksummed_json.decode(blob.data, Record) if blob else None
        return None

    def write(self, record: Record) -> None:
        """Write the record, if the storage answers."""
        with suppress(CheckpointsError):
            self.storage.put(NAME, memoryview(checksummed_json.encode(record)))


def lines(kept: StoredRun, mine: Record, afresh: str) -> list[str]:
    """Return what to print about the state that a run resumes from; nothing on a fresh start.

    `afresh` says how to begin without that state.
    """
    commit = kept.commit()
    if commit is None:
        return []
    last, saved = kept.record(), kept.saved_at(commit)
    before = last.of(commit) if last else None
    when = f", saved {ago(saved)}" if saved else ""
    by = f" by {before.command}" if before else ""
    told = [
        f"resuming from step {commit.step} in {shown(kept.storage.url)}{when}{by}; "
        f"begin afresh with {afresh}"
    ]
    if before is None:
        return told
    if before.script != mine.script:
        told.append(f"warning: that run was made by another script, {before.script}")
    elif before.args != mine.args:
        told.append(f"warning: that run had other arguments: {' '.join(before.args) or 'none'}")
    elif before.state == "succeeded":
        told.append("that run has succeeded: there may be no steps left to do")
    return told


def shown(storage: str) -> str:
    """Return a storage for messages, with a relative path where it is below the current folder."""
    path, here = folder_of(storage), Path.cwd()
    if path is None:
        return storage
    return f"./{path.relative_to(here)}" if path.is_relative_to(here) else str(path)


def ago(then: float) -> str:
    """Return how long ago a time (epoch seconds) was, as text."""
    seconds = max(0.0, time.time() - then)
    for size, unit in ((86400.0, "days"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"


class Recorded:
    """The record of a run that has begun; `ended` completes it."""

    def __init__(self, kept: StoredRun, record: Record) -> None:
        self._kept, self._record = kept, record
        last, record.found = kept.record(), kept.commit()
        maker = last.of(record.found) if last and record.found else None
        record.maker = msgspec.structs.replace(maker, maker=None) if maker else None
        kept.write(record)

    def ended(self, *, well: bool) -> None:
        """Record how the run ended."""
        self._record.state = "succeeded" if well else "ended"
        maker = self._record.maker
        if well and maker and maker.command == self._record.command:
            # This run had nothing left to do: the earlier one had saved all of it.
            maker.state = "succeeded"
        self._kept.write(self._record)
