"""A node's spare store as a real process: a round takes it at once, and nothing of it is left."""

import errno
import os
import signal
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from spotelastic_checkpoints import addresses
from support.processes.run_launcher import comm, descendants
from support.processes.zygote_pool import Pool, lives
from support.store.etcd_members import wait_until

from spotelastic.agent.config import AgentConfig
from spotelastic.agent.round_stores import RoundStores
from spotelastic.agent.state.events import Exited, SpareStoreStarted, StoreOpened
from spotelastic.agent.state.values import RoundStore
from spotelastic.model.job import Settings
from spotelastic.model.round import Round

ROUND = Round(3, "r3", "proposed", (), "loss", "")


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[RoundStores]:
    config = AgentConfig(
        run="job",
        endpoints=(),
        node="a",
        address="127.0.0.1",
        zone="",
        settings=Settings(2, 2),
        command=(),
        workdir=tmp_path,
        state=tmp_path,
        shm=tmp_path,
        storage="",
    )
    made = RoundStores(config)
    yield made
    made.close()


def processes() -> list[int]:
    return [pid for pid in descendants(os.getpid()) if comm(pid) == "se-store"]


def spare(stores: RoundStores, pool: Pool) -> str:
    (started,) = stores.start_spare(pool.zygote)
    assert isinstance(started, SpareStoreStarted) and started.id
    return started.id


def opened(stores: RoundStores, pool: Pool, round_: Round, name: str) -> RoundStore:
    (told,) = stores.open(pool.zygote, round_, name, ())
    assert isinstance(told, StoreOpened)
    return told.store


def listens(store: RoundStore) -> bool:
    with socket.socket() as client:
        code = client.connect_ex(addresses.split(store.address))
        assert code in (0, errno.ECONNREFUSED)
        return code == 0


def test_a_round_takes_the_spare_and_the_next_one_has_another(
    stores: RoundStores, pool: Callable[..., Pool]
) -> None:
    made = pool(base=("torch.distributed",))
    name = spare(stores, made)
    wait_until(lambda: len(processes()) == 1, "the spare runs")
    (pid,) = processes()
    first = opened(stores, made, ROUND, name)
    assert first.id == name and listens(first) and processes() == [pid]
    again = opened(stores, made, replace(ROUND, incarnation="next"), "")
    assert again.address != first.address and listens(again)
    third = opened(stores, made, replace(ROUND, incarnation="third"), spare(stores, made))
    assert len({first.address, again.address, third.address}) == 3
    made.zygote.end([first.id])
    assert made.next() == Exited(first.id, -9)
    assert not listens(first), "it ends with its round"
    others = processes()
    made.zygote.close()
    assert not any(map(lives, others)) and not listens(third)


@pytest.mark.soak
def test_a_spare_that_was_killed_is_told_of_and_the_round_has_another(
    stores: RoundStores, pool: Callable[..., Pool]
) -> None:
    made = pool(base=("torch.distributed",))
    name = spare(stores, made)
    wait_until(processes, "the spare runs")
    os.kill(processes()[0], signal.SIGKILL)
    assert made.next() == Exited(name, -9)
    store = opened(stores, made, ROUND, "")
    assert store.id != name and listens(store)
