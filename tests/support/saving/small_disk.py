"""Mounts a small disk that is soon full, or that is read-only."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(folder: Path, kib: int) -> Iterator[Path]:
    folder.mkdir()
    _mount("-t", "tmpfs", "-o", f"size={kib}k", "tmpfs", str(folder))
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def make_read_only(folder: Path) -> None:
    """Of a small disk: root may write wherever permissions are all that is missing."""
    _mount("-o", "remount,ro", str(folder))


def fill(folder: Path) -> Path:
    """Not a byte is left."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            pass
    return ballast


def _mount(*arguments: str) -> None:
    done = subprocess.run(["mount", *arguments], capture_output=True, check=False)
    if done.returncode:
        pytest.skip("only root may mount")
