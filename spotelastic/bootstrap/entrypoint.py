"""The `spotelastic boot` command, which every instance runs at its start.

    spotelastic boot              reads its identity from instance metadata, starts the parts of
                                  its role and restarts each that dies
      ├─ etcd                     control: the member whose address and disk it attaches
      ├─ spotelastic boot controller
      └─ spotelastic boot agent   worker: fetches the code and joins the job

    spotelastic boot pod          a worker's pod of a cluster on Kubernetes (kube_worker.py)
    spotelastic boot kube         its control pod (kube_control.py)

The parent stays small, and one thread of it starts all processes: they are bound to that thread.
"""

import logging
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from spotelastic.agent.config import HealthChecks
from spotelastic.agent.health import kernel_log
from spotelastic.aws.artifacts.code_archive import unpack
from spotelastic.aws.base import boot_variables
from spotelastic.aws.base.clients import Aws, calling
from spotelastic.aws.base.identity import BUCKET, CLUSTER, ROLE, Identity, from_imds
from spotelastic.aws.base.names import Names
from spotelastic.aws.messaging import log_group
from spotelastic.aws.messaging.bucket import BucketObjects
from spotelastic.aws.messaging.log_group import LogStream
from spotelastic.aws.node import hardware, mounts
from spotelastic.aws.node.hardware import Hardware
from spotelastic.aws.node.log_shipper import LogShipper
from spotelastic.aws.provider.notices import ImdsNotices
from spotelastic.bootstrap import (
    container,
    context,
    control_node,
    first_rehearsal,
    image_pull,
    job_environment,
    kube_control,
    kube_worker,
)
from spotelastic.bootstrap.container import NVIDIA
from spotelastic.bootstrap.job_environment import SCRATCH
from spotelastic.bootstrap.phases import PHASES, BootPhases
from spotelastic.bootstrap.reports import AGAIN, repeated, reporting
from spotelastic.bootstrap.supervisor import SupervisedProcess, supervise
from spotelastic.certificates import WORKER_NAME
from spotelastic.errors import EnvironmentFailure, Unavailable, UsageError
from spotelastic.linux import name_process
from spotelastic.model.job import JobSpec
from spotelastic.store.tls import TlsFiles

if TYPE_CHECKING:
    from spotelastic.agent.config import AgentConfig

logger = logging.getLogger(__name__)

TRY_AGAIN = 75
"""Exit code of a part that could not start yet (EX_TEMPFAIL)."""
SHUT_DOWN = 78
"""Exit code if no other try on this instance can help (EX_CONFIG).

The instance's unit, or the local cloud, then shuts it down. The controller counts an instance that
never joined as a failed boot.
"""
NO_CONTAINER = 125
"""Docker's own exit code if it failed, not the container."""
FAILED = 1
"""Exit code of an agent whose job has failed."""
PASSED_ON = (
    *(SCRATCH, PHASES, "AWS_REGION", "AWS_DEFAULT_REGION", "PIP_RETRIES"),
    *("AWS_METADATA_SERVICE_TIMEOUT", "AWS_METADATA_SERVICE_NUM_ATTEMPTS"),
    *boot_variables.NAMES,
)
"""Variables of the node that hold in a container, too."""
CONTAINED = "SPOTELASTIC_CONTAINED"
"""Variable that tells an agent that it is inside its container already."""


def main(args: Sequence[str]) -> int:
    """Run `spotelastic boot`, or one of its parts. Returns the exit code."""
    parts: Mapping[str, Callable[[], int]] = {
        "": boot,
        "agent": _agent,
        "controller": control_node.controller,
        "pod": kube_worker.run,
        "pod-agent": kube_worker.agent,
        "kube": kube_control.run,
        "kube-controller": kube_control.controller,
    }
    part = parts.get(" ".join(args))
    if part is None:
        raise UsageError("spotelastic boot takes no arguments: it is what instances run")
    return part()


def boot() -> int:
    """Run this instance's role until it is done (worker) or told to end (control)."""
    name_process("se-boot")
    context.log_as("boot")
    me = from_imds(context.imds())
    context.log_as("boot", me.instance)
    logger.info(f"{me.instance} in {me.zone}: {me.tag(ROLE)} of {me.tag(CLUSTER)}")
    return control_node.run(me) if me.tag(ROLE) == "control" else _worker()


# -- worker --------------------------------------------------------------------------------------


def _worker() -> int:
    phases = BootPhases.of_script(Path(sys.prefix).parent / "phases")
    with phases.phase("disks"):
        os.environ[SCRATCH] = str(_scratch())
    phases.hand_on()
    return supervise((SupervisedProcess("agent", partial(context.start, "agent"), ends=_is_final),))


def _scratch() -> Path:
    try:
        return hardware.of_this_instance().scratch(context.home())
    except EnvironmentFailure as error:  # which may stay as it is: a script that needs it is slower
        logger.warning(f"{error}: scratch is on the root disk")
        return hardware.scratch_below(context.home())


def _is_final(code: int) -> bool:
    """Whether an agent is not started again. One that was killed, or could not start yet, is."""
    return code >= 0 and code not in (TRY_AGAIN, NO_CONTAINER)


def _agent() -> int:
    from spotelastic.agent.agent_loop import run
    from spotelastic.agent.shutdown import STUCK

    context.log_as("boot")
    try:
        phases = BootPhases.of_variables(os.environ)
        with phases.phase("job"):
            me = from_imds(context.imds())
            context.log_as("boot", me.instance)
            aws = Aws(me.region, account=me.account)
            spec = context.job(aws, me)
            context.log_as("boot", me.instance, spec.env)
            parameter = Names(spec.cluster).worker_certificate
            tls = context.certificate(aws, parameter)
        if CONTAINED not in os.environ:
            mounted = mounts.ensure(spec.mounts, me.region)
            if spec.container:
                return _continue_in_image(spec, me, tls, phases, mounted)
        with phases.phase("job"):
            workdir = _code(aws, me, spec)
        found = job_environment.make(aws, spec, me, workdir, tls, phases)
        if found is None:
            return SHUT_DOWN
        objects = BucketObjects(aws, me.tag(BUCKET), spec.cluster)
        if not first_rehearsal.comes_back(objects, spec, me.instance, workdir, tls, found, phases):
            return SHUT_DOWN
        context.keep_fresh(aws, parameter)
        logs = LogShipper(aws, spec.log_group)
        try:
            code = run(_agent_config(aws, me, spec, workdir, tls, found, logs)).code
            # Its unit would start it again, and again: a job that has failed is no failure of ours.
            return {STUCK: SHUT_DOWN, FAILED: 0}.get(code, code)
        finally:
            logs.close()
    # A node that does not match the others may have read the job just before it was changed.
    except (Unavailable, EnvironmentFailure, UsageError) as error:
        logger.error(str(error))
        return TRY_AGAIN


def _agent_config(
    aws: Aws,
    me: Identity,
    spec: JobSpec,
    workdir: Path,
    tls: TlsFiles,
    found: job_environment.World,
    logs: LogShipper,
) -> "AgentConfig":
    """Return how an agent of the job runs on this instance, with the script in `workdir`."""
    from spotelastic.agent.config import AgentConfig
    from spotelastic.agent.workers.output import WholeLines
    from spotelastic.redaction import redactor

    blot, born = redactor(found.secrets), log_group.born(spec.born_at)
    has_efa = bool(container.efa(list(container.DEVICES.glob("*"))))
    return AgentConfig(
        run=spec.run,
        endpoints=spec.etcd,
        node=me.instance,
        address=me.address,
        zone=me.zone,
        settings=replace(spec.settings, workers=spec.workers_on(me.type)),
        command=(spec.script, *spec.args),
        workdir=workdir,
        state=context.home() / "agent",
        shm=Path(os.environ.get("SPOTELASTIC_SHM") or f"/dev/shm/spotelastic-{spec.cluster}"),
        storage=spec.storage,
        tls=tls,
        daemon_tls=tls,
        daemon_name=WORKER_NAME,
        notices=ImdsNotices(context.imds(), me.instance),
        spot=me.spot,
        type=me.type,
        health=health_checks_of(
            hardware.of_this_instance(),
            spec.gpus_on(me.type),
            found.env,
            context.home(),
            efa=has_efa,
        ),
        efa=has_efa,
        code=spec.settings.code,
        token=_token(aws, spec),
        python=found.python or sys.executable,
        env=found.env,
        secrets=found.secrets,
        keep_daemon=True,
        in_cluster=True,
        line=WholeLines(
            lambda rank, _local_rank, text: logs.write(
                str(LogStream(born, me.instance, rank)), blot(text)
            )
        ),
        metrics=(me.address, spec.metrics_port) if spec.metrics_port else None,
    )


def _continue_in_image(
    spec: JobSpec, me: Identity, tls: TlsFiles, phases: BootPhases, mounted: tuple[Path, ...]
) -> int:
    """Start this boot again inside of the job's image, in place of this process.

    Returns an exit code only where the image cannot be used.
    """
    if not container.possible():
        logger.error(
            f"--image {spec.container}: this machine has no docker: take types with GPUs, "
            "whose machine image brings it, or no --image"
        )
        return SHUT_DOWN
    if not _pulled(spec, me, tls, phases):
        return SHUT_DOWN
    phases.hand_on()
    return _enter_container(spec.container, mounted)


def _pulled(spec: JobSpec, me: Identity, tls: TlsFiles, phases: BootPhases) -> bool:
    """Whether the job's image is on this instance now. The run is told while it is pulled."""
    with reporting(spec, me.instance, tls) as reports, repeated(reports.tell, AGAIN) as tell:
        try:
            with phases.phase("image"):
                image_pull.pull(spec.container, tell)
        except EnvironmentFailure as error:
            logger.error(str(error))
            return False
    return True


def _enter_container(image: str, mounted: tuple[Path, ...]) -> NoReturn:
    """Replace this process by the client of a container that runs the agent. Never returns."""
    installed = Path(sys.prefix).parent
    environ = {CONTAINED: "1", "HOME": str(Path.home())}
    environ |= {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    # What each start of the agent installs is downloaded once; the image's Python is ours alone.
    environ |= {"PIP_CACHE_DIR": str(context.home() / "pip"), "PIP_BREAK_SYSTEM_PACKAGES": "1"}
    box = container.JobContainer(
        image=image,
        wheel=next(installed.glob("*.whl")),
        folders=(installed, context.home(), Path(os.environ[SCRATCH]), *mounted),
        environ=environ,
        gpus=container.NVIDIA.exists(),
        devices=container.efa(list(container.DEVICES.glob("*"))),
    )
    words = container.command(box)
    # A container outlives its client that was killed, and its name stays taken.
    remove = ("docker", "rm", "--force", container.NAME)
    subprocess.run(remove, capture_output=True, check=False, timeout=60)
    context.end_of_log()
    os.execvp(words[0], words)


def _code(aws: Aws, me: Identity, spec: JobSpec) -> Path:
    """Return the folder with the job's code, which is fetched once and verified."""
    folder = context.home() / "code" / spec.code[:16]
    if not folder.exists():
        data = BucketObjects(aws, me.tag(BUCKET), spec.cluster).get(f"code/{spec.code}.tar.gz")
        if data is None:
            raise EnvironmentFailure(f"the bucket has no code {spec.code[:16]} for {spec.cluster}")
        unpack(data, spec.code, folder)
    return folder


def _token(aws: Aws, spec: JobSpec) -> str:
    name = Names(spec.cluster).token
    with calling(f"read the secret {name}"):
        return str(aws.ssm.get_parameter(Name=name, WithDecryption=True)["Parameter"]["Value"])


OFF = "SPOTELASTIC_NO_GPU_CHECK"
"""Variable of the job: with 1 its nodes' GPUs are neither checked nor watched."""


def health_checks_of(
    hardware: Hardware, gpus: int, env: Mapping[str, str], home: Path, *, efa: bool
) -> HealthChecks:
    """Return the checks of this node, whose type has so many `gpus`. `env`: the job's variables.

    A node of the local cloud has none of its type's GPUs. A kernel log that is named, for
    tests, is followed all the same; a relative path is one below `home`.
    """
    given = env.get(kernel_log.VARIABLE) or os.environ.get(kernel_log.VARIABLE)
    log = home / (given or kernel_log.PATH)
    promised = gpus if hardware.has_devices else 0
    if env.get(OFF) == "1":
        return HealthChecks(network=efa)
    checked = bool(promised or given or (hardware.has_devices and NVIDIA.exists()))
    return HealthChecks(gpus=checked, promised=promised, network=efa, kernel_log=log)
