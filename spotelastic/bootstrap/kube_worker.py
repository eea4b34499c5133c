"""Runs a worker's pod of a cluster on Kubernetes: `spotelastic boot pod`.

The pod's first process starts the agent, in a process of its own, and starts it again if it was
killed. Once the agent has done its part, the pod waits for its end, as an instance does: a pod that
ended by itself would be started again.
"""

import logging
import os
import sys
from functools import partial
from pathlib import Path

from spotelastic.aws.artifacts.code_archive import unpack
from spotelastic.bootstrap.context import home, log_as, start
from spotelastic.bootstrap.supervisor import SupervisedProcess, supervise
from spotelastic.errors import EnvironmentFailure, SpotelasticError
from spotelastic.kubernetes import pod_files
from spotelastic.linux import name_process
from spotelastic.model.job import JobSpec

logger = logging.getLogger(__name__)

POD, GRACE = "SPOTELASTIC_POD", "SPOTELASTIC_GRACE"
ADDRESS, ZONE = "SPOTELASTIC_LOCAL_ADDR", "SPOTELASTIC_ZONE"
SECRETS = "SPOTELASTIC_SECRETS"
"""Variable with the names of those variables whose values are secret, separated by commas."""
FAILED, TRY_AGAIN = 1, 75
TIDY_WITHIN = 2.0
"""Seconds of a pod's grace that are left for what is killed at its end."""


def run() -> int:
    """Run the pod until it is told to end. Returns the exit code."""
    name_process("se-boot")
    log_as("boot", os.environ[POD])
    grace = float(os.environ[GRACE])
    agent = SupervisedProcess("agent", partial(start, "pod-agent"), ends=_is_final)
    return supervise((agent,), max(1.0, grace - TIDY_WITHIN), rests=True)


def agent() -> int:
    """Run the agent, in a process of its own."""
    from spotelastic.agent.agent_loop import run
    from spotelastic.agent.config import AgentConfig, HealthChecks
    from spotelastic.agent.workers.output import WholeLines
    from spotelastic.bootstrap.reports import reporting
    from spotelastic.bootstrap.storage_tenant import StorageTaken, holding
    from spotelastic.redaction import redactor

    node = os.environ[POD]
    log_as("boot", node)
    try:
        spec = _job()
        log_as("boot", node, spec.env)
        workdir = code_folder(spec, pod_files.FOLDER / pod_files.CODE_VOLUME)
        names = os.environ.get(SECRETS, "").split(",")
        hidden = [os.environ[name] for name in names if name in os.environ]
        blot = redactor(hidden)
        address = os.environ[ADDRESS]
        config = AgentConfig(
            run=spec.run,
            endpoints=spec.etcd,
            node=node,
            address=address,
            zone=os.environ.get(ZONE, ""),
            settings=spec.settings,
            command=(spec.script, *spec.args),
            workdir=workdir,
            # A node ends the processes that its path marks: others may see those of all pods.
            state=home() / f"agent-{node}",
            shm=Path("/dev/shm/spotelastic"),
            storage=spec.storage,
            spot=True,
            type="pod",
            health=HealthChecks(gpus=bool(spec.gpus)),
            code=spec.settings.code,
            env=spec.env,
            secrets=tuple(hidden),
            killed_after=float(os.environ[GRACE]),
            keep_daemon=True,
            line=WholeLines(lambda rank, _local_rank, text: _print(rank, blot(text))),
            metrics=(address, spec.metrics_port) if spec.metrics_port else None,
        )
        try:
            return holding(spec, lambda: run(config).code)
        except StorageTaken as error:
            logger.error(str(error))
            with reporting(spec, node) as reports:
                reports.fail(str(error))
            return FAILED
    # A pod may have found the job just before it was changed.
    except SpotelasticError as error:
        logger.error(str(error))
        return TRY_AGAIN


def _is_final(code: int) -> bool:
    return code >= 0 and code != TRY_AGAIN


def _job() -> JobSpec:
    import msgspec
    from spotelastic_checkpoints.decoders import from_json

    data = pod_files.job(pod_files.FOLDER / pod_files.JOB_VOLUME)
    try:
        return from_json(data, JobSpec)
    except msgspec.MsgspecError as error:
        raise EnvironmentFailure(
            f"the job is not described as this version does: {error}"
        ) from None


def code_folder(spec: JobSpec, shipped: Path) -> Path:
    """Return the folder with the job's code, prepared by its --setup command.

    `shipped` has what was shipped of it. Code that is in the image is where the container begins.
    Raises `EnvironmentFailure` for code that is not there, or is not what the job names.
    """
    from spotelastic.bootstrap.job_environment import set_up

    folder = home() / "code" / spec.code[:16] if spec.code else Path.cwd()
    if not folder.exists():
        archive = pod_files.code(shipped)
        if url := pod_files.url_of(archive):
            archive = _fetched(url)
        unpack(archive, spec.code, folder)
    if spec.setup:
        set_up(spec.setup, folder, spec.env, home(), logger.info)
    return folder


def _fetched(url: str) -> bytes:
    """Return the archive at a URL, which the pod reads as it reads the storage."""
    from spotelastic_checkpoints.errors import CheckpointsError
    from spotelastic_checkpoints.storage.open import open_storage

    folder, _, name = url.rpartition("/")
    try:
        storage = open_storage(folder)
        try:
            found = storage.get(name)
        finally:
            storage.close()
    except CheckpointsError as error:
        raise EnvironmentFailure(f"cannot read the code at {url}: {error}") from error
    if found is None:
        raise EnvironmentFailure(f"there is no code at {url}")
    return found.data


def _print(rank: int, text: str) -> None:
    """Write a worker's line in one piece, with its rank: `spotelastic logs` reads it back."""
    sys.stdout.write(f"[{rank}] {text}\n")
    sys.stdout.flush()
