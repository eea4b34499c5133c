"""Real processes with a parameter server: wherever one dies, each batch is part of one update."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.training.parameter_servers import ALL, ends_well, finished, none_was_lost, training

from spotelastic.store.etcd_server.process import EtcdMember, standalone

pytestmark = pytest.mark.faults


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdMember]:
    with standalone(tmp_path / "etcd") as member:
        yield member


@pytest.mark.soak
def test_the_standby_goes_on_when_the_server_dies(etcd: EtcdMember, tmp_path: Path) -> None:
    (tmp_path / "dies").write_text("after-apply 0 50")
    with training(etcd.endpoint, tmp_path, "asynchronous", 4) as run:
        ends_well(run, 4)
        none_was_lost(run)
        assert not (tmp_path / "dies").exists()
        told = [row for node in ALL for row in finished(run, node)]
        first, second = (
            {pid for number, rank, pid in told if (number, rank) == (window, 0)}
            for window in (1, 4)
        )
        assert first and second and first != second
        assert len({pid for *_, pid in told}) <= 5, "the others kept their processes"


PLACES = [
    *(("asynchronous", place, 0, 70) for place in ("head", "apply", "after-apply", "send")),
    ("bounded", "after-send", 0, 111),
    ("synchronous", "after-apply", 0, 55),
    ("synchronous", "head", 0, 131),
    ("asynchronous", "packed", 0, 3),
    ("asynchronous", "after-packed", 0, 4),
    ("asynchronous", "keep", 0, 2),
    ("asynchronous", "after-keep", 0, 3),
    *(("asynchronous", place, 1, 60) for place in ("head", "apply", "after-apply", "after-send")),
    ("synchronous", "send", 1, 60),
    ("asynchronous", "unpack", 1, 1),
    ("asynchronous", "keep", 1, 2),
    *(("asynchronous", place, 2, 40) for place in ("compute", "send", "after-send", "after-head")),
    ("bounded", "send", 2, 33),
    ("synchronous", "after-send", 2, 77),
    ("asynchronous", "unpack", 2, 3),
    ("asynchronous", "after-unpack", 2, 3),
    ("asynchronous", "after-keep", 2, 3),
]


@pytest.mark.soak
@pytest.mark.parametrize(("mode", "place", "rank", "count"), PLACES)
def test_a_process_dies_at_any_place(
    etcd: EtcdMember, tmp_path: Path, mode: str, place: str, rank: int, count: int
) -> None:
    (tmp_path / "dies").write_text(f"{place} {rank} {count}")
    with training(etcd.endpoint, tmp_path, mode, 8) as run:
        ends_well(run, 8)
        none_was_lost(run)
        assert not (tmp_path / "dies").exists(), "nobody came there"
