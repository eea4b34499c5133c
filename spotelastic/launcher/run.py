"""Runs `spotelastic run`: one node of an elastic job, on a machine that already exists.

The flags are in `flags.py`, their meaning in `options.py`, the rendezvous in
`rendezvous_config.py`. Everything is checked before anything starts.
"""

import argparse
import fcntl
import logging
import os
import resource
import select
import shutil
import signal
import socket
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, TextIO

from spotelastic_checkpoints import log_records

from spotelastic.agent.config import AgentConfig, Entry
from spotelastic.errors import EnvironmentFailure, SpotelasticError
from spotelastic.launcher import bagua, run_storage
from spotelastic.launcher import options as launcher_options
from spotelastic.launcher.etcd_bootstrap import (
    Rendezvous,
    leave_rendezvous,
    local_address,
    meet,
    own_address,
)
from spotelastic.launcher.flags import WITHOUT_EFFECT, given, parse
from spotelastic.launcher.other_nodes import others_at
from spotelastic.launcher.rendezvous_config import RendezvousConfig, meeting
from spotelastic.launcher.storage_probe import probe
from spotelastic.linux import END_WITHIN, end_marked, handled, mark
from spotelastic.model.job import ALLOW_UNCOMMITTED
from spotelastic.signals import STOPPING

if TYPE_CHECKING:
    from spotelastic.agent.run import AgentResult

logger = logging.getLogger(__name__)

PREFIX = "spotelastic-run-"
"""Prefix of a run's folders; the pid of the run follows."""
SHARED_MEMORY = Path("/dev/shm")
OWNER_LOCK, DAEMON_LOCK = "owner", "lock"
"""Files that a run and its checkpoint daemon keep locked while they live.

By them another run recognizes a folder in use, even if its processes are in another container.
"""

LOGS_PREFIX = "spotelastic-logs-"
"""Prefix of a job's log folder if --log-dir names none.

The logs of a job that failed are kept, and then have no lock.
"""


@dataclass(frozen=True, slots=True)
class Folders:
    """The folders of this node's run.

    They are removed at its end, except for the logs of a failed job.
    """

    state: Path
    shm: Path
    logs: Path


OPEN_FILES = 256
"""Fewest open files that a node needs; etcd does not start with less."""

Configure = Callable[[Rendezvous, Folders], AgentConfig]


def main(args: Sequence[str]) -> int:
    """Run this machine's node until the job ends; return the exit code."""
    options = parse(args)
    with logging_of(options):
        try:
            return _main(options)
        except SpotelasticError as error:
            if options.log_format == log_records.TEXT:
                raise  # the command's own line says it
            logger.error(str(error))
            return error.exit_code


def logging_of(options: argparse.Namespace) -> AbstractContextManager[None]:
    """Logs as the flags say, on stderr, while the block lasts."""
    style = log_records.LogStyle(options.log_format, options.log_level)
    return log_records.logging_to("[spotelastic] ", style, lambda line: _print(line, sys.stderr))


def _main(options: argparse.Namespace) -> int:
    _check_machine()
    entry, command = launcher_options.command(options, Path.cwd(), os.environ)
    with own_folders() as folders:
        return serve(options, entry, command, folders).code


def _check_machine() -> None:
    """Check what nothing would work without: /proc and enough open files."""
    if not Path("/proc/self/stat").exists():
        raise EnvironmentFailure("/proc is not mounted: a run finds its processes there")
    few, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if few < OPEN_FILES and few != resource.RLIM_INFINITY:
        if most < OPEN_FILES and most != resource.RLIM_INFINITY:
            raise EnvironmentFailure(
                f"this process may open {most} files: a run needs {OPEN_FILES} (ulimit -n)"
            )
        resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES, most))


@contextmanager
def own_folders() -> Iterator[Folders]:
    """Create the folders of this run, and remove them afterwards except for logs that are kept.

    A signal that arrives while no agent handles it ends the block, by KeyboardInterrupt or
    SystemExit.
    """
    mine = f"{os.getpid()}-{uuid.uuid4().hex[:12]}"
    temporary = _temporary()
    state, shm = temporary / f"{PREFIX}{mine}", SHARED_MEMORY / f"{PREFIX}{mine}"
    with ExitStack() as stack:
        stack.enter_context(handled(STOPPING, _stop))
        logs = temporary / f"{LOGS_PREFIX}{mine}"
        for folder in (state, shm, logs):
            stack.callback(_remove, folder)
            try:
                folder.mkdir(0o700)
                stack.enter_context(_locked(folder))
            except OSError as error:
                raise EnvironmentFailure(
                    f"{folder.parent}: {error.strerror}: a run needs to write there"
                ) from error
        yield Folders(state, shm, logs)


def _temporary() -> Path:
    try:
        return Path(tempfile.gettempdir())
    except OSError as error:
        raise EnvironmentFailure(
            "no folder for temporary files can be written to: make room in /tmp, or set TMPDIR"
        ) from error


def _remove(folder: Path) -> None:
    if (folder / OWNER_LOCK).exists() or not any(folder.glob("*")):
        shutil.rmtree(folder, ignore_errors=True)


def _stop(number: int, _frame: FrameType | None) -> None:
    """Stop at the first signal; later ones must not disturb the clean-up."""
    for each in STOPPING:
        signal.signal(each, signal.SIG_IGN)
    raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, which gets its name only once it is held.

    So a folder whose lock is free was left behind.
    """
    new = folder / f"{OWNER_LOCK}.new"
    with new.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        new.rename(folder / OWNER_LOCK)
        yield


def serve(
    options: argparse.Namespace, entry: Entry, command: tuple[str, ...], folders: Folders
) -> "AgentResult":
    """Run a node that runs `command` until the job ends. Logs are kept if the job failed."""
    from spotelastic.agent.run import AgentResult

    where = meeting(options, *launcher_options.sizes(options.nnodes))
    storage = run_storage.storage_url(options)
    configure = _plan(options, entry, command, where, storage)
    probe(storage, options.rdzv_id, chosen=bool(options.storage))
    ignored = given(options, WITHOUT_EFFECT)
    if ignored:
        logger.warning(f"flags without effect: {', '.join(ignored)} (see --help)")
    _sweep()
    ended = AgentResult(128 + signal.SIGINT, None)
    try:
        with _rendezvous_and_storage(options, storage, where, folders) as (rendezvous, use):
            ended = _run(configure(rendezvous, folders), rendezvous)
            use.ended(ended.code)
            if use.displaced:
                ended = AgentResult(2, ended.job)
    except KeyboardInterrupt:  # while waiting for the etcd of other nodes
        pass
    finally:
        if ended.code == 1 and not options.log_dir:
            (folders.logs / OWNER_LOCK).unlink(missing_ok=True)  # without it they are kept
    return ended


@contextmanager
def _rendezvous_and_storage(
    options: argparse.Namespace, storage: str, where: RendezvousConfig, folders: Folders
) -> Iterator[tuple[Rendezvous, run_storage.StorageUse]]:
    """Yield the rendezvous and the storage.

    A node that is alone claims the storage before it starts an etcd.
    """
    etcd = folders.state / "etcd"
    if where.role == "alone":
        with (
            run_storage.claimed(options, storage, others=None, say=logger.info) as use,
            meet(where, etcd, logger.info) as rendezvous,
        ):
            yield rendezvous, use
    else:
        with (
            meet(where, etcd, logger.info) as rendezvous,
            others_at(rendezvous, options.rdzv_id) as others,
            run_storage.claimed(options, storage, others=others, say=logger.info) as use,
        ):
            yield rendezvous, use


def _run(config: AgentConfig, rendezvous: Rendezvous) -> "AgentResult":
    from spotelastic.agent.run import run

    ended = run(config)
    leave_rendezvous(rendezvous, config.run, ended=ended.code in (0, 1))
    return ended


def _plan(
    options: argparse.Namespace,
    entry: Entry,
    command: tuple[str, ...],
    where: RendezvousConfig,
    storage: str,
) -> Configure:
    """Check all options; return a function that makes the agent's configuration after the
    rendezvous."""
    environ, workdir = os.environ, Path.cwd()
    settings = launcher_options.settings(options)
    launcher_options.check_devices(options, settings.workers, environ)
    output, signals = (
        launcher_options.output(options),
        launcher_options.signals(options.signals_to_handle),
    )
    grace = launcher_options.grace(options, environ)
    preload = launcher_options.preload(options)
    prefix = launcher_options.prefix(options, environ)
    env = bagua.environment(options, environ)
    if options.allow_uncommitted:
        env = {**env, ALLOW_UNCOMMITTED: "1"}
    address = local_address(options.local_addr) if options.local_addr else ""
    node_rank = launcher_options.node_rank(options)
    node = options.node_id or f"{socket.gethostname()}-{uuid.uuid4().hex[:6]}"
    log_records.node(node)

    def configure(rendezvous: Rendezvous, folders: Folders) -> AgentConfig:
        return AgentConfig(
            run=options.rdzv_id,
            endpoints=rendezvous.endpoints,
            tls=rendezvous.tls,
            daemon_tls=where.daemon_tls,
            node=node,
            address=address or rendezvous.address or own_address(),
            zone=options.zone,
            settings=settings,
            command=command,
            workdir=workdir,
            state=folders.state,
            shm=folders.shm,
            logs=Path(options.log_dir).absolute() / node / "logs"
            if options.log_dir
            else folders.logs,
            storage=storage,
            master_port=where.master_port,
            entry=entry,
            code=launcher_options.code(entry, command),
            role=options.role,
            env=env,
            virtual_local_rank=options.virtual_local_rank,
            numa=options.numa_binding,
            output=output,
            signals=signals,
            node_rank=node_rank,
            warm=not options.no_warm,
            stays=rendezvous.member is not None,
            preload=preload,
            grace=grace,
            take_over=options.take_over,
            line=_printer(prefix, sys.stdout),
            error_line=_printer(prefix, sys.stderr),
        )

    return configure


def _sweep() -> None:
    """Remove folders and processes of runs that were killed before they could clean up."""
    commands = [_command(entry) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    temporary = Path(tempfile.gettempdir())
    places = ((temporary, PREFIX), (SHARED_MEMORY, PREFIX), (temporary, LOGS_PREFIX))
    for parent, prefix in places:
        for folder in parent.glob(f"{prefix}*"):
            in_use = any(str(folder).encode() in command for command in commands)
            if not in_use and _is_left(folder):
                end_marked(mark(folder), END_WITHIN)
                shutil.rmtree(folder, ignore_errors=True)


def _is_left(folder: Path) -> bool:
    """Whether neither the folder's owner nor its checkpoint daemon lives, in any container."""
    try:
        with (folder / OWNER_LOCK).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        with suppress(FileNotFoundError), (folder / DAEMON_LOCK).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:  # held, being created, or another user's
        return False
    return True


def _command(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:  # it has ended
        return b""


def _printer(prefix: Callable[[int, int], str], to: TextIO) -> Callable[[int, int, str], None]:
    return lambda rank, local_rank, line: _print(f"{prefix(rank, local_rank)}{line}", to)


def _print(line: str, to: TextIO | None) -> None:
    """Print a line; never raises, as training goes on without it.

    A line that ends in a carriage return is an update, and the next line overwrites it.
    """
    if to is None:  # it was already closed when this process started
        return
    text = line if line.endswith("\r") else f"{line}\n"
    try:
        _write(text, to)
    except (OSError, ValueError) as error:
        _silence(to)
        # The reader of a pipe has closed it (no message), or a disk is full.
        if to is not sys.stderr and not isinstance(error, BrokenPipeError):
            why = error.strerror if isinstance(error, OSError) else error
            logger.warning(f"the output of workers is no longer shown: {why}")


def _write(text: str, to: TextIO) -> None:
    """Write all of it, also into a pipe that is full and non-blocking."""
    encoding = getattr(to, "encoding", None) or "utf-8"
    data = text.encode(encoding, "backslashreplace")
    try:
        fd = to.fileno()
    except (OSError, AttributeError):  # a notebook's stream has no file descriptor
        to.write(data.decode(encoding))
        to.flush()
        return
    to.flush()
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(fd, rest) :]
        except BlockingIOError:
            select.select([], [fd], [])


def _silence(to: TextIO) -> None:
    with suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, to.fileno())
        os.close(nowhere)
