"""The boot script where a command fails once, three times, later on, or for good.

The script is run by bash as EC2 would run it, below a root of its own. Each command that reaches
out of the instance, or changes it, is played by a shell script that notes its calls and fails those
that it is told to. The pauses between tries are 0 s.
"""

import hashlib
import io
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

import pytest
from support.draws import soaked
from support.processes.patience import PATIENT, eventually

from spotelastic.aws.artifacts.wheel import infra_names
from spotelastic.aws.base.infra_files import infra
from spotelastic.controller.decisions.housekeeping import said

TRIES = 6
"""How often a step is tried."""
OF_THE_SYSTEM = (
    *(
        "bash",
        "cat",
        "cp",
        "find",
        "grep",
        "gzip",
        "mkdir",
        "mv",
        "python3",
        "rm",
        "sed",
        "sha256sum",
    ),
    *("sleep", "tail", "tar", "timeout", "tr", "uname", "wc", "xargs"),
)
"""What is not played. There is no other Python of this machine."""
PLAYED = r"""#!/bin/bash
name=${0##*/} calls=$PLAYED/$name.calls
echo >> "$calls"
nth=$(wc -l < "$calls")
read -r first times message < <(cat "$PLAYED/$name.fails" 2> /dev/null) || true
if [ "$message" = hang ] && [ "$nth" = "$first" ]; then
  exec sleep 1000
elif [ -n "$first" ] && [ "$nth" -ge "$first" ] && [ "$nth" -lt $((first + times)) ]; then
  echo "$message" >&2
  exit 22
fi
echo "$name $*" >> "$PLAYED/done"
"""
COMMANDS = {
    "curl": r"""
case "$*" in
  *api/token*) echo token ;;
  *region) echo eu-west-1 ;;
  *role) echo "$ROLE" ;;
  *bucket) echo bucket ;;
  *cluster) echo demo ;;
  *ami-id) echo ami-1 ;;
esac
""",
    "aws": r"""
source=${4#s3://bucket/demo/boot/} target=${5#s3://bucket/demo/boot/}
if ! [ -e "$BUCKET/$source" ]; then
  echo "fatal error: An error occurred (404) when calling the HeadObject operation: Not Found" >&2
  exit 1
fi
exec cp "$BUCKET/$source" "$target"
""",
    "dnf": r"""
cp "$PLAYED/python" "$PATH_OF_IMAGE/python3.11"
""",
    "mount": "",
    "systemctl": "",
    # The Python of the image, and that of its environments.
    "python": r"""
case "$*" in
  "-m venv"*)
    mkdir -p "${@: -1}/bin" "${@: -1}/lib"
    cp "$PLAYED/python" "${@: -1}/bin/python" ;;
  *getsitepackages*0*) echo "$PWD" ;;
  *getsitepackages*) echo /usr/lib/python3.11/site-packages ;;
  *"import keep"*)
    target=$BUCKET/${4#s3://bucket/demo/boot/}
    mkdir -p "${target%/*}" && [ -e "$target" ] || cp "$3" "$target" ;;
  *find_spec*) [ -e "$SPOTELASTIC_ROOT/opt/pytorch" ]; exit $? ;;
esac
""",
}


@dataclass(frozen=True)
class CommandFault:
    """A command fails from its nth call on, so often, and says why."""

    command: str
    first: int
    message: str
    times: int = 1


@dataclass(frozen=True)
class BootOutcome:
    """How a boot ended."""

    code: int
    console: str
    done: list[str]
    """The calls that succeeded, in order."""

    @property
    def runs(self) -> bool:
        """Whether the node was started; if not, it was shut down. Never both, and neither twice."""
        started = self.done.count("systemctl enable --now spotelastic")
        stopped = self.done.count("systemctl poweroff")
        assert (self.code, started, stopped) in {(0, 1, 0), (1, 0, 1)}, self.console
        return started == 1


@dataclass(frozen=True)
class BootingMachine:
    """An instance to be, and the bucket of its cluster."""

    folder: Path

    @property
    def bucket(self) -> Path:
        return self.folder / "bucket"

    @property
    def root(self) -> Path:
        return self.folder / "root"

    @property
    def played(self) -> Path:
        return self.folder / "played"

    def calls(self, boot: BootOutcome) -> list[str]:
        """What succeeded, alike for all machines."""
        return [call.replace(str(self.folder), "") for call in boot.done]

    def ship(self) -> None:
        """Put into the bucket what `up` puts there: of the wheel what a boot reads by itself."""
        raw = io.BytesIO()
        with zipfile.ZipFile(raw, "w") as archive:
            for name in infra_names():
                archive.write(infra(name), f"spotelastic/_infra/{name}")
        stored = self.bucket / hashlib.sha256(raw.getvalue()).hexdigest()[:16]
        stored.mkdir(parents=True)
        file = stored / "spotelastic-0.1.0-py3-none-any.whl"
        file.write_bytes(raw.getvalue())
        (stored / "constraints.txt").touch()
        (self.bucket / "current").write_text(f"{stored.name}/{file.name}")

    def boots(
        self,
        role: str = "worker",
        fault: CommandFault | None = None,
        *,
        with_torch: bool = False,
        seconds: int = 0,
        others: Mapping[str, str] = MappingProxyType({}),
    ) -> BootOutcome:
        """Boot a new instance, whose script has been running for so many seconds. `others` takes
        the place of the system's own commands.
        """
        programs, image = self.folder / "bin", self.folder / "image"
        for folder in (self.played, self.root, programs, image):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(exist_ok=True)
        for name, source in COMMANDS.items():
            program = (self.played if name == "python" else programs) / name
            program.write_text(PLAYED + source)
            program.chmod(0o755)
        for name in OF_THE_SYSTEM:
            (programs / name).symlink_to(shutil.which(name) or name)
        # The Python that every image has, for its own tools.
        others = {"python3": f'#!/bin/sh\nexec {sys.executable} "$@"\n', **others}
        for name, source in others.items():
            (programs / name).unlink(missing_ok=True)
            (programs / name).write_text(source)
            (programs / name).chmod(0o755)
        if with_torch:
            libraries = self.root / "opt/pytorch/lib/python3.12/site-packages/torch/lib"
            libraries.mkdir(parents=True)
            (libraries / "libtorch.so").write_text("torch")
            (self.root / "opt/pytorch/bin").mkdir()
            shutil.copy(self.played / "python", self.root / "opt/pytorch/bin")
        if fault is not None:
            told = f"{fault.first} {fault.times} {fault.message}\n"
            (self.played / f"{fault.command}.fails").write_text(told)
        done = subprocess.run(
            [programs / "bash", infra("boot/boot.sh")],
            cwd=self.folder,
            env={
                "PATH": f"{programs}:{image}",
                "PATH_OF_IMAGE": str(image),
                "PLAYED": str(self.played),
                "BUCKET": str(self.bucket),
                "ROLE": role,
                "SECONDS": str(seconds),
                "SPOTELASTIC_ROOT": str(self.root),
                "SPOTELASTIC_BOOT_PAUSES": " ".join("0" * (TRIES - 1)),
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENT,
            check=False,
        )
        return BootOutcome(
            done.returncode, done.stdout, (self.played / "done").read_text().splitlines()
        )


@pytest.fixture
def machine(tmp_path: Path) -> BootingMachine:
    machine = BootingMachine(tmp_path)
    machine.ship()
    return machine


@pytest.fixture(scope="module")
def without_faults(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The calls of a worker's boot without faults."""
    machine = BootingMachine(tmp_path_factory.mktemp("boot"))
    machine.ship()
    return machine.calls(machine.boots())


LOCKED = "can't create transaction lock on /var/lib/rpm/.rpm.lock"
STEPS = [
    (CommandFault("curl", 1, "curl: (7) Failed to connect"), "token of the metadata service"),
    (
        CommandFault("curl", 3, "curl: (22) returned error: 404"),
        "metadata tags/instance/spotelastic:role",
    ),
    (CommandFault("curl", 6, "curl: (22) returned error: 503"), "metadata ami-id"),
    (CommandFault("aws", 1, "fatal error: Unable to locate credentials"), "download of current"),
    (CommandFault("aws", 2, "An error occurred (403) when calling HeadObject"), "download of #/"),
    (
        CommandFault("aws", 4, "Could not connect to the endpoint URL"),
        "download of #/constraints.txt",
    ),
    (CommandFault("dnf", 1, LOCKED), "installation of Python by dnf"),
    (CommandFault("python3.11", 1, "OSError: [Errno 5] Input/output error"), "environment"),
    (CommandFault("python", 2, "ERROR: Could not install spotelastic"), "pip install"),
    (CommandFault("python", 5, "ERROR: No matching distribution for torch"), "pip install"),
    (CommandFault("systemctl", 1, "Failed to connect to bus"), "reload of systemd"),
    (CommandFault("systemctl", 2, "Failed to enable unit"), "start of spotelastic"),
]
"""Each step of a worker's boot: its command's call that fails first, and the name of the step."""


@pytest.mark.parametrize("times", [1, *soaked([3])])
@pytest.mark.parametrize("fault", [fault for fault, _ in STEPS], ids=str)
def test_a_step_that_fails_for_a_while_is_tried_again_and_no_other_is(
    machine: BootingMachine, without_faults: list[str], fault: CommandFault, times: int
) -> None:
    failed = machine.boots(fault=replace(fault, times=times))
    assert failed.runs
    assert failed.console.count(fault.message) == times
    assert machine.calls(failed) == without_faults


@pytest.mark.parametrize(("fault", "step"), STEPS, ids=str)
def test_a_step_that_fails_for_good_ends_the_instance_with_its_name_and_last_error(
    machine: BootingMachine, fault: CommandFault, step: str
) -> None:
    # The same command has to work again when the instance is shut down.
    failed = machine.boots(fault=replace(fault, times=TRIES))
    assert not failed.runs
    digest, _, _ = (machine.bucket / "current").read_text().partition("/")
    message = said(failed.console)
    assert message.startswith(step.replace("#", digest))
    assert message.endswith(f" has failed (tries: {TRIES}, exit code: 22): {fault.message}")
    assert failed.console.count(fault.message) == TRIES + 1


@pytest.mark.parametrize("role", ["worker", "control"])
def test_what_the_first_node_installed_is_all_that_the_next_one_needs(
    machine: BootingMachine, role: str
) -> None:
    first = machine.boots(role, with_torch=True)
    again = machine.boots(role, with_torch=True)
    assert first.runs and again.runs
    assert [call for call in first.done if "-m pip install" in call]
    assert not [call for call in again.done if "-m pip" in call or "-m venv" in call]
    image = "" if role == "control" else "ami-1-"
    (kept,) = machine.bucket.glob("*/*.tar.gz")
    assert kept.name.startswith(f"{role}-{image}")
    kept.write_bytes(kept.read_bytes()[:-9])  # an archive that does not open is made anew
    assert machine.boots(role, with_torch=True).runs


@pytest.mark.parametrize(
    "fault",
    [
        CommandFault("aws", 3, "Could not connect to the endpoint URL", 99),
        CommandFault("aws", 4, "An error occurred (AccessDenied) when calling PutObject", 99),
        CommandFault("mount", 1, "mount: /dev/shm: mount point is busy", 99),
    ],
    ids=str,
)
def test_a_node_boots_without_what_it_can_do_without(
    machine: BootingMachine, fault: CommandFault
) -> None:
    assert machine.boots(fault=fault, with_torch=True).runs


def test_a_wheel_that_is_not_the_one_of_its_name_is_not_installed(machine: BootingMachine) -> None:
    (file,) = machine.bucket.glob("*/*.whl")
    file.write_bytes(file.read_bytes() + b"more")
    failed = machine.boots()
    assert not failed.runs
    assert f"{file.name} has failed: its SHA-256 begins with " in said(failed.console)
    assert "pip" not in " ".join(failed.done)


def test_a_bucket_without_a_spotelastic_is_not_asked_twice(machine: BootingMachine) -> None:
    (machine.bucket / "current").unlink()
    failed = machine.boots()
    assert not failed.runs
    assert said(failed.console).startswith("download of current has failed (tries: 1, ")


def test_a_step_that_hangs_ends_before_the_controller_gives_the_instance_up(
    machine: BootingMachine,
) -> None:
    # It is the first one: each before it would have to succeed within the last second.
    failed = machine.boots(fault=CommandFault("curl", 1, "hang"), seconds=720)
    assert not failed.runs
    message = "token of the metadata service has failed (tries: 1, exit code: 124)"
    assert said(failed.console) == message


def test_the_phases_of_a_boot_are_on_the_console_and_kept_for_the_node(
    machine: BootingMachine,
) -> None:
    booted = machine.boots()
    lines = [line.split() for line in booted.console.splitlines() if line.startswith("boot: ")]
    assert [(line[1], line[3]) for line in lines] == [
        (phase, "s") for phase in ("download", "python", "packages")
    ]
    kept = (machine.root / "opt/spotelastic/phases").read_text().splitlines()
    names = [line.split()[0] for line in kept]
    assert names == ["machine", "download", "python", "packages"]
    assert all(int(line.split()[1]) >= 0 for line in kept)


def test_torch_is_read_ahead_where_the_image_has_it(machine: BootingMachine) -> None:
    read = machine.folder / "read"
    noted = f'#!/bin/bash\ntr "\\0" "\\n" > {read}.part && mv {read}.part {read}\n'
    assert machine.boots(with_torch=True, others={"xargs": noted}).runs
    eventually(read.exists, "the reading ahead")
    (library,) = read.read_text().splitlines()
    assert library.endswith("opt/pytorch/lib/python3.12/site-packages/torch/lib/libtorch.so")
