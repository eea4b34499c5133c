"""Names the archives of the command `dump`, which are never shipped."""

import re
from datetime import UTC, datetime

_FILE = re.compile(r".+-dump-\d{8}-\d{6}\.tar\.gz")


def file_name(cluster: str, node: str | None, at: float) -> str:
    """Return the name of the archive that the command `dump` writes."""
    when = datetime.fromtimestamp(at, UTC).strftime("%Y%m%d-%H%M%S")
    return f"{'-'.join(filter(None, (cluster, node)))}-dump-{when}.tar.gz"


def is_dump(name: str) -> bool:
    """Whether a file has the name of such an archive."""
    return _FILE.fullmatch(name) is not None
