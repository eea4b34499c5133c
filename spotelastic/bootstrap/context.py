"""Helpers that all programs of a booting instance share."""

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from spotelastic_checkpoints import log_records
from spotelastic_checkpoints.log_records import LogStyle

from spotelastic.aws.artifacts import boot_artifacts
from spotelastic.aws.artifacts.boot_artifacts import BootRelease
from spotelastic.aws.base.clients import Aws
from spotelastic.aws.base.identity import BUCKET, CLUSTER, Identity
from spotelastic.aws.base.imds import DEFAULT_URL
from spotelastic.aws.messaging.bucket import BucketObjects
from spotelastic.aws.security import certificates
from spotelastic.bootstrap.background_log import BackgroundLog
from spotelastic.bootstrap.supervisor import Process
from spotelastic.cloud.bucket import ClusterBucket
from spotelastic.errors import EnvironmentFailure, told
from spotelastic.model.job import JobSpec
from spotelastic.store.tls import TlsFiles

logger = logging.getLogger(__name__)

REFRESH = 3600.0
"""Seconds between two checks whether `up` has renewed the certificate."""


def job(aws: Aws, me: Identity) -> JobSpec:
    spec = BucketObjects(aws, me.tag(BUCKET), me.tag(CLUSTER)).job()
    if spec is None:
        raise EnvironmentFailure(f"the bucket has no job for the cluster {me.tag(CLUSTER)}")
    return spec


def certificate(aws: Aws, parameter: str) -> TlsFiles:
    """Fetch the certificate that `up` stored under `parameter`, and return its files."""
    return TlsFiles(*certificates.fetch(aws, parameter).write(home() / "tls"))


def keep_fresh(aws: Aws, parameter: str, every: float = REFRESH) -> threading.Event:
    """Check for a renewed certificate, on a thread of its own, until the returned event is set.

    `every` is the number of seconds between two checks.

    etcd reads the files at every handshake; its clients read them when a connection is refused.
    """
    over = threading.Event()

    def look() -> None:
        while not over.wait(every):
            try:
                certificate(aws, parameter)
            except Exception as error:  # the next look may succeed
                logger.warning(told(error), exc_info=True)

    threading.Thread(target=look, name="certificate", daemon=True).start()
    return over


def start(part: str) -> Process:
    """Start a part as a process of its own, from this very installation."""
    return start_module("spotelastic", ("boot", part))


def start_module(name: str, arguments: Sequence[str]) -> Process:
    """Start a module of this installation as a process of its own."""
    command = [sys.executable, "-m", name, *arguments]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL)


def imds() -> str:
    return os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT", DEFAULT_URL).rstrip("/")


def home() -> Path:
    """Return the folder for a node's files.

    It is short: sockets lie below it, and their paths are limited to 107 characters.
    """
    folder = Path.home() / ".se"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def install_etcd(objects: ClusterBucket, release: BootRelease) -> None:
    """Put an etcd on this process's PATH."""
    folder = home() / f"etcd-{release.version}"
    boot_artifacts.install(objects, release, folder)
    os.environ["PATH"] = f"{folder}{os.pathsep}{os.environ['PATH']}"


def log_as(program: str, node: str = "", variables: Mapping[str, str] | None = None) -> None:
    """Start the log of this process: on stderr, as the environment or the job's variables say.

    Lines for people begin with the program's name.
    """
    style = LogStyle.of({**os.environ, **(variables or {})})
    log_records.start(f"{program}: ", style, _background())
    log_records.node(node)


def end_of_log() -> None:
    """Write the last lines, before this process becomes another program."""
    _background().flush()


@cache
def _background() -> BackgroundLog:
    return BackgroundLog(log_records.to_stderr)
