"""Says what runs on which operating system.

Nodes run Linux, and so does everything that imitates one: `--local`, `spotelastic run`, a script
with a `Checkpointer`. The commands that work on an AWS account run on macOS, too. Windows runs all
of it in WSL, which is Linux.
"""

import sys

from spotelastic.errors import EnvironmentFailure

NAMES = {"darwin": "macOS", "win32": "Windows"}


def has_linux() -> bool:
    """Whether this machine can be a node."""
    return sys.platform == "linux"


def require_linux(what: str) -> None:
    """Raise `EnvironmentFailure` where this is not Linux; `what` is what needs it."""
    refuse_windows()
    if not has_linux():
        name = NAMES.get(sys.platform, sys.platform)
        raise EnvironmentFailure(
            f"{what} needs Linux, and this is {name}: train on AWS with `spotelastic up`, or do "
            "this on a Linux machine or in a Linux container"
        )


def refuse_windows() -> None:
    """Raise `EnvironmentFailure` on Windows itself, on which nothing of this runs."""
    if sys.platform == "win32":
        raise EnvironmentFailure(
            "spotelastic does not run on Windows itself: install WSL (`wsl --install`), and use it "
            "in there"
        )
