"""A plug-in of pytest for `make test-pure`: what imports torch there or starts a process fails.

To take half a minute, it tries few examples, and of each simulation the first case.
"""

import sys

import pytest
from support import draws
from support.places import TESTS

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


def pytest_configure() -> None:
    draws.OF = 12


def pytest_collection(session: pytest.Session) -> None:
    """Everything is refused from the first import of a test."""
    # The process that hands out the tests to others has to start these.
    if hasattr(session.config, "workerinput") or not session.config.getoption("numprocesses", None):
        sys.addaudithook(refuse)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    seen: set[str] = set()
    kept, left = list[pytest.Item](), list[pytest.Item]()
    for item in items:
        test = item.nodeid.partition("[")[0]
        simulates = TESTS / "sim" in item.path.parents
        (left if simulates and test in seen else kept).append(item)
        seen.add(test)
    config.hook.pytest_deselected(items=left)
    items[:] = kept
