"""Where a job's code comes from.

It is a folder that is shipped to the nodes, or a place that they reach by themselves.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from spotelastic import validation
from spotelastic.aws.artifacts import code_archive, requirements
from spotelastic.client.config.config_file import FILE
from spotelastic.client.config.job_config import SCRIPT, JobConfig
from spotelastic.errors import UsageError
from spotelastic.model.job import Environment


@dataclass(frozen=True, slots=True)
class JobCode:
    """What a job runs."""

    archive: code_archive.Archive
    """What is shipped. Its hash is empty for code that is in the image."""
    environment: Environment | None = None
    folder: str = ""
    """The folder that was packed; empty: none was."""


class CodeSource(Protocol):
    """A place that a job's code comes from."""

    def script(self, config: JobConfig) -> str:
        """Return the path of the script, within the code. Raises `UsageError`."""

    def code(self, config: JobConfig, script: str) -> JobCode:
        """Return the code, which has the script. Raises `UsageError`."""


@dataclass(frozen=True, slots=True)
class FolderCode:
    """The code is a folder of this machine."""

    folder: Path

    def script(self, config: JobConfig) -> str:
        """Return the path of the script, which is there and is Python."""
        if config.script is None and not (self.folder / SCRIPT).is_file():
            raise UsageError(
                f"no script was given and there is no {SCRIPT} here: name one, or run "
                f"`spotelastic init` to write {FILE}"
            )
        path = Path(config.script or SCRIPT)
        validation.script(path, self.folder)
        return validation.within(path, self.folder)

    def code(self, config: JobConfig, script: str) -> JobCode:
        """Pack the folder."""
        archive = code_archive.pack(self.folder)
        archive.require(script)
        environment = requirements.find(self.folder, config.environment, archive.sha256)
        if environment is not None:
            archive.require(validation.within(Path(environment.file), self.folder))
        return JobCode(archive, environment, str(self.folder.resolve()))


@dataclass(frozen=True, slots=True)
class PlacedCode:
    """The code is where the nodes find it: in their image, or at a URL. It is not looked at."""

    archive: code_archive.Archive = code_archive.Archive("", b"", 0)
    """What is shipped in its place; by default nothing, for code that is in the image."""

    def script(self, config: JobConfig) -> str:
        """Return the path of the script."""
        return Path(config.script or SCRIPT).as_posix()

    def code(self, config: JobConfig, script: str) -> JobCode:
        """Return what is shipped in the code's place."""
        return JobCode(self.archive)
