"""The archive of a dump: files without secrets, and an index.

The index says what is there and what is missing.
"""

import io
import os
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from spotelastic.client.dumps.redaction import Redaction
from spotelastic.errors import UsageError, told

INDEX = "index.json"


@dataclass(frozen=True, slots=True)
class DumpedFile:
    name: str
    size: int
    """Bytes."""


@dataclass(frozen=True, slots=True)
class DumpIndex:
    """What an archive has. `missing`: what it could not get, and why."""

    cluster: str
    made_at: float
    versions: Mapping[str, object]
    """The versions on the machine where the command ran."""
    files: tuple[DumpedFile, ...]
    missing: tuple[str, ...]


@dataclass(slots=True)
class DumpArchive:
    """The files of an archive that is being made. All texts go through `hide`."""

    hide: Redaction
    files: dict[str, bytes] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)

    def text(self, name: str, text: str) -> None:
        if text.strip():
            self.files[name] = self.hide.text(text).encode(errors="replace")

    def json(self, name: str, value: object) -> None:
        self.files[name] = self.hide.json(value)

    def lack(self, what: str, error: Exception | str) -> None:
        """Record what cannot be had."""
        why = told(error) if isinstance(error, Exception) else error
        self.missing.append(self.hide.text(f"{what}: {why}"))

    def write(self, file: Path, index: DumpIndex) -> None:
        """Write the archive to a file that others cannot read, whole or not at all.

        Raises `UsageError` if the file cannot be written.
        """
        folder, part = file.name.removesuffix(".tar.gz"), file.with_name(f".{file.name}.part")
        try:
            with (
                os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as to,
                tarfile.open(fileobj=to, mode="w:gz") as tar,
            ):
                for name, data in {INDEX: self.hide.json(index), **self.files}.items():
                    entry = tarfile.TarInfo(f"{folder}/{name}")
                    entry.size, entry.mtime = len(data), int(index.made_at)
                    tar.addfile(entry, io.BytesIO(data))
            part.replace(file)
        except OSError as error:
            part.unlink(missing_ok=True)
            raise UsageError(f"--output {file}: {error.strerror}") from error

    def listing(self) -> tuple[DumpedFile, ...]:
        return tuple(DumpedFile(name, len(data)) for name, data in sorted(self.files.items()))
