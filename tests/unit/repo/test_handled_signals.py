"""Which signals a process handles."""

import signal
from collections.abc import Iterator

import pytest

from spotelastic.linux import handled


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
    with handled((signal.SIGHUP, signal.SIGTERM), lambda sig, frame: heard.append(sig)):
        for sig in (signal.SIGHUP, signal.SIGTERM):
            signal.raise_signal(sig)
    assert heard == [signal.SIGTERM]
    assert signal.getsignal(signal.SIGTERM) is term
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
