"""Prints the release notes of a tag.

    python tests/support/repo/release.py v0.1.0

Fails if the tag is not the version in `spotelastic/version.py`, or if the changelog has no section
for it.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def version() -> str:
    """As the code has it, without importing it."""
    (found,) = re.findall('__version__ = "(.*)"', (ROOT / "spotelastic/version.py").read_text())
    return str(found)


def notes(changelog: str, release: str) -> str | None:
    """What the changelog says about a version; None where it has no section."""
    found = re.search(
        rf"^## \[{re.escape(release)}\] - \d{{4}}-\d\d-\d\d\n(.*?)(?=^## |\Z)",
        changelog,
        re.M | re.S,
    )
    return found[1].strip() if found else None


def main(tag: str) -> None:
    """Print them, or end with the reason."""
    if tag != f"v{version()}":
        sys.exit(f"the tag {tag} is not the version {version()} of spotelastic/version.py")
    told = notes((ROOT / "CHANGELOG.md").read_text(), version())
    if not told:
        sys.exit(f"CHANGELOG.md says nothing of {version()}: give it a section with a date")
    print(told)


if __name__ == "__main__":
    main(sys.argv[1])
