"""A leader over one group of three nodes."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest
from support.leading import KEYS, NODES, SPEC, Account, Inbox, Time

from spotelastic.clock import unbroken
from spotelastic.controller.etcd.etcd_mirror import Mirror
from spotelastic.controller.loop import leader_loop as terms
from spotelastic.controller.loop.leader_loop import LeaderLoop
from spotelastic.controller.model.config import ControllerConfig
from spotelastic.model.job import Job
from spotelastic.model.node import Fingerprint, Node
from spotelastic.store.codec import encode
from spotelastic.store.election import campaign
from spotelastic.store.memory import MemoryStore


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch) -> Account:
    account = Account()

    def machines(*_: Any) -> tuple[Any, ...]:
        account.call("machines")
        shown = {name: ("running", unbroken()) for name in NODES}
        shown |= {name: ("terminated", at) for name, at in account.gone.items()}
        return tuple(
            terms.Instance(name, "worker", state, "t", "z", "", False, at)
            for name, (state, at) in shown.items()
        )

    monkeypatch.setattr(terms.autoscaling, "machines", machines)
    monkeypatch.setattr(terms, "Inbox", Inbox)
    for name in ("Snapshots", "Publisher"):
        unused = SimpleNamespace(offer=lambda _: None, entries=())
        monkeypatch.setattr(terms, name, lambda *_, unused=unused: unused)
    return account


@pytest.fixture
def store() -> MemoryStore:
    store = MemoryStore(unbroken)
    store.put(KEYS.job, encode(Job("running", unbroken())))
    for name in NODES:
        store.put(KEYS.live(name), encode(Node(name, f"{name}-1", "", "z", Fingerprint())))
    return store


@pytest.fixture
def term(account: Account, store: MemoryStore) -> LeaderLoop:
    mirror = Mirror(KEYS, lambda: None)
    store.watch(KEYS.root, mirror)
    leadership = campaign(store, KEYS.leader, b"i-control", store.grant(1e6))
    assert leadership is not None
    bucket: Any = SimpleNamespace(
        has=lambda _: account.call("stopping"),
        job=lambda: None,
        cluster="demo",
        get=lambda _: None,
        status=lambda: None,
        curve=list,
    )
    prices: Any = SimpleNamespace(
        spot=lambda *_: 1.0, on_demand=lambda _: 1.0, besides=lambda *_, **__: 0.0, date=""
    )
    config = ControllerConfig(SPEC, "bucket", "r", "i-control", "")
    aws: Any = account
    wake = threading.Event()
    term = LeaderLoop(
        config, aws, store, bucket, mirror, leadership, wake, prices, lambda: True, account.draw
    )
    term._turn()
    account.calls.clear()
    return term


@pytest.fixture
def time(term: LeaderLoop, store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> Time:
    time = Time(store)
    monkeypatch.setattr(terms, "steady", time)
    term._wake = SimpleNamespace(wait=lambda _: True, clear=lambda: None)  # type: ignore[assignment]
    return time
