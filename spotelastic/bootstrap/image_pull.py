"""Pulls the container image of a job, and tells how far it is.

It logs in where Amazon's registry asks for that.
"""

import logging
import re
import subprocess
import threading
import time
from base64 import b64decode
from collections.abc import Callable
from dataclasses import dataclass

from spotelastic_checkpoints.backoff import Backoff

from spotelastic.aws.base.clients import Aws, calling
from spotelastic.bootstrap.reports import Say
from spotelastic.clock import steady
from spotelastic.errors import EnvironmentFailure, Unavailable

logger = logging.getLogger(__name__)

TRIES = 6
COMMAND_WITHIN = 60.0
_ECR = re.compile(r"(\d{12}\.dkr\.ecr(?:-fips)?\.([a-z0-9-]+)\.amazonaws\.com(?:\.cn)?)/.+")
_BEGUN = "Pulling fs layer"
_DONE = ("Pull complete", "Already exists")


@dataclass(frozen=True, slots=True)
class PullPolicy:
    """Times of a pull, in seconds."""

    within: float = 3600.0
    """How long one try may take."""
    tell_every: float = 60.0
    """How often progress is told."""
    backoff: Backoff = Backoff(1.0, 16.0)


@dataclass(frozen=True, slots=True)
class EcrRegistry:
    """A private registry of Amazon's, as it stands in an image's name."""

    host: str
    region: str


def registry(image: str) -> EcrRegistry | None:
    """Return the registry of Amazon's that the image is in, if it is (pure)."""
    found = _ECR.fullmatch(image)
    return EcrRegistry(found[1], found[2]) if found else None


def ecr_password(region: str) -> str:
    """Return the password for the registries of a region, by the instance's role."""
    with calling("log in to the image's registry"):
        (data,) = Aws(region).ecr.get_authorization_token()["authorizationData"]
    return b64decode(data["authorizationToken"]).decode().partition(":")[2]


def pull(
    image: str,
    tell: Say,
    policy: PullPolicy | None = None,
    password: Callable[[str], str] = ecr_password,
) -> None:
    """Pull the image unless it is on this instance already.

    Raises `EnvironmentFailure`, with docker's last line, if no try succeeds.
    """
    policy = policy or PullPolicy()
    if _docker("image", "inspect", image) == "":
        return None
    backoff, last = policy.backoff, ""
    for left in reversed(range(TRIES)):
        try:
            if its := registry(image):
                _log_in(its, password)
            return _pull(image, tell, policy)
        except (Unavailable, EnvironmentFailure) as error:
            last = str(error)
            logger.warning(f"--image {image}: {last}")
        backoff = backoff.failed()
        if left:
            time.sleep(backoff.bound)
    raise EnvironmentFailure(f"--image {image} cannot be pulled: {last}")


def _log_in(its: EcrRegistry, password: Callable[[str], str]) -> None:
    words = ("login", "--username", "AWS", "--password-stdin", its.host)
    if failed := _docker(*words, text=password(its.region)):
        raise EnvironmentFailure(f"docker login to {its.host}: {failed}")


def _pull(image: str, tell: Say, policy: PullPolicy) -> None:
    tell(f"pulling the image {image}")
    told_at, begun, done, last = steady(), 0, 0, ""
    with subprocess.Popen(
        ["docker", "pull", image],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None
        guard = threading.Timer(policy.within, process.kill)
        guard.daemon = True
        guard.start()
        for line in process.stdout:
            last = line.strip() or last
            begun += line.count(_BEGUN)
            done += last.endswith(_DONE)
            begun = max(begun, done)
            if last.endswith(_DONE) and steady() >= told_at + policy.tell_every:
                told_at = steady()
                tell(f"pulling the image {image}: {done} of {begun} layers")
        guard.cancel()
    if process.returncode:
        raise EnvironmentFailure(last or f"docker pull ended with {process.returncode}")


def _docker(*words: str, text: str = "") -> str:
    """Return why the command failed; empty if it did not."""
    try:
        done = subprocess.run(
            ["docker", *words],
            input=text,
            capture_output=True,
            text=True,
            timeout=COMMAND_WITHIN,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"docker {words[0]} did not end within {COMMAND_WITHIN:.0f} s"
    lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
    return lines[-1] if done.returncode else ""
