"""Runs `spotelastic run`: one node of an elastic job, on a machine that already exists.

The flags are in `flags.py`, their meaning in `options.py`, the rendezvous in
`rendezvous_config.py`. Everything is checked before anything starts.
"""

import argparse
import logging
import os
import resource
import signal
import socket
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from spotelastic_checkpoints import log_records

from spotelastic.agent.config import AgentConfig, Entry
from spotelastic.errors import EnvironmentFailure, SpotelasticError, UsageError
from spotelastic.launcher import options as launcher_options
from spotelastic.launcher import run_storage
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
from spotelastic.launcher.run_folders import OWNER_LOCK, Folders, own_folders, sweep
from spotelastic.launcher.storage_probe import probe
from spotelastic.launcher.terminal import print_line, printer
from spotelastic.model.job import ALLOW_UNCOMMITTED

if TYPE_CHECKING:
    from spotelastic.agent.agent_loop import AgentResult

logger = logging.getLogger(__name__)

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
    """Log as the flags say, on stderr, while the block lasts."""
    style = log_records.LogStyle(options.log_format, options.log_level)
    return log_records.logging_to(
        "[spotelastic] ", style, lambda line: print_line(line, sys.stderr)
    )


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


def serve(
    options: argparse.Namespace, entry: Entry, command: tuple[str, ...], folders: Folders
) -> "AgentResult":
    """Run a node that runs `command` until the job ends. Logs are kept if the job failed."""
    from spotelastic.agent.agent_loop import AgentResult

    where = meeting(options, *launcher_options.sizes(options.nnodes))
    storage = run_storage.storage_url(options)
    configure = _plan(options, entry, command, where, storage)
    probe(storage, options.rdzv_id, chosen=bool(options.storage))
    if options.log_dir:
        _check_logs(options.log_dir)
    ignored = given(options, WITHOUT_EFFECT)
    if ignored:
        logger.warning(f"flags without effect: {', '.join(ignored)} (see --help)")
    sweep()
    ended = AgentResult(128 + signal.SIGINT, None)
    try:
        with _rendezvous_and_storage(options, storage, where, folders) as (rendezvous, use):
            ended = _run(configure(rendezvous, folders), rendezvous)
            use.ended(ended.code)
            if ended.code in (0, 1):
                well = ended.job is not None and ended.job.state == "succeeded"
                logger.info(run_storage.outcome(storage, options.rdzv_id, well=well))
            if use.displaced:
                ended = AgentResult(2, ended.job)
    except KeyboardInterrupt:  # while waiting for the etcd of other nodes
        pass
    finally:
        if ended.code == 1 and not options.log_dir:
            (folders.logs / OWNER_LOCK).unlink(missing_ok=True)  # without it they are kept
    return ended


def _check_logs(folder: str) -> None:
    """Make the folder of --log-dir. Raises `UsageError` where nothing can be written there."""
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UsageError(f"--log-dir {folder}: {error.strerror}") from None


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
    from spotelastic.agent.agent_loop import run

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
    """Check all options, and return a function that makes the agent's configuration.

    The function is called after the rendezvous.
    """
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
    answers = sys.stdin is not None and sys.stdin.isatty()
    metrics = launcher_options.metrics(options)
    env = {ALLOW_UNCOMMITTED: "1"} if options.allow_uncommitted else {}
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
            token=rendezvous.token,
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
            health=launcher_options.health_checks(options),
            output=output,
            signals=signals,
            node_rank=node_rank,
            warm=not options.no_warm,
            stays=rendezvous.member is not None,
            preload=preload,
            grace=grace,
            killed_after=options.grace_period,
            take_over=options.take_over,
            line=printer(prefix, sys.stdout, answers=answers),
            error_line=printer(prefix, sys.stderr, answers=answers),
            metrics=metrics,
        )

    return configure
