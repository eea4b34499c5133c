"""Makes sure that only one run uses a checkpoint storage, and tells what an earlier run left in it.

A folder is locked while a launcher on this machine uses it: a node that is alone excludes all
others, nodes of one run share it. Across machines, and in object stores, the run is the tenant of
its storage (docs/explanation/protocols.md). What made the run is recorded beside its checkpoints,
so that the next run can say whose state it continues.
"""

import argparse
import fcntl
import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import IO, Protocol

from spotelastic_checkpoints.commit.commit_protocol import Commits
from spotelastic_checkpoints.commit.tenancy import (
    PACE,
    InUse,
    Tenancy,
    TenancyPace,
    Tenant,
    tenant_here,
)
from spotelastic_checkpoints.errors import CheckpointsError, StorageOwned, StorageRefused
from spotelastic_checkpoints.provenance import (
    Record,
    Recorded,
    StoredRun,
    ago,
    lines,
    made_by,
    shown,
)
from spotelastic_checkpoints.storage.open import folder_of, open_storage

from spotelastic.errors import EnvironmentFailure, UsageError

UNNAMED = "default"
"""`--rdzv-id` of a run that was not given one."""
LOCK = ".spotelastic.lock"
NOTHING = "no checkpoint was saved"
ANSWER_WITHIN = 10.0
"""Seconds for the storage's first answer; without one the run begins, and claims it later."""

Say = Callable[[str], None]


class Others(Protocol):
    """The other nodes of a run, as its etcd shows them."""

    group: str
    meets: tuple[str, ...]

    def live(self) -> bool | None:
        """Whether one of them is alive; None if etcd does not answer."""


@dataclass(slots=True)
class StorageUse:
    """How this node uses the storage."""

    displaced: bool = False
    """Whether another run has taken the storage since."""
    code: int | None = None
    record: Recorded | None = None

    def ended(self, code: int) -> None:
        """Record how the run ended."""
        self.code = code
        if self.record is not None:
            self.record.ended(well=code == 0)

    def is_over(self, others: Others | None) -> bool:
        """Whether the whole job has ended, or no node of it is left."""
        return others is None or self.code in (0, 1) or others.live() is False


def storage_url(options: argparse.Namespace) -> str:
    """Return where the run's checkpoints go. Raises `UsageError` for a name that leaves ./runs.

    A run without a name has its script's, so that another script in the same folder does not meet
    its checkpoints.
    """
    name = options.rdzv_id
    if not name or "\0" in name:
        raise UsageError("--rdzv-id: is empty or contains a null character")
    if options.storage:
        return str(options.storage)
    parts = name.split("/")
    if PurePath(name).is_absolute() or not {"", ".", ".."}.isdisjoint(parts):
        raise UsageError(
            f"--rdzv-id {name}: its checkpoints would not have a folder of their own in ./runs; "
            "give another name, or --storage"
        )
    runs = Path("runs").absolute()
    return str(runs / (_named_by_script(runs, options.script) if name == UNNAMED else name))


def outcome(storage: str, run: str, *, well: bool) -> str:
    """Return what to say at the end of a run, also of a silent script.

    It is whether the job succeeded, and where the newest checkpoint is. What failed was told
    before.
    """
    commit, where = StoredRun(open_storage(storage), run).commit(), shown(storage)
    saved = f"the newest checkpoint is step {commit.step} in {where}" if commit else NOTHING
    return f"the job succeeded; {saved}" if well else saved


def _named_by_script(runs: Path, script: str) -> str:
    """Return the name of the folder for a script whose run has no name: the script's.

    Older versions called it `UNNAMED`: what this script has begun there goes on there. Where a
    script of the same name has been, as in another folder, the whole path is the name.
    """
    if _has_made(runs / UNNAMED, script):
        return UNNAMED
    name = _as_name(PurePath(script).name.removesuffix(".py"))
    if _has_made(runs / name, script) is not False:
        return name
    return _as_name(os.path.relpath(script))


def _as_name(text: str) -> str:
    return re.sub(r"[^\w.-]+", "-", text).strip(".-") or UNNAMED


def _has_made(folder: Path, script: str) -> bool | None:
    """Whether the script may go on from what is in a folder; None if nothing is.

    It may from what it has made, and from what nobody has, such as an imported checkpoint.
    """
    if not os.path.isdir(folder):  # noqa: PTH112
        return None
    kept = StoredRun(open_storage(str(folder)), UNNAMED)
    record, commit = kept.record(), kept.commit()
    made = record and record.of(commit)
    if made is None:
        return True if commit is not None else None
    return Path(made.script).resolve() == Path(script).resolve()


@contextmanager
def claimed(
    options: argparse.Namespace,
    storage: str,
    *,
    others: Others | None,
    say: Say,
    pace: TenancyPace = PACE,
) -> Iterator[StorageUse]:
    """Hold the storage for this run; without `others` this node is alone.

    `pace` says how long another run that uses it has for its answer.

    Raises `UsageError` while another run uses it. If another run takes it later, because this one
    was cut off or suspended for long, this process gets SIGTERM, which ends its node.
    """
    with ExitStack() as stack:
        yield _Claiming(options, storage, others, say, pace, stack).claim()


@dataclass(slots=True)
class _Claiming:
    options: argparse.Namespace
    storage: str
    others: Others | None
    say: Say
    pace: TenancyPace
    stack: ExitStack
    use: StorageUse = field(default_factory=StorageUse)

    def claim(self) -> StorageUse:
        """Claim the storage, and report what it holds; return its use."""
        folder = folder_of(self.storage)
        if folder is not None:
            self._lock(folder)
        tenancy, how = self._tenancy()
        if how == "unknown":
            self.say(
                f"{shown(self.storage)} does not answer yet: whether it is free is checked later"
            )
        if how == "joined" and self.options.fresh:
            self.say("--fresh has no effect: the run has already begun")
        if how != "first":
            return self.use
        if self.options.fresh:
            tenancy = self._afresh(folder, tenancy)
        else:
            self._check_owner()
        kept, record = StoredRun(open_storage(self.storage), self.options.rdzv_id), self._record()
        self._check_maker(kept, record)
        for line in lines(kept, record, "--fresh before the script"):
            self.say(line)
        self.use.record = Recorded(kept, record)
        tenancy.prepared()
        return self.use

    def _record(self) -> Record:
        return made_by(str(self.options.script), self.options.args)

    def _lock(self, folder: Path) -> None:
        with suppress(
            OSError
        ):  # what is wrong with it the probe has told, or the first commit does
            folder.mkdir(parents=True, exist_ok=True)
            lock = self.stack.enter_context((folder / LOCK).open("a"))
            if not _locked(lock, alone=self.others is None):
                other = StoredRun(open_storage(self.storage), self.options.rdzv_id).record()
                raise self._in_use(
                    f" ({other.command}, begun {ago(other.begun_at)}, pid {other.pid})"
                    if other
                    else ""
                )

    def _tenancy(self) -> tuple[Tenancy, str]:
        others, command = self.others, self._record().command
        mine = tenant_here(
            self.options.rdzv_id,
            command,
            group=others.group if others else "",
            meets=others.meets if others else (),
        )
        tenancy = Tenancy(
            lambda: open_storage(self.storage),
            mine,
            displaced=self._displaced,
            others_live=lambda: bool(others and others.live()),
            pace=self.pace,
        )
        self.stack.callback(lambda: tenancy.release(over=self.use.is_over(others)))
        try:
            return tenancy, tenancy.settle(ANSWER_WITHIN)
        except InUse as error:
            raise self._in_use(f" ({_told(error.tenant)})") from None
        except StorageRefused as error:
            raise UsageError(f"--storage {self.storage}: {error}") from None

    def _afresh(self, folder: Path | None, tenancy: Tenancy) -> Tenancy:
        """Set the earlier checkpoints aside; nothing is deleted.

        A folder that this node has for itself is renamed. In a storage that others share, the
        earlier checkpoints stay but are no longer used.
        """
        owner = self.options.rdzv_id
        commits = Commits(open_storage(self.storage), owner)
        try:
            if commits.latest() is None:
                return tenancy
            if folder is None or self.others is not None:
                before = commits.begin_afresh(take_over=self.options.take_over)
                self.say(
                    f"beginning afresh: step {before.step if before else 0} and earlier ones stay "
                    f"in {shown(self.storage)}, but are no longer used"
                )
                return tenancy
        except CheckpointsError as error:
            raise EnvironmentFailure(f"--fresh: {error}") from None
        tenancy.release(over=True)
        aside = _aside(folder)
        try:
            folder.rename(aside)
        except OSError as error:
            raise EnvironmentFailure(
                f"--fresh: {folder} cannot be moved aside: {error.strerror}; give another --storage"
            ) from None
        self.say(f"beginning afresh: earlier checkpoints are kept in {shown(str(aside))}")
        self._lock(folder)
        return self._tenancy()[0]

    def _check_owner(self) -> None:
        """Raise `UsageError` where the checkpoints are those of another run.

        Nothing of this run could be saved there.
        """
        commits = Commits(open_storage(self.storage), self.options.rdzv_id)
        try:
            commits.check_owner(take_over=self.options.take_over)
        except StorageOwned as error:
            raise UsageError(
                f"{error} (--take-over); --fresh --take-over begins afresh in it, and --storage "
                "names another one"
            ) from None
        except CheckpointsError:
            pass  # the first claim tells what is wrong

    def _check_maker(self, kept: StoredRun, mine: Record) -> None:
        """Raise `UsageError` where a run without a name was given the storage of another script.

        Its checkpoints would not fit, which each rank would tell; or they would fit, and be
        continued by the wrong script.
        """
        commit, record = kept.commit(), kept.record()
        made = record.of(commit) if record is not None and commit is not None else None
        meant = not self.options.storage or self.options.rdzv_id != UNNAMED
        if made is None or meant or self.options.take_over:
            return
        if PurePath(made.script).name != PurePath(mine.script).name:
            raise UsageError(
                f"--storage {self.storage} holds checkpoints of another run, {made.command}: "
                "name another --storage, begin afresh in it with --fresh, or go on from them with "
                "--take-over"
            )

    def _displaced(self, by: Tenant) -> None:
        self.use.displaced = True
        self.say(
            f"another run ({_told(by)}) has taken {shown(self.storage)}, because this one did not "
            "respond there: this one ends"
        )
        os.kill(os.getpid(), signal.SIGTERM)

    def _in_use(self, who: str) -> UsageError:
        return UsageError(
            f"another run{who} uses {shown(self.storage)}: wait for its end, or give this run "
            "another --rdzv-id or --storage"
        )


def _told(tenant: Tenant) -> str:
    return f"{tenant.command}, begun {ago(tenant.begun_at)}, pid {tenant.pid} on {tenant.host}"


def _locked(lock: IO[str], *, alone: bool) -> bool:
    """Lock the file; return False while another run on this machine holds it."""
    try:
        fcntl.flock(lock, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        pass
    return True


def _aside(folder: Path) -> Path:
    number = 1
    while (aside := folder.with_name(f"{folder.name}.{number}")).exists():
        number += 1
    return aside
