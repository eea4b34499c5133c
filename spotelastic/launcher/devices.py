"""Counts the workers that `--nproc-per-node auto|cpu|gpu|xpu` means on this machine.

torch is asked in a separate process: importing it in the launcher would cost memory and time. If
there is no driver, torch is not asked.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from spotelastic_checkpoints import isolated

from spotelastic.errors import UsageError

DRIVERS = (Path("/dev/nvidiactl"), Path("/dev/kfd"), Path("/dev/dxg"))
"""Device files of the NVIDIA and AMD drivers, and of either below WSL."""
ASK_WITHIN = 60.0
"""Seconds that torch may take to answer."""


def workers(text: str, drivers: Sequence[Path] = DRIVERS) -> int:
    """Return the number of workers.

    Raises `UsageError` for anything that is not one on this machine.
    """
    flag = f"--nproc-per-node {text}"
    if text == "cpu":
        return _cpus()
    if text in ("gpu", "auto"):
        count = gpus(drivers)
        if count == 0 and text == "gpu":
            raise UsageError(f"{flag}: this machine has no GPU that torch can use")
        return count or _cpus()
    if text == "xpu":
        count = _count("xpu")
        if count == 0:
            raise UsageError(f"{flag}: this machine has no XPU that torch can use")
        return count
    if not text.isdigit():
        raise UsageError(f"{flag}: give a number, auto, cpu, gpu or xpu")
    if int(text) < 1:
        raise UsageError(f"{flag}: needs at least 1")
    return int(text)


def gpus(drivers: Sequence[Path] = DRIVERS) -> int:
    """Return the number of GPUs that torch can use."""
    return _count("cuda") if any(driver.exists() for driver in drivers) else 0


def _cpus() -> int:
    return len(os.sched_getaffinity(0))


def _count(kind: str) -> int:
    """Return the number of devices of this kind that torch sees; CUDA_VISIBLE_DEVICES applies."""
    ask = [sys.executable, "-P", "-c", f"import torch; print(torch.{kind}.device_count())"]
    try:
        told = subprocess.run(
            ask,
            env=isolated.environment(),
            capture_output=True,
            text=True,
            timeout=ASK_WITHIN,
            check=True,
        )
        return int(told.stdout.split()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return 0
