"""How many workers `--nproc-per-node auto|cpu|gpu|xpu` means on this machine.

torch knows best, and is asked in a process of its own: importing it here would cost the launcher
its size and its speed. Where there is no driver it need not be asked.
"""

import os
import subprocess
import sys
from pathlib import Path

from spotelastic_checkpoints import isolated

from spotelastic.errors import UsageError

DRIVERS = (Path("/dev/nvidiactl"), Path("/dev/kfd"), Path("/dev/dxg"))
"""Of NVIDIA, AMD, and either below WSL."""
ASK_WITHIN = 60.0


def workers(text: str) -> int:
    """Raises `UsageError` for anything that is not a number of workers here."""
    flag = f"--nproc-per-node {text}"
    if text == "cpu":
        return _cpus()
    if text in ("gpu", "auto"):
        count = gpus()
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


def gpus() -> int:
    """Those that torch can use."""
    return _count("cuda") if any(driver.exists() for driver in DRIVERS) else 0


def _cpus() -> int:
    return len(os.sched_getaffinity(0))


def _count(kind: str) -> int:
    """Devices of this kind that torch sees, by CUDA_VISIBLE_DEVICES and the like."""
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
