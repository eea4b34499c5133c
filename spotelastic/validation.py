"""Checks the input of `up` before anything starts: numbers, sizes, scripts, files and free space.

Each check raises `UsageError` or `EnvironmentFailure`, with one line that says what to do.
"""

import ast
import gzip
import importlib.util
import json
import os
import re
import shutil
import socket
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from spotelastic.aws.base.names import LONGEST
from spotelastic.errors import EnvironmentFailure, UsageError
from spotelastic.model.counting import counted
from spotelastic.model.in_place import AUDIT_PATTERN
from spotelastic.model.interval import Interval
from spotelastic.model.replication import Replication

MIB = 2**20
UNITS = ("", "K", "M", "G", "T")
DISK_PER_NODE = 100 * MIB
"""Bytes of disk for a local node: its copy of the code, its logs, its share of the object store."""
MEMORY_PER_NODE = 256 * MIB
"""Bytes of memory for a local node: its agent, its checkpoint daemon, and what its workers do not
share."""
SHM_PER_WORKER = 64 * MIB
"""Bytes of shared memory for a local worker: three slots of the example's state, and gloo's own
needs."""
CONTROL_NODES = 3
"""Most control nodes of a local cluster."""
LARGEST_ARRAY = 1000
"""Most nodes of a cluster: the size that one etcd and one worker group are designed for."""


def sizes(*, minimum: int, maximum: int, per_node: int | None) -> None:
    """Check the numbers of nodes and of workers per node."""
    for flag, value in (("--min", minimum), ("--max", maximum)):
        if value < 1:
            raise UsageError(f"{flag} {value}: a job needs at least one node")
    if maximum < minimum:
        raise UsageError(f"--min {minimum} is above --max {maximum}")
    if maximum > LARGEST_ARRAY:
        raise UsageError(f"--max {maximum}: at most {LARGEST_ARRAY} nodes")
    if per_node is not None and per_node < 1:
        raise UsageError(f"--nproc-per-node {per_node}: a node runs at least one worker")


def at_least_one(**values: int) -> None:
    """Check that each value is at least 1. The keyword is the flag's name."""
    for flag, value in values.items():
        if value < 1:
            raise UsageError(f"--{flag.replace('_', '-')} {value}: must be at least 1")


def not_negative(**values: float) -> None:
    """Check that no value is negative. The keyword is the flag's name."""
    for flag, value in values.items():
        if value < 0:
            raise UsageError(f"--{flag.replace('_', '-')} {value:g}: must not be negative")


def interval(flag: str, text: str) -> Interval:
    """Parse the value of a flag that says how often to save."""
    try:
        return Interval.parse(text)
    except ValueError as error:
        raise UsageError(f"{flag} {text}: {error}") from None


def audit(text: str) -> int:
    """Return of how many steps one is audited; 0 for an empty text: none is."""
    if not re.fullmatch(AUDIT_PATTERN, text):
        raise UsageError(f"--audit {text}: expected 1/STEPS, such as 1/1000")
    return int(text.partition("/")[2] or 0)


def replication(text: str) -> Replication:
    """Parse the value of `--replicate`."""
    try:
        return Replication.parse(text)
    except ValueError as error:
        raise UsageError(f"--replicate {text}: {error}") from None


def linger(text: str) -> float | None:
    """Parse `--linger`: seconds that a cluster stays after its job; None means forever."""
    if text == "forever":
        return None
    try:
        wanted = Interval.parse(text)
    except ValueError:
        wanted = Interval()
    seconds = 0.0 if wanted.steps == 0 else wanted.seconds
    if seconds is None:
        raise UsageError(f"--linger {text}: expected a time, such as 90s or 10m, 0, or forever")
    return seconds


def time(flag: str, text: str) -> float:
    """Parse a time such as 90s, 10m or 2h into seconds."""
    try:
        seconds = Interval.parse(text).seconds
    except ValueError:
        seconds = None
    if seconds is None:
        raise UsageError(f"{flag} {text}: expected a time, such as 90s, 10m or 2h")
    return seconds


def size(flag: str, text: str) -> float:
    """Parse a size such as 20GB, 500 MB, 1.5TB or 10GiB into bytes."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?\s*", text, re.IGNORECASE)
    if found is None or not float(found[1]):
        raise UsageError(f"{flag} {text}: expected a size, such as 20GB")
    return float(found[1]) * (1024.0 if found[3] else 1000.0) ** UNITS.index(found[2].upper())


def gpu_memory(text: str) -> int:
    """Parse `--gpu-memory` into bytes. Less than 1 GB is refused: the unit was forgotten."""
    found = int(size("--gpu-memory", text))
    if found < 10**9:
        raise UsageError(f"--gpu-memory {text}: expected a size of at least 1GB, such as 40GB")
    return found


def script(given: Path, folder: Path) -> None:
    """Check that the script, relative to `folder`, is a Python file."""
    path = folder / given
    if not path.exists():
        raise UsageError(f"there is no script {given}")
    if not path.is_file() or path.suffix != ".py":
        raise UsageError(f"{given} is not a Python file")
    parses(path, given)


def parses(path: Path, given: Path | str) -> None:
    """Check that the file is valid Python, before a cluster or a restart is spent on it."""
    try:
        ast.parse(path.read_bytes(), filename=str(given))
    except SyntaxError as error:
        where = f"line {error.lineno}: " if error.lineno else ""
        raise UsageError(f"{given} is not a Python file: {where}{error.msg}") from None
    except (ValueError, OSError) as error:
        raise UsageError(f"{given} is not a Python file: {error}") from None


def within(given: Path, folder: Path) -> str:
    """Return the script's path inside the shipped working folder, with forward slashes."""
    path, folder = (folder / given).resolve(), folder.resolve()
    if not path.is_relative_to(folder):
        raise UsageError(
            f"{given} is outside of the working folder {folder}, which is what the nodes get: "
            "run the command from a folder that contains it"
        )
    return path.relative_to(folder).as_posix()


def outputs(folders: Sequence[str], folder: Path) -> tuple[str, ...]:
    """Return the folders of `--output` as paths within the working folder, each of them once.

    A folder within another one is kept with that one.
    """
    found: list[str] = []
    for given in folders:
        path = Path(os.path.normpath(folder / given))
        if not given or path == folder or not path.is_relative_to(folder):
            raise UsageError(
                f"--output {given}: name a folder within the working folder, such as out"
            )
        if not str(path).isprintable():
            raise UsageError(f"--output {given!r}: its name cannot be printed")
        found.append(path.relative_to(folder).as_posix())
    return tuple(
        each
        for number, each in enumerate(found)
        if each not in found[:number] and not any(each.startswith(f"{other}/") for other in found)
    )


def default_name(script: Path) -> str:
    """Return a cluster name made from the script's name, e.g. "train-gpt"."""
    name = re.sub(r"[^a-z0-9]+", "-", script.stem.lower()).strip("-")
    return (name if name[:1].isalpha() else f"job-{name}".strip("-"))[:LONGEST].rstrip("-")


def writable(**files: str | Path | None) -> None:
    """Check that the files written at the job's end can be written. The keyword is the flag's name.

    The check tries to write: permission bits do not tell, for example in /proc or for root.
    """
    for flag, given in files.items():
        if given is None:
            continue
        file = Path(given)
        if file.is_dir():
            raise UsageError(f"--{flag} {file} is a folder")
        nearest = next(path for path in (file, *file.absolute().parents) if path.exists())
        try:
            if nearest == file:
                file.open("ab").close()
            else:
                tempfile.TemporaryFile(dir=nearest).close()
        except OSError as error:
            raise UsageError(
                f"--{flag} {file} cannot be written: {nearest}: {error.strerror}"
            ) from None


# -- the local cloud -----------------------------------------------------------------------------


def local_parts() -> None:
    """Check that everything the local cloud runs is installed, without importing anything heavy."""
    for module, what in (("moto", "moto"), ("flask", "moto's server"), ("torch", "torch")):
        if importlib.util.find_spec(module) is None:
            raise EnvironmentFailure(
                f"the local cloud needs {what}: pip install 'spotelastic[all]'"
            )
    from spotelastic.store.etcd_server.process import find_binary

    find_binary()


def ports(*numbers: int, address: str = "127.95.255.254") -> None:
    """Check that no process listens on these ports on all addresses.

    Such a process would block every local node.

    `address` is a loopback address that no node of a local cloud has.
    """
    for number in numbers:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as etcd does
            try:
                probe.bind((address, number))
            except OSError as error:
                raise EnvironmentFailure(
                    f"port {number}, which the etcd of the local cloud needs: {error.strerror}; "
                    "end the process that listens there on all addresses (see "
                    f"`ss -ltnp sport = {number}`)"
                ) from None


def local_types(types: Sequence[str]) -> None:
    """Check that moto knows the instance types, by its data file, without importing it."""
    spec = importlib.util.find_spec("moto")
    folder = Path(spec.origin).parent if spec and spec.origin else Path()
    data = folder / "ec2/resources/instance_types.json.gz"
    known = json.loads(gzip.decompress(data.read_bytes()))
    for name in types:
        if name not in known:
            raise UsageError(f"--instance-types {name}: there is no such instance type")


def room(
    nodes: int,
    workers: int,
    *,
    folder: Path,
    shm: Path = Path("/dev/shm"),
    meminfo: Path = Path("/proc/meminfo"),
) -> None:
    """Check that this machine has the disk, memory and shared memory that a local cluster needs.

    `workers` is the number per node.
    """
    whose = counted(nodes, "local node")
    _room(str(folder), _free(folder), (nodes + CONTROL_NODES) * DISK_PER_NODE, whose)
    _room("this machine's memory", _free_memory(meminfo), nodes * MEMORY_PER_NODE, whose)
    _room(
        str(shm), _free(shm), nodes * workers * SHM_PER_WORKER, counted(nodes * workers, "worker")
    )


def _free(folder: Path) -> int:
    try:
        return shutil.disk_usage(folder).free
    except OSError as error:
        raise EnvironmentFailure(f"{folder} cannot be used: {error.strerror}") from None


def _free_memory(meminfo: Path) -> int:
    """Return the bytes of memory that are available without swapping."""
    found = re.search(r"^MemAvailable:\s+(\d+) kB", meminfo.read_text(), re.MULTILINE)
    return int(found[1]) * 1024 if found else sys.maxsize


def _room(where: str, free: int, needed: int, whose: str) -> None:
    if free < needed:
        raise EnvironmentFailure(
            f"{where} has {free // MIB} MiB free, {whose} need {needed // MIB} MiB: "
            "free some space or lower --max"
        )
