"""A session keeps its lease, and says once when it is lost."""

import queue
from typing import cast

import pytest
from support.processes.patience import PATIENT
from support.store.etcd_members import wait_until

from spotelastic.errors import Unavailable
from spotelastic.store.port import Store
from spotelastic.store.session import Keeper, Session

pytestmark = pytest.mark.usefixtures("no_leftover_threads")

LONG = PATIENT


@pytest.fixture
def lost() -> "queue.SimpleQueue[str]":
    return queue.SimpleQueue()


def test_a_session_outlives_its_time_to_live(
    store: Store, prefix: str, lost: "queue.SimpleQueue[str]"
) -> None:
    session = Session(store, 2, lost.put)
    store.put(prefix + "kept", b"", session.lease)
    store.put(prefix + "abandoned", b"", store.grant(2))
    wait_until(lambda: store.get(prefix + "abandoned") is None, "the other lease ran out")
    assert store.get(prefix + "kept") is not None
    assert lost.empty()
    session.close()
    assert store.get(prefix + "kept") is None


def test_a_revoked_lease_is_reported_once_and_can_be_renewed(
    store: Store, prefix: str, lost: "queue.SimpleQueue[str]"
) -> None:
    session = Session(store, 2, lost.put)
    first = session.lease
    store.revoke(first)
    assert "lost" in lost.get(timeout=LONG)
    assert not session.alive
    second = session.renew()
    assert session.alive
    assert second == session.lease != first
    store.revoke(second)
    assert f"{second:x}" in lost.get(timeout=LONG)
    assert lost.empty()
    session.close()


def test_a_session_may_be_renewed_from_its_own_event(
    store: Store, lost: "queue.SimpleQueue[str]"
) -> None:
    def renew(reason: str) -> None:
        session.renew()
        lost.put(reason)

    session = Session(store, 2, renew)
    first = session.lease
    store.revoke(first)
    lost.get(timeout=LONG)
    assert store.refresh(session.lease) > 0
    assert session.lease != first
    session.close()
    assert store.refresh(session.lease) == 0


class Silent:
    """A store that answers some refreshes, and lets the others run into their deadline."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.answers = 0

    def refresh(self, lease: int, timeout: float | None = None) -> float:
        if self.answers:
            self.answers -= 1
            self.now += 0.125
            return 8.0
        assert timeout is not None
        self.now += min(timeout, 2.0)
        raise Unavailable("silence")

    def keeper(self) -> Keeper:
        return Keeper(cast(Store, self), 1, 8.0, self.now, lambda: self.now)


def test_a_lease_is_lost_when_it_may_have_run_out() -> None:
    store = Silent()
    keeper = store.keeper()
    store.now += keeper.first()
    store.answers, last_sent = 1, store.now
    verdict = keeper.step()
    while not isinstance(verdict, str):
        store.now += verdict
        verdict = keeper.step()
    assert store.now == pytest.approx(last_sent + 8.0)
    assert "did not answer" in verdict


def test_a_silence_shorter_than_the_lease_does_not_lose_it() -> None:
    store = Silent()
    keeper = store.keeper()
    store.now += keeper.first()
    retry = keeper.step()
    assert isinstance(retry, float)
    store.now += retry
    store.answers = 1
    assert keeper.step() == 8.0 / 3


def test_a_lease_does_not_hold_for_longer_than_it_lasts_though_its_loss_is_not_known_yet(
    store: Store, lost: "queue.SimpleQueue[str]"
) -> None:
    """As in a process that was stopped, and goes on."""
    now = 100.0
    session = Session(store, 60, lost.put, lambda: now)
    assert session.alive and session.holds
    now += 60.0
    assert session.alive and not session.holds
    session.renew()
    assert session.holds
    session.close()
    assert not session.holds
