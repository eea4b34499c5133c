"""Starts one script under `python`, `torchrun` and `spotelastic run`, and tells what came of it."""

import os
import re
import subprocess
import sys
import zipfile
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from conformance_scripts import Case

_TO_THE_END = """
import ctypes, os, subprocess, sys
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
if sys.argv[1]:
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/dev/shm"], check=True)
code = subprocess.call(sys.argv[3:])
try:
    while os.wait():
        pass
except ChildProcessError:
    pass
if sys.argv[1]:
    with open(sys.argv[2], "w") as file:
        file.write(" ".join(sorted(os.listdir("/dev/shm"))))
sys.exit(code if code >= 0 else 128 - code)
"""
"""Waits for all that a launcher starts, and tells what is in a /dev/shm that they have alone."""
_LAUNCHERS_OWN = re.compile(rb"^[EWI]\d{4} \d\d:\d\d:\d\d.*", re.MULTILINE | re.DOTALL)
"""torchrun's report of a failure, which comes last."""
_WARNING = re.compile(rb"\A\n\*+\nSetting OMP_NUM_THREADS.*\n\*+\n")
"""Of torchrun, which comes first."""
_OUR_STORAGE = "runs"
_HEEDFUL = ("env", "--default-signal=INT,HUP,QUIT")
"""Below nohup, or in the background of a shell, a process begins with some of these ignored."""
_PREFIX = re.compile(rb"(^|(?<=\r))\[\d+\] ", re.MULTILINE)


@dataclass(frozen=True)
class Found:
    """What can be compared. Launchers do not pass an exit code on, only whether it is 0."""

    succeeded: bool
    output: bytes
    files: dict[str, bytes]
    shared_memory: str
    """What is left there."""


def python(case: Case, folder: Path) -> Found:
    return _started([sys.executable, "-u", *case.command], case, folder)


def torchrun(case: Case, folder: Path) -> Found:
    flags = ["--standalone", f"--nproc-per-node={case.workers}", *case.command]
    found = _started([sys.executable, "-m", "torch.distributed.run", *flags], case, folder)
    output = _LAUNCHERS_OWN.sub(b"", _WARNING.sub(b"", found.output, count=1))
    return replace(found, output=_in_order(case, output))


def ours(case: Case, folder: Path) -> tuple[Found, bytes]:
    """The output as its file has it, and as it is shown, without the rank before each line."""
    flags = ["--standalone", f"--nproc-per-node={case.workers}", "--max-restarts=0"]
    logs = folder.with_name("logs")
    flags += ["--log-dir", str(logs)]
    command = [sys.executable, "-m", "spotelastic.run", *flags, *case.command]
    found = _started(command, case, folder)
    written = b"".join(file.read_bytes() for file in sorted(logs.rglob("rank-*.log")))
    shown = _PREFIX.sub(b"", found.output)
    return replace(found, output=_in_order(case, written)), _in_order(case, shown)


def _in_order(case: Case, output: bytes) -> bytes:
    """Which of several workers is the first to print is chance."""
    return output if case.workers == 1 else b"\n".join(sorted(output.splitlines()))


def _started(command: list[str], case: Case, folder: Path) -> Found:
    _lay(case, folder)
    stdout, stderr, shm = (folder.with_name(name) for name in ("stdout", "stderr", "shm"))
    waiting = [sys.executable, "-I", "-S", "-c", _TO_THE_END, "apart" if _apart() else "", str(shm)]
    command = [*_apart(), *waiting, *_HEEDFUL, *command]
    apart = "spotelastic.run" in command
    with stdout.open("ab") as out, (stderr if apart else stdout).open("ab") as errors:
        done = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, **case.env},
            input=case.stdin,
            stdout=out,
            stderr=errors,
            timeout=200,
            check=False,
        )
    files = {
        str(file.relative_to(folder)): file.read_bytes()
        for file in sorted(folder.rglob("*"))
        if file.is_file() and not {"__pycache__", _OUR_STORAGE} & {*file.relative_to(folder).parts}
    }
    left = shm.read_text() if shm.exists() else ""
    return Found(done.returncode == 0, stdout.read_bytes(), files, left)


def _lay(case: Case, folder: Path) -> None:
    folder.mkdir()
    if case.archive:
        with zipfile.ZipFile(folder / case.archive, "w") as archive:
            for name, text in case.files.items():
                archive.writestr(zipfile.ZipInfo(name), text)  # without the time of day
        return
    for name, text in case.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    if case.link:
        (folder / case.link).symlink_to(next(iter(case.files)))


@cache
def _apart() -> tuple[str, ...]:
    """A command that gives another one a /dev/shm of its own; nothing where that is forbidden."""
    command = ("unshare", "--mount", *(("--map-root-user",) if os.getuid() else ()))
    trial = [*command, "sh", "-c", "mount -t tmpfs tmpfs /dev/shm"]
    allowed = subprocess.run(trial, capture_output=True, check=False).returncode == 0
    return command if allowed else ()
