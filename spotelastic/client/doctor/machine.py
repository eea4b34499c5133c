"""Looks at this machine, and judges what it finds.

Each `..._facts` function only gathers; each judge is pure, and is given what was gathered. torch is
imported in a process of its own: that takes seconds, and a broken driver may crash it.
"""

import importlib.util
import json
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from spotelastic import systems
from spotelastic.client.doctor.finding import FindingState, Verdict
from spotelastic.errors import EnvironmentFailure
from spotelastic.model.counting import counted, size
from spotelastic.model.protocol import PROTOCOL
from spotelastic.version import __version__

GIB = 2**30
SMALL_SHM = 1 * GIB
"""Size of /dev/shm below which most models have no room for snapshots. Docker gives 64 MiB."""
SMALL_DISK = 5 * GIB
FEW_FILES, USUAL_FILES = 256, 1024
"""Open files without which no node starts, and with which one with many ranks and loaders lives."""
TORCH_WITHIN = 60.0
"""Seconds that the import of torch may take, from a disk that is cold."""
DRIVER_WITHIN = 15.0
EXTRAS: Mapping[str, str] = {"moto": "moto", "flask": "flask"}
"""What the local cloud needs of the extra `local`."""
ASK_TORCH = """
import json, torch
cuda = torch.cuda.is_available()
try:
    nccl = ".".join(map(str, torch.cuda.nccl.version()))
except Exception:  # of a build without it
    nccl = ""
print(json.dumps({"version": torch.__version__, "cuda": torch.version.cuda or "",
    "gpus": torch.cuda.device_count() if cuda else 0, "nccl": nccl}))
"""


class SlowTorch(EnvironmentFailure):
    """torch is installed, and was not loaded before the time was up."""


@dataclass(frozen=True, slots=True)
class TorchFacts:
    """What torch says of itself."""

    version: str
    cuda: str = ""
    """The CUDA that it was built for; empty: none."""
    gpus: int = 0
    """GPUs that it can use."""
    nccl: str = ""


@dataclass(frozen=True, slots=True)
class DriverFacts:
    """What nvidia-smi says."""

    gpus: tuple[str, ...] = ()
    """Name and memory of each."""
    version: str = ""
    error: str = ""
    """Why it gave no answer."""


# -- Python and the system -------------------------------------------------------------------------


def python(
    version: Sequence[int] = tuple(sys.version_info[:3]), system: str = sys.platform
) -> Verdict:
    """Say which Python and system this is, and what runs on it."""
    text = f"Python {version[0]}.{version[1]} on {platform.machine()}, spotelastic {__version__}"
    text += f" (protocol {PROTOCOL})"
    if system == "linux":
        return Verdict("ok", text)
    name = systems.NAMES.get(system, system)
    return Verdict(
        "note",
        f"{text}, {name}",
        "this commands clusters on AWS; to train or try something here, use a Linux container",
    )


# -- torch and GPUs --------------------------------------------------------------------------------


def torch_facts(within: float = TORCH_WITHIN) -> TorchFacts | None:
    """Ask torch; None if it is not installed.

    Raises `EnvironmentFailure` if it does not load, and `SlowTorch` if it has not loaded in time.
    """
    if importlib.util.find_spec("torch") is None:
        return None
    try:
        command = [sys.executable, "-c", ASK_TORCH]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=within)
    except subprocess.TimeoutExpired:
        raise SlowTorch(f"torch has not loaded within {within:g} s") from None
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise EnvironmentFailure(f"torch is installed, but does not load: {last}")
    return TorchFacts(**json.loads(done.stdout.strip().splitlines()[-1]))


def driver_facts(program: str = "nvidia-smi", within: float = DRIVER_WITHIN) -> DriverFacts | None:
    """Ask the GPU's driver; None where its program is not there."""
    path = shutil.which(program)
    if path is None:
        return None
    fields = "--query-gpu=name,memory.total,driver_version"
    try:
        done = subprocess.run(
            [path, fields, "--format=csv,noheader"],
            capture_output=True,
            text=True,
            check=False,
            timeout=within,
        )
    except (subprocess.TimeoutExpired, OSError) as error:
        return DriverFacts(error=f"{program}: {error}")
    if done.returncode != 0:
        told = (done.stdout + done.stderr).strip().splitlines() or [f"code {done.returncode}"]
        return DriverFacts(error=f"{program}: {told[0]}")
    rows = [line.split(", ") for line in done.stdout.strip().splitlines()]
    gpus = tuple(f"{row[0]}, {row[1]}" for row in rows if len(row) == 3)
    return DriverFacts(gpus, rows[0][2] if rows and len(rows[0]) == 3 else "")


def judge_torch(facts: TorchFacts | None, *, needed: bool, gpus: int) -> Verdict:
    """Judge torch.

    `gpus`: how many the driver has found; `needed`: whether training is asked for here.
    """
    if facts is None:
        state: FindingState = "missing" if needed else "note"
        return Verdict(
            state,
            "not installed",
            "pip install 'spotelastic[train]'; without a GPU, first torch's CPU build",
        )
    built = f"built for CUDA {facts.cuda}" if facts.cuda else "CPU build"
    nccl = f", NCCL {facts.nccl}" if facts.nccl else ""
    text = f"torch {facts.version}, {built}{nccl}"
    if gpus and not facts.cuda:
        advice = "install the build of torch for CUDA, as pytorch.org says"
        return Verdict("warning", f"{text}, beside {counted(gpus, 'GPU')}", advice)
    if gpus and not facts.gpus:
        advice = (
            f"torch cannot use them: the driver may be too old for CUDA {facts.cuda}: update it, "
            "or install a torch for an older CUDA. Look at CUDA_VISIBLE_DEVICES, too"
        )
        return Verdict("missing", f"{text}; it sees none of {counted(gpus, 'GPU')}", advice)
    if facts.gpus:
        text += f"; {counted(facts.gpus, 'GPU')}"
    return Verdict("ok", text)


def judge_driver(facts: DriverFacts | None) -> Verdict:
    """Judge the driver of NVIDIA's GPUs."""
    if facts is None:
        return Verdict("ok", "none here, and none needed: nodes bring their own")
    if facts.error:
        return Verdict(
            "missing",
            facts.error,
            "load or reinstall NVIDIA's driver; in a container, start it with --gpus all",
        )
    kinds = "; ".join(dict.fromkeys(facts.gpus))
    return Verdict("ok", f"{len(facts.gpus)}: {kinds} (driver {facts.version})")


# -- memory, files and disk ------------------------------------------------------------------------


def judge_shm(total: int | None, free: int) -> Verdict:
    """Judge /dev/shm, in which snapshots lie. `total` is None where there is none."""
    if total is None:
        return Verdict(
            "missing",
            "there is none",
            "mount a tmpfs there: snapshots need it",
        )
    text = f"{size(free)} of {size(total)} free"
    if total < SMALL_SHM:
        return Verdict(
            "warning",
            f"{text}: three snapshots of each worker's state have to fit",
            "enlarge it: docker run --shm-size 16g, or mount -o remount,size=16G /dev/shm",
        )
    return Verdict("ok", text)


def judge_files(most: int) -> Verdict:
    """Judge how many files a process may open; -1: any number."""
    if most < 0 or most >= USUAL_FILES:
        text = "any number" if most < 0 else f"up to {most}"
        return Verdict("ok", text)
    state: FindingState = "missing" if most < FEW_FILES else "warning"
    return Verdict(state, f"up to {most}", "raise the limit: ulimit -n 65536")


def judge_disk(free: Mapping[str, int]) -> Verdict:
    """Judge free space by folder; the fullest disk counts."""
    folder, least = min(free.items(), key=lambda each: each[1])
    text = ", ".join(f"{size(nbytes)} free in {name}" for name, nbytes in free.items())
    if least < SMALL_DISK:
        advice = f"make room in {folder}: checkpoints and logs of local runs lie there"
        return Verdict("warning", text, advice)
    return Verdict("ok", text)


def shm(folder: Path = Path("/dev/shm")) -> Verdict:
    """Look at shared memory."""
    if not systems.has_linux():
        return Verdict("note", "needed on Linux alone")
    try:
        used = shutil.disk_usage(folder)
    except OSError:
        return judge_shm(None, 0)
    return judge_shm(used.total, used.free)


def files() -> Verdict:
    """Look at the limit of open files, which a command raises by itself to the hard one."""
    import resource

    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    return judge_files(-1 if most == resource.RLIM_INFINITY else most)


def disk() -> Verdict:
    """Look at the folders that local runs write to."""
    folders = dict.fromkeys([str(Path.home()), tempfile.gettempdir(), str(Path.cwd())])
    return judge_disk({folder: shutil.disk_usage(folder).free for folder in folders})


# -- the local cloud -------------------------------------------------------------------------------


def judge_local(
    absent: Sequence[str], etcd: str, trouble: str, *, needed: bool, system: str = sys.platform
) -> Verdict:
    """Judge what the local cloud runs. `trouble`: why there is no etcd, whose version is `etcd`."""
    state: FindingState = "missing" if needed else "note"
    if system != "linux":
        return Verdict(state, "needs Linux", "use a Linux container, or AWS")
    if absent:
        text = f"not installed: {', '.join(absent)}"
        return Verdict(state, text, "pip install 'spotelastic[all]'")
    if trouble:
        return Verdict("missing", trouble)
    return Verdict("ok", f"moto, etcd {etcd}")


def local_parts(*, needed: bool) -> Verdict:
    """Look at what the local cloud runs, without importing it."""
    absent = [name for name, module in EXTRAS.items() if importlib.util.find_spec(module) is None]
    etcd, trouble = "", ""
    if systems.has_linux():
        from spotelastic.store.etcd_server.process import find_binary

        try:
            etcd = ".".join(map(str, find_binary().version))
        except EnvironmentFailure as error:
            trouble = str(error)
    return judge_local(absent, etcd, trouble, needed=needed)
