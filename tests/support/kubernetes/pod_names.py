"""Names that a test gives to addresses of this machine, as a cluster's name server gives them to
pods.

Processes that are started with `Names.inside` have a host name of their own, and find the names in
/etc/hosts, which is another file for them alone (a mount namespace). All of them see each change.
"""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from support.processes.patience import PATIENT

_ENTER = (
    'mount --bind "$0" /etc/hosts && echo "$1" >/proc/sys/kernel/hostname && shift && exec "$@"'
)


class Names:
    """Addresses by name; a name may be without one for a while."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._known: dict[str, str] = {}
        self._write()

    def set(self, name: str, address: str) -> None:
        """From now on the name has this address, and no other one."""
        self._known[name] = address
        self._write()

    def remove(self, name: str) -> None:
        """From now on the name has no address."""
        del self._known[name]
        self._write()

    def inside(self, hostname: str) -> Sequence[str]:
        """What is put before a command, so that it runs on a machine of this name."""
        rights = () if os.geteuid() == 0 else ("--map-root-user",)
        return (
            *("unshare", "--mount", "--uts"),
            *rights,
            "sh",
            "-c",
            _ENTER,
            str(self._file),
            hostname,
        )

    def _write(self) -> None:
        # In place: the mounts are of this very file.
        lines = ["127.0.0.1 localhost", *(f"{at} {name}" for name, at in self._known.items())]
        self._file.write_text("\n".join(lines) + "\n")


def why_not(folder: Path) -> str:
    """Why there can be no such names here; empty where there can."""
    names = Names(folder / "hosts")
    try:
        subprocess.run(
            [*names.inside("probe"), "true"],
            check=True,
            capture_output=True,
            text=True,
            timeout=PATIENT,
        )
    except (OSError, subprocess.CalledProcessError) as error:
        return f"no names can be made here: {getattr(error, 'stderr', None) or error}"
    return ""
