"""The files of `infra/`: in a checkout beside the package, in a wheel inside of it."""

import base64
from pathlib import Path

import spotelastic

PACKAGE = Path(spotelastic.__file__).parent


def infra(name: str) -> Path:
    """The path of a file of `infra/`, e.g. "cluster.yaml"."""
    installed = PACKAGE / "_infra" / name
    return installed if installed.exists() else PACKAGE.parent / "infra" / name


def boot_script() -> str:
    """The user data that every instance boots with, in base64 as EC2 takes it."""
    return base64.b64encode(infra("boot/boot.sh").read_bytes()).decode()
