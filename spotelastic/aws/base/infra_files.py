"""Locates the files of `infra/` (templates, boot script).

They are beside the package, or inside an installed wheel.
"""

import base64
from pathlib import Path

import spotelastic

PACKAGE = Path(spotelastic.__file__).parent


def infra(name: str) -> Path:
    """Return the path of a file of `infra/`, e.g. "cluster.yaml"."""
    installed = PACKAGE / "_infra" / name
    return installed if installed.exists() else PACKAGE.parent / "infra" / name


def boot_script(before: str = "") -> str:
    """Return the user data with which every instance boots, in base64 as EC2 takes it.

    `before`: lines that come first. Without comments: a stack's parameter holds at most 4,096
    characters.
    """
    first, *lines = infra("boot/boot.sh").read_text().splitlines(keepends=True)
    kept = [first, before, *(line for line in lines if not line.lstrip().startswith("#"))]
    return base64.b64encode("".join(kept).encode()).decode()
