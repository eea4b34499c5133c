"""Downloads micromamba, which builds conda environments on nodes whose image has no conda.

The node that builds an environment fetches it, in one version whose SHA-256 is known.
"""

import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from spotelastic.aws.artifacts import downloads
from spotelastic.errors import Unavailable

TRIES = 3
"""Downloads that are tried. The job fails without micromamba, while nodes are being paid for."""


@dataclass(frozen=True, slots=True)
class MicromambaRelease:
    """A release for x86_64, which all workers are."""

    version: str
    sha256: str
    site: str = "https://github.com/mamba-org/micromamba-releases/releases/download"
    pause: float = 2.0
    """Seconds between two tries to download it."""

    @property
    def url(self) -> str:
        """Where the release is published."""
        return f"{self.site}/{self.version}/micromamba-linux-64"


RELEASE = MicromambaRelease(
    "2.9.0-0", "366cd9cd8be14df1ab8ed50352a82111082a36686b2d389fdb79a92c3fafb3e3"
)


def ensure(folder: Path, release: MicromambaRelease) -> Path:
    """Return the program in `folder`, downloading it if it is missing.

    Raises `Unavailable` if it cannot be had, `EnvironmentFailure` if its checksum differs.
    """
    program = (
        folder / f"micromamba-{release.version}" / "micromamba"
    )  # the program looks at its own file name
    if program.exists():
        return program
    data = _fetch(release)
    program.parent.mkdir(parents=True, exist_ok=True)
    beside = program.with_name(".micromamba")
    beside.write_bytes(data)
    beside.chmod(0o755)
    return beside.rename(program)


def _fetch(release: MicromambaRelease) -> bytes:
    for _ in range(TRIES - 1):
        with suppress(Unavailable):
            return downloads.fetch(release.url, release.sha256, "micromamba")
        time.sleep(release.pause)
    return downloads.fetch(release.url, release.sha256, "micromamba")
