"""Disks and interfaces of an instance: files as disks, a network namespace with an interface."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from spotelastic.aws import hardware
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
        timeout=20,
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
    return os.geteuid() == 0 and not subprocess.call(["unshare", "-n", "true"])


@pytest.mark.skipif(not can_make_namespaces(), reason="needs network namespaces")
def test_what_comes_from_the_members_address_leaves_by_its_interface() -> None:
    commands = "\n".join(map(" ".join, hardware.routes("own0", "10.64.0.253", "10.64.0.0/22")))
    done = subprocess.run(
        ["unshare", "-n", "sh", "-c", ROUTED.format(commands=commands)],
        capture_output=True,
        text=True,
        check=False,
        timeout=20,
    )
    assert done.returncode == 0, done.stderr
    world, neighbour, *rules = done.stdout.replace("\n    cache", "").splitlines()
    assert "from 10.64.0.253 via 10.64.0.1 dev own0" in world
    assert neighbour.startswith("10.64.0.9 from 10.64.0.253 dev own0")
    assert len([rule for rule in rules if "from 10.64.0.253 lookup 10001" in rule]) == 1


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


def test_what_the_machine_refuses_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EnvironmentFailure, match=r"^ip link show dev nobody: .*nobody") as told:
        hardware._command("ip", "link", "show", "dev", "nobody")
    assert "\n" not in str(told.value)
