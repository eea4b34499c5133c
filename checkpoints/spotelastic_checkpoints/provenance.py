"""What made a run, kept beside its checkpoints, and what the next run says of it."""

import os
import re
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec

from spotelastic_checkpoints.commit.commit_protocol import Commits, folder
from spotelastic_checkpoints.errors import CheckpointsError
from spotelastic_checkpoints.format import metadata
from spotelastic_checkpoints.storage.open import folder_of
from spotelastic_checkpoints.storage.port import Storage
from spotelastic_checkpoints.types import Commit

NAME = "spotelastic-run.json"
SECRET = re.compile(r"(?i)(key|token|secret|password|passwd|credential)")
HIDDEN = "***"


class Record(msgspec.Struct):
    """What made a run."""

    script: str
    args: list[str]
    """Without values that look like secrets."""
    pid: int
    begun_at: float
    state: Literal["running", "succeeded", "ended"] = "running"
    found: Commit | None = None
    """The newest commit when it began,"""
    maker: "Record | None" = None
    """and what had made that. A run that saves nothing has made nothing, however it ends."""

    def of(self, commit: Commit | None) -> "Record | None":
        """What made the commit that is there now."""
        return self.maker if commit is not None and commit == self.found else self

    @property
    def command(self) -> str:
        return " ".join([self.script, *self.args])


def made_by(script: str, args: Sequence[str]) -> Record:
    return Record(script, without_secrets(args), os.getpid(), time.time())


def without_secrets(args: Sequence[str]) -> list[str]:
    """Values of flags and assignments whose names tell that they are secret are not kept."""
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
    """What is in a storage. A storage that does not answer has nothing to tell: the first commit
    says what is wrong with it."""

    def __init__(self, storage: Storage, owner: str) -> None:
        self.storage, self.commits = storage, Commits(storage, owner)

    def commit(self) -> Commit | None:
        with suppress(CheckpointsError):
            return self.commits.latest()
        return None

    def saved_at(self, commit: Commit) -> float | None:
        """By the store's clock."""
        place = folder(commit)
        with suppress(CheckpointsError):
            return self.storage.times(f"{place}/").get(f"{place}/{metadata.NAME}")
        return None

    def record(self) -> Record | None:
        with suppress(CheckpointsError, msgspec.MsgspecError):
            blob = self.storage.get(NAME)
            return msgspec.json.decode(blob.data, type=Record) if blob else None
        return None

    def write(self, record: Record) -> None:
        with suppress(CheckpointsError):
            self.storage.put(NAME, memoryview(msgspec.json.encode(record)))


def lines(kept: StoredRun, mine: Record, afresh: str) -> list[str]:
    """Whose state the run goes on from, and how to begin `afresh`; none where it begins."""
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
    """Shorter where it is below the current folder."""
    path, here = folder_of(storage), Path.cwd()
    if path is None:
        return storage
    return f"./{path.relative_to(here)}" if path.is_relative_to(here) else str(path)


def ago(then: float) -> str:
    seconds = max(0.0, time.time() - then)
    for size, unit in ((86400.0, "days"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"


class Recorded:
    """The record of a run that has begun, and what it becomes at its end."""

    def __init__(self, kept: StoredRun, record: Record) -> None:
        self._kept, self._record = kept, record
        last, record.found = kept.record(), kept.commit()
        maker = last.of(record.found) if last and record.found else None
        record.maker = msgspec.structs.replace(maker, maker=None) if maker else None
        kept.write(record)

    def ended(self, *, well: bool) -> None:
        self._record.state = "succeeded" if well else "ended"
        maker = self._record.maker
        if well and maker and maker.command == self._record.command:
            maker.state = "succeeded"  # what it had saved was all there is to do
        self._kept.write(self._record)
