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
    """The user data that every instance boots with, in base64 as EC2 takes it.

    Without comments: a stack's parameter has room for 4,096 characters.
    """
    first, *lines = infra("boot/boot.sh").read_text().splitlines(keepends=True)
    kept = [first, *(line for line in lines if not line.lstrip().startswith("#"))]
    return base64.b64encode("".join(kept).encode()).decode()
