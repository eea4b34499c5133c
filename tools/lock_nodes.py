"""Writes which packages a node installs: those that were tested, with the hashes of their files.

python tools/lock_nodes.py                 # asks the package index for the hashes
python tools/lock_nodes.py --no-hashes     # versions alone, where there is no index

Nodes install spotelastic without torch. The versions are those of
constraints.txt, and the packages all that these need on Linux with any Python that nodes may have.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from importlib.metadata import requires
from pathlib import Path
from urllib.request import urlopen

from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "infra/boot/packages.txt"
INDEX = "https://pypi.org/pypi/{name}/{version}/json"
PYTHONS = ("3.11", "3.12", "3.13")
MACHINES = ("x86_64", "aarch64")
WITHIN = 60.0
"""Seconds within which the index must answer."""


def packages(root: str = "spotelastic") -> set[str]:
    """Return the names of all packages that a node needs, but that of the root."""
    found: set[tuple[str, str]] = set()
    waiting = [Requirement(root)]
    while waiting:
        wanted = waiting.pop()
        for extra in ("", *wanted.extras):
            which = canonicalize_name(wanted.name), extra
            if which not in found:
                found.add(which)
                waiting += _needs(wanted.name, extra)
    return {name for name, _ in found} - {canonicalize_name(Requirement(root).name)}


def _needs(name: str, extra: str) -> Iterator[Requirement]:
    for text in requires(name) or ():
        needed = Requirement(text)
        if needed.marker is None:
            if not extra:
                yield needed
        elif any(needed.marker.evaluate(each) for each in _environments(extra)):
            yield needed


def _environments(extra: str) -> Iterator[dict[str, str]]:
    here = {**default_environment(), "sys_platform": "linux", "platform_system": "Linux"}
    for python in PYTHONS:
        for machine in MACHINES:
            yield here | {
                "python_version": python,
                "python_full_version": f"{python}.0",
                "platform_machine": machine,
                "extra": extra,
            }


def versions() -> dict[str, str]:
    """Return the tested version of each package."""
    lines = (ROOT / "constraints.txt").read_text().split()
    pairs = (line.split("==") for line in lines)
    return {canonicalize_name(name): version for name, version in pairs}


def hashes(name: str, version: str, index: str = INDEX) -> list[str]:
    """Return the SHA-256 of each file of a release that was not withdrawn."""
    with urlopen(index.format(name=name, version=version), timeout=WITHIN) as answer:
        files = json.load(answer)["urls"]
    return sorted(each["digests"]["sha256"] for each in files if not each["yanked"])


def locked(index: str) -> Iterator[str]:
    """Yield the entries of the file; without an index they have no hashes."""
    tested = versions()
    for name in sorted(packages()):
        line = f"{name}=={tested[name]}"
        its = hashes(name, tested[name], index) if index else []
        yield " \\\n    ".join([line, *(f"--hash=sha256:{each}" for each in its)])


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--no-hashes", action="store_true", help="versions alone")
    index = "" if parser.parse_args().no_hashes else INDEX
    LOCK.write_text("\n".join(locked(index)) + "\n")
    print(f"{LOCK.relative_to(ROOT)}: {len(packages())} packages", file=sys.stderr)


if __name__ == "__main__":
    main()
