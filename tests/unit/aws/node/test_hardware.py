"""Disks and interfaces of an instance: files as disks, a network namespace with an interface."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.processes.patience import PATIENT

from spotelastic.aws.node import hardware
from spotelastic.errors import EnvironmentFailure

BLANK = 8 << 20
# A namespace that ends with its last process, in which an interface stands for the attached one.
ROUTED = """
set -e
ip link add own0 type veth peer name other
ip link set dev other up
{commands}
{commands}
ip route get 1.1.1.1 from 10.64.0.253
ip route get 10.64.0.9 from 10.64.0.253
ip rule list priority 10001
"""


def kind(disk: Path) -> str:
    found = subprocess.run(
        ["blkid", "-p", "-o", "value", "-s", "UUID", str(disk)],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENT,
    )
    return found.stdout.strip()


@pytest.mark.skipif(shutil.which("mkfs.ext4") is None, reason="needs mkfs.ext4")
def test_a_disk_is_formatted_only_if_it_is_blank(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    with disk.open("wb") as file:
        file.truncate(BLANK)
    hardware.format_blank(disk)
    made = kind(disk)
    assert made
    hardware.format_blank(disk)
    assert kind(disk) == made

    unknown = tmp_path / "unknown"
    unknown.write_bytes(b"\0" * 4096 + b"somebody's data" + b"\0" * BLANK)
    before = unknown.read_bytes()
    hardware.format_blank(unknown)
    assert unknown.read_bytes() == before

    with pytest.raises(FileNotFoundError):
        hardware.format_blank(tmp_path / "gone")


def can_make_namespaces() -> bool:
    return os.geteuid() == 0 and not subprocess.call(["unshare", "-n", "-m", "true"])


needs_namespaces = pytest.mark.skipif(not can_make_namespaces(), reason="needs namespaces")


@needs_namespaces
def test_what_comes_from_the_members_address_leaves_by_its_interface() -> None:
    commands = "\n".join(map(" ".join, hardware.routes("own0", "10.64.0.253", "10.64.0.0/22")))
    done = subprocess.run(
        ["unshare", "-n", "sh", "-c", ROUTED.format(commands=commands)],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENT,
    )
    assert done.returncode == 0, done.stderr
    world, neighbour, *rules = done.stdout.replace("\n    cache", "").splitlines()
    assert "from 10.64.0.253 via 10.64.0.1 dev own0" in world
    assert neighbour.startswith("10.64.0.9 from 10.64.0.253 dev own0")
    assert len([rule for rule in rules if "from 10.64.0.253 lookup 10001" in rule]) == 1


# In a namespace of mounts, which ends with its last process.
SCRATCH = """
import sys
from pathlib import Path
from spotelastic.aws.node import hardware

there = Path(sys.argv[1])
hardware.BY_ID, hardware.SCRATCH = there / "by-id", there / "mounted"
hardware.IMAGE_SCRATCH, hardware.ARRAY = there / "image", there / "array"
made = hardware.of_this_instance().scratch(there / "home")
assert hardware.of_this_instance().scratch(there / "home") == made, "again"
(made / "written").write_text("here")
print(made.relative_to(there))
"""


def scratch(there: Path, before: str = "true", **environment: str) -> str:
    """Where a worker has it whose disks, mounts and home are below `there`."""
    python = (sys.executable, SCRATCH, str(there))
    done = subprocess.run(
        ["unshare", "-m", "sh", "-ec", f'{before}; "$0" -c "$1" "$2"', *python],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENT,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def instance_disk(there: Path) -> Path:
    """An NVMe disk of the instance store, blank."""
    disk = there / "nvme1n1"
    with disk.open("wb") as file:
        file.truncate(BLANK)
    (there / "by-id").mkdir()
    (there / "by-id" / f"{hardware.INSTANCE_STORE}AWS1").symlink_to(disk)
    return disk


@needs_namespaces
def test_without_disks_of_its_own_scratch_is_below_the_home(tmp_path: Path) -> None:
    assert scratch(tmp_path) == "home/scratch"
    assert (tmp_path / "home/scratch/written").exists()


@needs_namespaces
@pytest.mark.skipif(not Path("/dev/loop-control").exists(), reason="needs files as disks")
def test_scratch_is_on_the_instance_store(tmp_path: Path) -> None:
    disk = instance_disk(tmp_path)
    assert scratch(tmp_path) == "mounted"
    assert kind(disk), "it is formatted"
    assert not (tmp_path / "mounted/written").exists(), "it is not on the root disk"


@needs_namespaces
def test_what_the_image_has_mounted_is_not_mounted_again(tmp_path: Path) -> None:
    disk, image = instance_disk(tmp_path), tmp_path / "image"
    image.mkdir()
    assert scratch(tmp_path, f"mount -t tmpfs none {image}") == "image/spotelastic"
    assert not kind(disk)


@needs_namespaces
def test_in_the_local_cloud_scratch_touches_no_disk_of_the_machine(tmp_path: Path) -> None:
    disk = instance_disk(tmp_path)
    assert scratch(tmp_path, SPOTELASTIC_VOLUMES=str(tmp_path)) == "home/scratch"
    assert not kind(disk)


def test_each_disk_of_the_instance_store_counts_once(tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / f"nvme{number}n1").touch()
        name = f"{hardware.INSTANCE_STORE}AWS{number}"
        for alias in (name, f"{name}_1", f"{name}-ns-1"):
            (tmp_path / alias).symlink_to(f"nvme{number}n1")
        (tmp_path / f"{name}-part1").symlink_to(f"nvme{number}n1p1")
    (tmp_path / f"{hardware.EBS}vol0123").symlink_to("nvme0n1")
    found = hardware.instance_store(tmp_path)
    assert [path.name for path in found] == ["nvme1n1", "nvme2n1"]


def test_what_the_machine_refuses_is_one_line() -> None:
    with pytest.raises(EnvironmentFailure, match=r"^ip link show dev nobody: .*nobody") as told:
        hardware.command("ip", "link", "show", "dev", "nobody")
    assert "\n" not in str(told.value)
