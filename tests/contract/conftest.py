from collections.abc import Iterator

import pytest
from support.processes.patience import PATIENT
from support.saving.s3_servers import s3_endpoint
from support.store.etcd_members import etcd_member, etcd_store, no_leftover_threads, prefix
from support.store.memory_store import MemoryStore

from spotelastic.clock import steady
from spotelastic.store.etcd import EtcdStore
from spotelastic.store.etcd_server.process import EtcdMember
from spotelastic.store.port import Store

__all__ = ["etcd_member", "etcd_store", "no_leftover_threads", "prefix", "s3_endpoint", "store"]


@pytest.fixture(params=["memory", "etcd"])
def store(request: pytest.FixtureRequest, etcd_member: EtcdMember) -> Iterator[Store]:
    if request.param == "memory":
        made: Store = MemoryStore(steady)
    else:
        made = EtcdStore([etcd_member.endpoint], timeout=PATIENT)
    yield made
    made.close()
