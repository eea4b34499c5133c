"""Which run uses a storage folder, and what an earlier run has left in it.

The folder is locked for as long as a launcher that uses it lives: a node that is alone excludes all
others, nodes of one run share it. What made the run is kept beside its checkpoints, so that the
next run can say whose state it goes on from. Object stores have no such lock; there the owner and
the epoch in LATEST decide (docs/protocols.md).
"""

import argparse
import fcntl
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path, PurePath
from typing import IO

import msgspec
from spotelastic_checkpoints.commits import LATEST, Latest
from spotelastic_checkpoints.wire import Commit

from spotelastic.clock import wall
from spotelastic.errors import UsageError

LOCK = ".spotelastic.lock"
RECORD = "spotelastic-run.json"
SECRET = re.compile(r"(?i)(key|token|secret|password|passwd|credential)")
HIDDEN = "***"

Say = Callable[[str], None]


class Record(msgspec.Struct):
    """What made a run."""

    script: str
    args: list[str]
    """Without values that look like secrets."""
    pid: int
    begun_at: float
    state: str = "running"

    @property
    def command(self) -> str:
        return " ".join([self.script, *self.args])


def of(options: argparse.Namespace) -> str:
    """Where the run's checkpoints go. Raises `UsageError` for a name that leaves ./runs."""
    name = options.rdzv_id
    if not name or "\0" in name:
        raise UsageError("--rdzv-id: is empty, or has a character that no name may have")
    if options.storage:
        return str(options.storage)
    parts = name.split("/")
    if PurePath(name).is_absolute() or not {"", ".", ".."}.isdisjoint(parts):
        raise UsageError(
            f"--rdzv-id {name}: its checkpoints would lie outside of a folder of their own in "
            "./runs; give another name, or --storage"
        )
    return str(Path("runs").absolute() / name)


def local(storage: str) -> Path | None:
    """The folder; None for an object store."""
    path = storage.removeprefix("file://")
    return None if "://" in path else Path(path).absolute()


@contextmanager
def used(
    options: argparse.Namespace, storage: str, *, alone: bool, say: Say
) -> Iterator[Callable[[int], None]]:
    """Holds the storage for this run; is told the exit code at the end.

    Raises `UsageError` while another run uses it. A folder that cannot be written is not locked:
    the first commit says what is wrong with it.
    """
    folder = local(storage)
    if options.fresh and (folder is None or not alone):
        where = "an object store" if folder is None else "a run of several nodes"
        raise UsageError(f"--fresh: is not for {where}; give another --storage and --rdzv-id")
    if folder is None:
        yield lambda code: None
        return
    lock = _opened(folder)
    if lock is None:
        yield lambda code: None
        return
    try:
        first = _take(lock, folder, alone=alone)
        if options.fresh and _latest(folder) is not None:
            aside = _aside(folder)
            folder.rename(aside)
            say(f"beginning afresh: the checkpoints of before are kept in {_shown(aside)}")
            lock.close()
            lock = folder_lock(folder)
            _take(lock, folder, alone=alone)
        record, before, commit = _made_by(options), _read(folder), _commit(folder)
        if first:
            _tell(folder, record, say)
            _write(folder, record)

        def ended(code: int) -> None:
            saved_nothing = code != 0 and commit is not None and _commit(folder) == commit
            if first and before is not None and saved_nothing:
                _write(folder, before)  # it still says who made what is there
            elif first:
                _ended(folder, record, code)

        yield ended
    finally:
        lock.close()


def folder_lock(folder: Path) -> IO[str]:
    folder.mkdir(parents=True, exist_ok=True)
    return (folder / LOCK).open("a")


def _opened(folder: Path) -> IO[str] | None:
    try:
        return folder_lock(folder)
    except OSError:
        return None


def _take(lock: IO[str], folder: Path, *, alone: bool) -> bool:
    """Whether nobody else uses the folder."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not alone:
            fcntl.flock(lock, fcntl.LOCK_SH)
        return True
    except BlockingIOError:
        pass
    except OSError:  # a file system without locks
        return True
    try:
        if alone:
            raise BlockingIOError
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        other = _read(folder)
        who = f" ({other.command}, begun {_ago(other.begun_at)}, pid {other.pid})" if other else ""
        raise UsageError(
            f"another run{who} uses {_shown(folder)}: wait for its end, or give this run another "
            "--rdzv-id or --storage"
        ) from None
    return False


def _tell(folder: Path, mine: Record, say: Say) -> None:
    """Whose state the run goes on from."""
    latest = _latest(folder)
    if latest is None or latest.commit is None:
        return
    before = _read(folder)
    by = f" by {before.command}" if before else ""
    saved = _ago((folder / LATEST).stat().st_mtime)
    say(
        f"resuming from step {latest.commit.step} in {_shown(folder)}, saved {saved}{by}; "
        "begin afresh with --fresh"
    )
    if before is None:
        return
    if before.script != mine.script:
        say(f"warning: that run was made by another script, {before.script}")
    elif before.args != mine.args:
        say(f"warning: that run had other arguments: {' '.join(before.args) or 'none'}")
    elif before.state == "succeeded":
        say("that run has succeeded: there may be no steps left to do")


def _made_by(options: argparse.Namespace) -> Record:
    return Record(str(options.script), without_secrets(options.args), os.getpid(), wall())


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


def _latest(folder: Path) -> Latest | None:
    try:
        return msgspec.json.decode((folder / LATEST).read_bytes(), type=Latest)
    except (OSError, msgspec.MsgspecError):
        return None


def _commit(folder: Path) -> Commit | None:
    latest = _latest(folder)
    return latest.commit if latest else None


def _read(folder: Path) -> Record | None:
    try:
        return msgspec.json.decode((folder / RECORD).read_bytes(), type=Record)
    except (OSError, msgspec.MsgspecError):
        return None


def _write(folder: Path, record: Record) -> None:
    new = folder / f".{RECORD}.{record.pid}"
    with suppress(OSError):  # a full disk: the first commit says so
        new.write_bytes(msgspec.json.encode(record))
        new.replace(folder / RECORD)


def _ended(folder: Path, record: Record, code: int) -> None:
    record.state = "succeeded" if code == 0 else "ended"
    _write(folder, record)


def _aside(folder: Path) -> Path:
    number = 1
    while (aside := folder.with_name(f"{folder.name}.{number}")).exists():
        number += 1
    return aside


def _shown(folder: Path) -> str:
    here = Path.cwd()
    return f"./{folder.relative_to(here)}" if folder.is_relative_to(here) else str(folder)


def _ago(then: float) -> str:
    seconds = max(0.0, wall() - then)
    for size, unit in ((86400.0, "days"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"
