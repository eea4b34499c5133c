"""Prepares this instance's disks and network interfaces after EC2 has attached them.

An instance of the local cloud has none of them: `of_this_instance` returns what stands for them.
"""

import os
import subprocess
from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path

from spotelastic.aws.base.imds import DEFAULT_URL, Imds
from spotelastic.aws.base.waiting import until
from spotelastic.errors import EnvironmentFailure

BY_ID = Path("/dev/disk/by-id")
EBS = "nvme-Amazon_Elastic_Block_Store_"
INSTANCE_STORE = "nvme-Amazon_EC2_NVMe_Instance_Storage_"
VOLUMES = Path("/var/lib/spotelastic")
SCRATCH = Path("/mnt/spotelastic")
IMAGE_SCRATCH = Path("/opt/dlami/nvme")
"""Where Deep Learning images mount the instance store."""
TABLE = "10001"
"""Routing table of the member's interface, and priority of the rule that leads to it."""
APPEARS_WITHIN = 60.0
COMMAND_WITHIN = 300.0
_BLANK = 1 << 20
"""Bytes at a disk's start that are not all zero on any disk that was ever used."""


def of_this_instance() -> "Hardware":
    """Return the hardware of the instance that this process runs on."""
    volumes = os.environ.get("SPOTELASTIC_VOLUMES")
    return FolderHardware(Path(volumes)) if volumes else Ec2Hardware()


@dataclass(frozen=True, slots=True)
class FolderHardware:
    """An instance of the local cloud: volumes are folders, and every address exists already."""

    volumes: Path
    has_devices: bool = False
    """Whether it has the GPUs and network devices of its type."""

    def mounted(self, volume: str) -> Path:
        return self.volumes / volume

    def configure(self, mac: str, address: str) -> None: ...

    def scratch(self, home: Path) -> Path:
        return scratch_below(home)


class Ec2Hardware:
    """An instance of EC2."""

    has_devices = True

    def mounted(self, volume: str) -> Path:
        """Return the mount point of an attached volume, formatting the disk only if it is blank.

        The disk is found by its serial number, whatever name the kernel gave it.
        """
        disk = BY_ID / (EBS + volume.replace("-", ""))
        until(lambda: disk.exists() or None, f"the disk {disk} does not appear", APPEARS_WITHIN)
        return mount(disk, VOLUMES / volume)

    def configure(self, mac: str, address: str) -> None:
        """Route answers of the member's interface back through that interface.

        Otherwise they would leave by the instance's first interface, and EC2 drops packets whose
        source address belongs to another interface.
        """
        found = until(lambda: _device(mac), f"no interface with {mac} appears", APPEARS_WITHIN)
        subnet = until(
            lambda: _subnet(mac), f"the metadata of {mac} does not appear", APPEARS_WITHIN
        )
        for words in routes(found, address, subnet):
            command(*words)

    def scratch(self, home: Path) -> Path:
        """Return a folder for data that may be lost with the node.

        It is on NVMe disks if there are any, else below `home`.
        """
        disks = instance_store(BY_ID)
        if os.path.ismount(IMAGE_SCRATCH):
            folder = IMAGE_SCRATCH / "spotelastic"
        elif disks:
            folder = mount(disks[0], SCRATCH)
        else:
            return scratch_below(home)
        folder.mkdir(parents=True, exist_ok=True)
        return folder


Hardware = FolderHardware | Ec2Hardware
"""What an instance has beside its cores."""

# -- a member's disk -----------------------------------------------------------------------------


def mount(disk: Path, folder: Path) -> Path:
    """Mount the disk on `folder`, unless something is mounted there."""
    if not os.path.ismount(folder):
        format_blank(disk)
        folder.mkdir(parents=True, exist_ok=True)
        command("mount", "-o", "noatime", str(disk), str(folder))
    return folder


def format_blank(disk: Path) -> None:
    """Format a blank disk; any other is left alone. Raises `OSError` if it cannot be read."""
    with disk.open("rb") as start:
        if not any(start.read(_BLANK)):
            # A blank disk need not be trimmed, which takes minutes on a large one.
            command("mkfs.ext4", "-q", "-E", "nodiscard", str(disk))


# -- a member's interface ------------------------------------------------------------------------


def routes(device: str, address: str, subnet: str) -> tuple[tuple[str, ...], ...]:
    """Return the commands, each of which can be repeated (pure). `subnet` is a CIDR block."""
    gateway = str(IPv4Network(subnet)[1])
    own = ("dev", device, "table", TABLE)
    return (
        ("ip", "link", "set", "dev", device, "up"),
        ("ip", "address", "replace", f"{address}/32", "dev", device),
        ("ip", "route", "replace", subnet, *own, "src", address),
        ("ip", "route", "replace", "default", "via", gateway, *own, "src", address, "onlink"),
        # A rule cannot be replaced, and one that is added twice exists twice.
        ("ip", "rule", "flush", "priority", TABLE),
        ("ip", "rule", "add", "from", address, "lookup", TABLE, "priority", TABLE),
    )


def _device(mac: str) -> str | None:
    for path in Path("/sys/class/net").glob("*/address"):
        if path.read_text().strip() == mac:
            return path.parent.name
    return None


def _subnet(mac: str) -> str | None:
    url = os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT", DEFAULT_URL)
    return Imds(url).get(f"network/interfaces/macs/{mac}/subnet-ipv4-cidr-block")


# -- a worker's instance store -------------------------------------------------------------------


def scratch_below(home: Path) -> Path:
    """Return a scratch folder below `home`."""
    folder = home / "scratch"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def instance_store(by_id: Path) -> tuple[Path, ...]:
    """Return the disks of the instance store, each once: udev gives one disk several names."""
    names = by_id.glob(f"{INSTANCE_STORE}*")
    return tuple(sorted({name.resolve() for name in names if "-part" not in name.name}))


def command(*words: str) -> None:
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, check=False, timeout=COMMAND_WITHIN
        )
    except subprocess.TimeoutExpired:
        told = f"{' '.join(words)}: did not end within {COMMAND_WITHIN:g} s"
        raise EnvironmentFailure(told) from None
    if done.returncode:
        raise EnvironmentFailure(f"{' '.join(words)}: {done.stderr.strip()}")
