"""The files that a worker's pod finds: the job's description, and its code in several parts (pure).

In place of the code there may be its URL, from which the pod reads it.

They are ConfigMaps of fixed names, which the pod mounts: so a worker needs no access to the API. A
pod may start while they are changed, and verifies the code by the hash in the description.
"""

import gzip
import json
from pathlib import Path

from spotelastic.errors import EnvironmentFailure

FOLDER = Path("/etc/spotelastic")
JOB_VOLUME, CODE_VOLUME = "job", "code"
JOB_FILE = "data"
PART_BYTES = 700_000
MOST_PARTS = 8
MOST_CODE = 5 * 2**20
"""Most bytes of an archive that ConfigMaps hold."""
_GZIP = b"\x1f\x8b"
"""What each archive begins with."""


def fits(archive: bytes) -> bool:
    """Whether ConfigMaps hold the archive."""
    return len(archive) <= MOST_CODE


def parts(archive: bytes) -> list[bytes]:
    """Return an archive that `fits` in parts, for a ConfigMap each."""
    assert fits(archive)
    return [archive[at : at + PART_BYTES] for at in range(0, len(archive), PART_BYTES)]


def part_name(cluster: str, number: int) -> str:
    """Return the name of the ConfigMap with one part of the code."""
    return f"{cluster}.code.{number}"


def part_file(number: int) -> str:
    """Return the file in which a pod finds one part of the code."""
    return f"part-{number}"


def code(folder: Path) -> bytes:
    """Return the archive that a pod finds. Raises `EnvironmentFailure`."""
    found = []
    for number in range(MOST_PARTS):
        path = folder / part_file(number)
        if not path.exists():
            break
        found.append(path.read_bytes())
    if not found:
        raise EnvironmentFailure(f"there is no code in {folder}")
    return b"".join(found)


def code_at(url: str) -> bytes:
    """Return what is shipped in place of code that is at a URL."""
    return json.dumps({"url": url}).encode()


def url_of(archive: bytes) -> str:
    """Return the URL that stands in place of code; empty for the code itself."""
    is_code = archive.startswith(_GZIP)
    return "" if is_code else str(json.loads(archive)["url"])


def job(folder: Path) -> bytes:
    """Return the description of the job that a pod finds. Raises `EnvironmentFailure`."""
    try:
        return gzip.decompress((folder / JOB_FILE).read_bytes())
    except (OSError, EOFError) as error:
        raise EnvironmentFailure(f"there is no description of a job in {folder}: {error}") from None
