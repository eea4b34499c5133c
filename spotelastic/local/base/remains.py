"""Removes everything that a local cloud has on the machine: processes, shared memory, files.

Called by the cloud itself, by its hypervisor, or by the next cloud.
"""

import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

from spotelastic.local.base import processes

_SHARED_MEMORY = Path("/dev/shm")


@dataclass(frozen=True, slots=True)
class Remains:
    """What a cloud has on the machine."""

    folder: str
    """Temporary folder: consoles, volumes, the cloud's log."""
    record: str
    """The file that announces the cloud (local.json)."""

    @property
    def cloud(self) -> str:
        """The cloud's id."""
        return Path(self.folder).name.removeprefix("spotelastic-")

    @property
    def shm(self) -> Path:
        """The cloud's folder in shared memory."""
        return _SHARED_MEMORY / f"spotelastic-{self.cloud}"

    def remove(self) -> None:
        """End all processes of all instances, then remove shared memory, folder and record."""
        processes.end(lambda: processes.marked(self.cloud))
        shutil.rmtree(self.shm, ignore_errors=True)
        shutil.rmtree(self.folder, ignore_errors=True)
        record = Path(self.record)
        if _folder_in(record) == self.folder:
            record.unlink(missing_ok=True)

    def dumps(self) -> str:
        """Return it as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def loads(cls, text: str) -> "Remains":
        """Return the value of such JSON."""
        return cls(**json.loads(text))


def write_atomically(path: Path, text: str) -> None:
    """Replace a file as a whole. Nobody but its owner can read it."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.touch(mode=0o600)
    temporary.write_text(text)
    temporary.replace(path)


def _folder_in(record: Path) -> str:
    try:
        return str(json.loads(record.read_text()).get("folder", ""))
    except (OSError, ValueError):
        return ""
