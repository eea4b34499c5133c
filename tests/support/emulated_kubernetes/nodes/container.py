"""The first process of a pod: enters namespaces of its own, mounts volumes, becomes the command.

A pod sees this machine's files, and in them its own `/etc/hosts`, `/dev/shm` and volumes; it has
its own host name. It shares the network, so each pod has an address of its own on the loopback
interface. Root is not needed where the kernel lets users make namespaces.

A volume may be mounted where there is nothing: then the folder above is replaced by a copy of
itself in memory, whose entries are mounts of the original ones. Nothing of this machine's files is
changed.
"""

import ctypes
import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

CANNOT_START = 128
"""The exit code of a container whose command cannot be started."""

_CLONE_NEWNS, _CLONE_NEWUTS, _CLONE_NEWUSER = 0x20000, 0x4000000, 0x10000000
_MS_RDONLY, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18
_libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """Become the container that the file named by the first argument describes. Without one, only
    try whether this machine lets processes have mounts of their own.
    """
    if len(sys.argv) == 1:
        enter_namespaces()
        return
    told = json.loads(Path(sys.argv[1]).read_text())
    try:
        enter_namespaces()
        _mount_all(told)
        socket.sethostname(told["hostname"])
        os.chdir(told["workdir"])
        os.execvpe(told["argv"][0], told["argv"], told["env"])
    except OSError as error:
        sys.stderr.write(f"cannot start {told['argv'][0]}: {error}\n")
        sys.stderr.flush()
        os._exit(CANNOT_START)


def enter_namespaces() -> None:
    """Give this process mounts and a host name of its own. Raises `OSError`."""
    user, group = os.geteuid(), os.getegid()
    if not _unshare(_CLONE_NEWNS | _CLONE_NEWUTS):
        if not _unshare(_CLONE_NEWUSER | _CLONE_NEWNS | _CLONE_NEWUTS):
            error = ctypes.get_errno()
            raise OSError(error, f"no namespaces: {os.strerror(error)}")
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    _mount("none", "/", "", _MS_REC | _MS_PRIVATE)


def _mount_all(told: dict[str, Any]) -> None:
    mounts = [(each["from"], Path(each["at"])) for each in told["mounts"]]
    root = Path(told["root"])
    if any(not Path("/", at.parts[1]).exists() for _, at in mounts):
        held = os.open("/", os.O_PATH)
        root.mkdir(parents=True)
        _copy_by_mounts(held, root)
        os.chroot(root)
        os.close(held)
    for source, at in sorted(mounts, key=lambda each: len(each[1].parts)):
        _make_place(at, is_folder=Path(source).is_dir())
        _mount(source, str(at), "", _MS_BIND | _MS_REC)


def _make_place(at: Path, *, is_folder: bool) -> None:
    """Make the file or folder that is mounted over, unless it is there."""
    if at.exists():
        return
    above = next(folder for folder in at.parents if folder.exists())
    if above != Path("/"):  # else it is a copy already
        held = os.open(above, os.O_PATH | os.O_DIRECTORY)
        _copy_by_mounts(held, above)
        os.close(held)
    (at if is_folder else at.parent).mkdir(parents=True, exist_ok=True)
    if not is_folder:
        at.touch()


def _copy_by_mounts(held: int, at: Path) -> None:
    """Mount a folder in memory, with the entries of an open folder as mounts of these."""
    _mount("tmpfs", str(at), "tmpfs", 0)
    original = Path(f"/proc/self/fd/{held}")
    for entry in os.scandir(original):
        place = at / entry.name
        if entry.is_symlink():
            place.symlink_to((original / entry.name).readlink())
        elif entry.is_dir():
            place.mkdir()
            _mount(str(original / entry.name), str(place), "", _MS_BIND | _MS_REC)
        else:
            place.touch()
            _mount(str(original / entry.name), str(place), "", _MS_BIND)


def _unshare(flags: int) -> bool:
    return int(_libc.unshare(flags)) == 0


def _mount(source: str, target: str, type: str, flags: int) -> None:
    words = (each.encode() for each in (source, target, type))
    if _libc.mount(*words, ctypes.c_ulong(flags), None):
        error = ctypes.get_errno()
        raise OSError(error, f"cannot mount {target}: {os.strerror(error)}")
