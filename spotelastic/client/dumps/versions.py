"""Tells the versions of what a bug report is about: of this process and of its machine."""

import contextlib
import os
import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from spotelastic.model.protocol import PROTOCOL
from spotelastic.version import __version__

PACKAGES = ("torch", "msgspec", "boto3", "fsspec", "obstore", "grpcio")
DRIVER = Path("/proc/driver/nvidia/version")
RELEASE = Path("/etc/os-release")


def versions() -> dict[str, object]:
    """Return the versions by name; what is not known is left out."""
    told: dict[str, object] = {
        "spotelastic": __version__,
        "protocol": str(PROTOCOL),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
    }
    for package in PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            told[package] = version(package)
    told["system"] = _named(RELEASE).get("PRETTY_NAME", "").strip('"')
    with contextlib.suppress(OSError, IndexError):
        told["driver"] = DRIVER.read_text().splitlines()[0]
    return {name: value for name, value in told.items() if value}


def _named(file: Path) -> Mapping[str, str]:
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return dict(line.split("=", 1) for line in file.read_text().splitlines() if "=" in line)
    return {}
