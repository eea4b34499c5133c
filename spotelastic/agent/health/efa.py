"""Looks for EFA devices, and for the plugin through which NCCL uses them.

NCCL falls back to sockets without a word if it does not find its plugin, as in an image without it.
"""

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

from spotelastic.agent.health import bounded

DEVICES = Path("/sys/class/infiniband")
DRIVER = "efa"
ANSWER_WITHIN = 5.0
_PLUGIN = re.compile(r"\blibnccl-net(-[\w.]+)?\.so\b")


def devices(folder: Path = DEVICES) -> int:
    """Return the number of EFA devices. Other adapters of that kind are not counted."""
    return sum(driver.resolve().name == DRIVER for driver in folder.glob("*/device/driver"))


def has_plugin(environ: Mapping[str, str]) -> bool:
    """Whether the loader finds NCCL's plugin: by its cache, or by LD_LIBRARY_PATH."""
    folders = filter(None, environ.get("LD_LIBRARY_PATH", "").split(os.pathsep))
    found = (file.name for folder in folders for file in Path(folder).glob("libnccl-net*"))
    if any(map(_PLUGIN.search, found)):
        return True
    try:
        code, out, _ = bounded.run(("ldconfig", "-p"), _with_sbin(environ), ANSWER_WITHIN)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return code == 0 and _PLUGIN.search(out) is not None


def _with_sbin(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with the folders that only root's search path has."""
    path = os.pathsep.join(filter(None, (environ.get("PATH", ""), "/usr/sbin", "/sbin")))
    return {**environ, "PATH": path}
