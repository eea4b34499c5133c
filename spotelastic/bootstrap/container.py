"""Builds the command that runs a worker node's agent in a container of the user's image (pure).

The container shares everything with its instance except the file system: the network, so that
addresses and instance metadata (one hop away) are the instance's own; shared memory, for the slots
of checkpoints; GPUs, EFA devices, and the folders that outlive the agent.
"""

import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from spotelastic import protection

NAME = "spotelastic"
DEVICES = Path("/dev/infiniband")
"""Folder of the EFA devices."""
NVIDIA = Path("/dev/nvidia0")
KERNEL_LOG = Path("/dev/kmsg")
"""In it NVIDIA's driver tells of sick GPUs."""
START = (
    "{python} -m pip install -q --disable-pip-version-check {wheel} && exec nice -n {nice} {agent}"
)


@dataclass(frozen=True, slots=True)
class JobContainer:
    """The container that a node's agent runs in.

    `folders` are the same inside and outside; `wheel` lies in one of them.
    """

    image: str
    wheel: Path
    folders: tuple[Path, ...]
    environ: Mapping[str, str] = field(default_factory=dict)
    gpus: bool = False
    devices: tuple[Path, ...] = ()


def possible() -> bool:
    """Whether this instance can run containers. Plain Amazon Linux, without GPUs, cannot."""
    return shutil.which("docker") is not None


def command(box: JobContainer) -> tuple[str, ...]:
    """Return the command to run instead of `spotelastic boot agent`."""
    python = "python3"
    agent = f"{python} -m spotelastic boot agent"
    wheel = shlex.quote(str(box.wheel))
    start = START.format(python=python, wheel=wheel, nice=protection.NICE, agent=agent)
    return (
        # The folders are root's, whoever the image's own user is.
        *("docker", "run", "--rm", "--name", NAME, "--user", "0"),
        *(("--gpus", "all") if box.gpus else ()),
        *("--network", "host", "--ipc=host"),
        *("--ulimit", "memlock=-1", "--cap-add", "SYS_PTRACE"),
        *(("--cap-add", "SYSLOG", f"--device={KERNEL_LOG}:{KERNEL_LOG}:r") if box.gpus else ()),
        *("--cap-add", "SYS_NICE", "--oom-score-adj", str(protection.OOM_SCORE)),
        f"--env={protection.PROTECTED}=1",
        *(f"--device={device}" for device in box.devices),
        *(f"--volume={folder}:{folder}" for folder in box.folders),
        *(f"--env={name}={value}" for name, value in sorted(box.environ.items())),
        *("--entrypoint", "sh", box.image, "-c", start),
    )


def efa(devices: Sequence[Path]) -> tuple[Path, ...]:
    """Return the devices in /dev/infiniband through which user space drives EFA."""
    return tuple(sorted(device for device in devices if device.name.startswith("uverbs")))
