"""Which process of its node one is, whoever started it."""

import socket
from types import SimpleNamespace
from typing import Any

import pytest

from spotelastic.training.runtime import session
from spotelastic.training.runtime.session import find_ranks


class Group:
    """torch.distributed as one rank sees it, of a world whose ranks are on these nodes."""

    group = SimpleNamespace(WORLD="world")

    def __init__(self, rank: int, nodes: list[str]) -> None:
        self._rank, self._nodes = rank, nodes

    def is_available(self) -> bool:
        return True

    is_initialized = is_available

    def get_backend_config(self) -> str:
        return "cpu:gloo"

    def get_rank(self) -> int:
        return self._rank

    def get_world_size(self) -> int:
        return len(self._nodes)

    def all_gather_object(self, values: list[Any], value: Any, group: str) -> None:
        assert value == self._nodes[self._rank]
        values[:] = self._nodes


@pytest.fixture(autouse=True)
def nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SPOTELASTIC_LOCAL_RANK", "LOCAL_RANK", "SPOTELASTIC_NODE", "GROUP_RANK"):
        monkeypatch.delenv(name, raising=False)


def test_without_local_rank_the_ranks_of_a_host_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hosts = ["a", "b", "a", "b", "a"]
    found = []
    for rank, host in enumerate(hosts):
        monkeypatch.setattr(socket, "gethostname", lambda host=host: host)
        group = Group(rank, [f"{name}-0" for name in hosts])
        monkeypatch.setattr(session, "dist", group)
        found.append(find_ranks().local_rank)
    assert found == [0, 0, 1, 1, 2]


def test_a_local_rank_that_is_told_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPOTELASTIC_NODE", "own")
    monkeypatch.setattr(session, "dist", Group(1, ["own", "own"]))
    monkeypatch.setenv("LOCAL_RANK", "0")
    assert find_ranks().local_rank == 0
    monkeypatch.setenv("SPOTELASTIC_LOCAL_RANK", "3")
    assert find_ranks().local_rank == 3
