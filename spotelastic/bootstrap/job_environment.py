"""Prepares a worker node for its script: packages, variables, secrets, the set-up command."""

import hashlib
import logging
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from spotelastic import protection
from spotelastic.aws.artifacts.environments import BuildFailed, Environments
from spotelastic.aws.base.clients import Aws
from spotelastic.aws.base.identity import BUCKET, Identity
from spotelastic.aws.messaging.bucket import BucketObjects
from spotelastic.aws.security import secrets
from spotelastic.bootstrap.context import home
from spotelastic.bootstrap.phases import BootPhases
from spotelastic.bootstrap.reports import AGAIN, Say, repeated, reporting
from spotelastic.model.job import JobSpec
from spotelastic.redaction import redactor
from spotelastic.store.tls import TlsFiles

logger = logging.getLogger(__name__)

SCRATCH = "SPOTELASTIC_SCRATCH"
FOLDERS = {
    "HF_HOME": "huggingface",
    "TORCH_HOME": "torch",
    "TRITON_CACHE_DIR": "triton",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
}
"""Caches of common libraries, which are on the scratch disk, by the variable that names them. Their
defaults are on the root disk, which is smaller, and slower than disks of the instance.
"""
SETUP_WITHIN = 1800.0
TOLD_LINES = 20


class SetUpFailed(BuildFailed):
    """The --setup command failed on this node. It may succeed on another one."""


@dataclass(frozen=True, slots=True)
class World:
    python: str
    """The interpreter for workers; empty: the one that spotelastic runs on."""
    env: Mapping[str, str]
    secrets: tuple[str, ...]
    """Values in `env` that must stay secret."""


def make(
    aws: Aws, spec: JobSpec, me: Identity, code: Path, tls: TlsFiles, phases: BootPhases
) -> World | None:
    """Prepare this instance for the script in `code`, and report its progress to the run.

    Returns None if that is impossible. Wrong packages would be so on every node: the job has failed
    then, unless it had begun before.
    """
    objects = BucketObjects(aws, me.tag(BUCKET), spec.cluster)
    with reporting(spec, me.instance, tls) as reports:
        try:
            with repeated(reports.tell, AGAIN) as told, phases.phase("environment"):
                world = prepare(aws, objects, spec, me.instance, code, home(), told)
        except BuildFailed as error:
            logger.error(str(error))
            if not isinstance(error, SetUpFailed):
                reports.fail(str(error))
            return None
        phases.tell_once(reports, home() / "phases-told")
        return world


def prepare(
    aws: Aws, objects: BucketObjects, spec: JobSpec, node: str, code: Path, place: Path, tell: Say
) -> World:
    """Make the node ready for the script in the unpacked folder `code`.

    Raises `BuildFailed` if no other try can help, with the last lines of output.
    """
    hidden = secrets.get(aws, spec.cluster, spec.secrets) if spec.secrets else {}
    env = {**cache_folders(os.environ), **spec.env, **hidden}
    python = ""
    if spec.environment is not None:
        build = secrets.get(aws, spec.cluster, spec.build_secrets, "build")
        environments = Environments(objects, place / "environments", node, tell, secrets=build)
        found = environments.ensure(spec.environment, code)
        python = str(found)
        paths = [str(found.parent), env.get("PATH") or os.environ.get("PATH", "")]
        env |= {"PATH": os.pathsep.join(paths), "VIRTUAL_ENV": str(found.parent.parent)}
    if spec.setup:
        try:
            set_up(spec.setup, code, env, place, tell)
        except SetUpFailed as error:
            raise SetUpFailed(redactor(hidden.values())(str(error))) from None
    return World(python, env, tuple(hidden.values()))


def cache_folders(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables for a node with this environment. What it names already stays.

    None on the local cloud: its nodes share the disk, and the caches, of their machine.
    """
    scratch = environ.get(SCRATCH)
    if not scratch or "SPOTELASTIC_VOLUMES" in environ:
        return {}
    caches = {name: str(Path(scratch, "cache", folder)) for name, folder in FOLDERS.items()}
    return {name: folder for name, folder in caches.items() if name not in environ}


def set_up(command: str, code: Path, env: Mapping[str, str], place: Path, tell: Say) -> None:
    """Run the set-up command once on this node, and again only if it or the code has changed."""
    digest = hashlib.sha256(f"{code}\0{command}".encode()).hexdigest()
    done = place / f"set-up-{digest[:16]}"
    if done.exists():
        return
    tell(f"setting up: {command}")
    try:
        ended = subprocess.run(
            protection.without(["/bin/sh", "-ec", command]),
            cwd=code,
            env=os.environ | dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=SETUP_WITHIN,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise SetUpFailed(f"--setup did not end within {SETUP_WITHIN:.0f} s") from None
    if ended.returncode:
        lines = ended.stdout.decode(errors="replace").strip().splitlines()[-TOLD_LINES:]
        told = "\n".join(lines)
        raise SetUpFailed(f"--setup {command!r} ended with {ended.returncode}:\n{told}")
    done.touch()
