"""A plug-in of pytest for `make test-pure`: what imports torch there or starts a process fails."""

import sys

import pytest

STARTS = frozenset(
    {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "os.exec"}
)
"""Python's audit events of a process that starts another one."""


class ImpureError(Exception):
    """A test of decisions has done more than decide."""


def refuse(event: str, args: tuple[object, ...]) -> None:
    """Hear of one of Python's audit events. Raises `ImpureError`, from where it was done."""
    if event in STARTS:
        raise ImpureError(f"a test of make test-pure starts a process ({event})")
    if event == "import" and str(args[0]).partition(".")[0] == "torch":
        raise ImpureError("a test of make test-pure imports torch")


def pytest_configure(config: pytest.Config) -> None:
    # The process that hands out the tests to others has to start these.
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        sys.addaudithook(refuse)
