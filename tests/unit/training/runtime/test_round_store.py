"""What ranks tell each other through the store of their round."""

import threading

import pytest
from support.processes.patience import PATIENT
from support.processes.tcp_proxy import Proxy
from torch.distributed import TCPStore

from spotelastic.training.runtime import round_store


def test_others_find_what_was_told_however_late_it_has_arrived(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    others = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    proxy = Proxy(f"127.0.0.1:{others.port}")
    host, _, port = proxy.endpoint.rpartition(":")
    own = TCPStore(host, int(port), is_master=False)
    monkeypatch.setattr(round_store, "store_of_all", lambda: own)
    told, found = threading.Event(), list[bool]()

    def tells() -> None:
        round_store.tell_all("key", "value")
        found.append(others.check(["key"]))
        told.set()

    proxy.hold()
    threading.Thread(target=tells, daemon=True).start()
    assert not told.wait(0.3)
    proxy.let_go()
    assert told.wait(PATIENT)
    assert found == [True]
    proxy.close()
