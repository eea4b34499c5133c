"""Pulls the container image of a job.

It logs in where Amazon's registry asks for that.
"""

import logging
import re
import subprocess
import time
from base64 import b64decode
from collections.abc import Callable
from dataclasses import dataclass

from spotelastic_checkpoints.backoff import Backoff

from spotelastic.aws.base.clients import Aws, calling
from spotelastic.bootstrap.reports import Say
from spotelastic.errors import EnvironmentFailure, Unavailable

logger = logging.getLogger(__name__)

TRIES = 6
COMMAND_WITHIN = 60.0
PULL_WITHIN = 3600.0
_ECR = re.compile(r"(\d{12}\.dkr\.ecr(?:-fips)?\.([a-z0-9-]+)\.amazonaws\.com(?:\.cn)?)/.+")


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
    password: Callable[[str], str] = ecr_password,
    backoff: Backoff = Backoff(1.0, 16.0),  # noqa: B008
    within: float = PULL_WITHIN,
) -> None:
    """Pull the image unless it is on this instance already. Each try may take `within` seconds.

    Raises `EnvironmentFailure`, with docker's last line, if no try succeeds.
    """
    if _docker("image", "inspect", image) == "":
        return
    last = ""
    for left in reversed(range(TRIES)):
        try:
            if its := registry(image):
                _log_in(its, password)
            tell(f"pulling the image {image}")
            last = _docker("pull", image, within=within)
        except (Unavailable, EnvironmentFailure) as error:
            last = str(error)
        if not last:
            return
        logger.warning(f"--image {image}: {last}")
        backoff = backoff.failed()
        if left:
            time.sleep(backoff.bound)
    raise EnvironmentFailure(f"--image {image} cannot be pulled: {last}")


def _log_in(its: EcrRegistry, password: Callable[[str], str]) -> None:
    words = ("login", "--username", "AWS", "--password-stdin", its.host)
    if failed := _docker(*words, text=password(its.region)):
        raise EnvironmentFailure(f"docker login to {its.host}: {failed}")


def _docker(*words: str, text: str = "", within: float = COMMAND_WITHIN) -> str:
    """Return why the command failed; empty if it did not."""
    try:
        done = subprocess.run(
            ["docker", *words],
            input=text,
            capture_output=True,
            text=True,
            timeout=within,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"docker {words[0]} did not end within {within:.0f} s"
    lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
    return lines[-1] if done.returncode else ""
