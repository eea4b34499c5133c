"""Which signals an agent handles."""

import signal
from collections.abc import Iterator

import pytest

from spotelastic.agent.run import handle


@pytest.fixture
def inherited() -> Iterator[None]:
    """As after `nohup`: SIGHUP is ignored."""
    before = {sig: signal.getsignal(sig) for sig in (signal.SIGHUP, signal.SIGTERM)}
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    yield
    for sig, handler in before.items():
        signal.signal(sig, handler)


def test_a_signal_that_is_ignored_stays_so(inherited: None) -> None:
    heard: list[int] = []
    term = signal.getsignal(signal.SIGTERM)
    before = handle((signal.SIGHUP, signal.SIGTERM), lambda sig, frame: heard.append(sig))
    for sig in (signal.SIGHUP, signal.SIGTERM):
        signal.raise_signal(sig)
    assert heard == [signal.SIGTERM]
    assert before == {signal.SIGTERM: term}
