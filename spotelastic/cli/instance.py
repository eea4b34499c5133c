"""What the programs of a booted instance have in common."""

import os
import subprocess
import sys
from pathlib import Path

from spotelastic.aws.clients import Aws
from spotelastic.aws.identity import BUCKET, CLUSTER, Identity
from spotelastic.aws.imds import DEFAULT_URL
from spotelastic.aws.objects import Objects
from spotelastic.cli.supervise import Process
from spotelastic.errors import EnvironmentFailure
from spotelastic.model.job import JobSpec


def job(aws: Aws, me: Identity) -> JobSpec:
    spec = Objects(aws, me.tag(BUCKET), me.tag(CLUSTER)).job()
    if spec is None:
        raise EnvironmentFailure(f"the bucket has no job for the cluster {me.tag(CLUSTER)}")
    return spec


def start(part: str) -> Process:
    """A part as a process of its own, of this very installation."""
    command = [sys.executable, "-m", "spotelastic", "boot", part]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL)


def imds() -> str:
    return os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT", DEFAULT_URL).rstrip("/")


def home() -> Path:
    """Short: sockets lie below it, and their paths are limited to 107 characters."""
    folder = Path.home() / ".se"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def say(line: str) -> None:
    print(f"boot: {line}", flush=True)
