"""Whatever workers do and whoever is lost, each batch is part of one update, in time."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotelastic.training.parameter_server.order import Applied, Mode, Order, Rules

WORKERS = 4


@dataclass
class Cluster:
    """A server with workers, whose ranks are lost. What the server and the standby have is equal at
    each answer, so that one copy stands for both."""

    rules: Rules
    target: int
    applied: Applied = Applied()
    made: list[tuple[int, ...]] = field(default_factory=list)
    staleness: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.lose()

    def lose(self) -> None:
        """A rank is lost: those that are left begin the window again, with what is done."""
        self.order = Order(self.rules, self.applied, self.target)
        self.computing: dict[int, int] = {}
        """Batches with the versions that they are computed on."""

    def take(self) -> bool:
        batch = self.order.take()
        if batch is not None:
            assert batch not in self.computing
            self.computing[batch] = self.applied.version
        return batch is not None

    def give(self, batch: int) -> None:
        self.order.give(batch)
        while due := self.order.due():
            self.staleness += [self.applied.version - self.computing.pop(each) for each in due]
            self.order.made(due)
            self.applied = self.order.applied
            self.made.append(due)

    @property
    def on_their_way(self) -> list[int]:
        return [batch for batch in self.computing if not self.order.waits(batch)]


def rules() -> st.SearchStrategy[Rules]:
    return st.one_of(
        st.builds(Rules, st.just("synchronous"), st.integers(1, 5)),
        st.builds(Rules, st.just("bounded"), st.just(1), st.integers(0, 5)),
        st.just(Rules("asynchronous")),
    )


@given(rules(), st.integers(1, 12), st.data())
def test_each_batch_is_part_of_one_update_whoever_is_lost(
    rules: Rules, updates: int, data: st.DataObject
) -> None:
    cluster = Cluster(rules, updates)
    losses = data.draw(st.integers(0, 4), "losses")
    while not cluster.order.is_over:
        moves = ["give"] * bool(cluster.on_their_way) + ["lose"] * bool(losses)
        idle = WORKERS - len(cluster.computing)
        may_take = idle > 0 and data.draw(st.booleans(), "a worker asks")
        if may_take and cluster.take():
            continue
        if not moves or (not cluster.on_their_way and data.draw(st.booleans(), "goes on")):
            assert cluster.take(), "nobody has a batch, and nobody gets one"
            continue
        move = data.draw(st.sampled_from(moves), "move")
        if move == "lose":
            losses -= 1
            cluster.lose()
        else:
            cluster.give(data.draw(st.sampled_from(cluster.on_their_way), "batch"))
    assert cluster.order.take() is None
    assert len(cluster.made) == updates
    counted = sorted(batch for update in cluster.made for batch in update)
    assert counted == list(range(updates * rules.batches))
    assert cluster.applied == Applied(updates, updates * rules.batches)
    if rules.mode == "bounded":
        assert max(cluster.staleness) <= rules.staleness
    if rules.mode == "synchronous":
        assert cluster.made == [
            tuple(range(first, first + rules.batches))
            for first in range(0, updates * rules.batches, rules.batches)
        ]
        assert set(cluster.staleness) == {0}


@given(st.integers(0, 5), st.data())
def test_workers_with_a_bound_never_wait_for_each_other_for_ever(
    staleness: int, data: st.DataObject
) -> None:
    """Gradients come in any order. When all have come that are on their way, none is held."""
    cluster = Cluster(Rules("bounded", 1, staleness), 30)
    while not cluster.order.is_over:
        while len(cluster.computing) < WORKERS and cluster.take():
            pass
        assert cluster.computing
        for batch in data.draw(st.permutations(cluster.on_their_way)):
            cluster.give(batch)
        assert not cluster.computing


def test_a_bound_of_all_workers_but_one_keeps_all_of_them_at_work() -> None:
    cluster = Cluster(Rules("bounded", 1, WORKERS - 1), 100)
    assert [cluster.take() for _ in range(WORKERS)] == [True] * WORKERS
    assert not cluster.take()


def test_a_gradient_that_comes_early_waits_for_an_older_one() -> None:
    cluster = Cluster(Rules("bounded", 1, 1), 10)
    cluster.take()
    cluster.take()
    cluster.give(1)
    assert cluster.take(), "it is applied: the other one may be one update late"
    cluster.give(2)
    assert cluster.order.holds(2)
    assert cluster.made == [(1,)]
    cluster.give(0)
    assert cluster.made == [(1,), (0,), (2,)]


@pytest.mark.parametrize("mode", ["asynchronous", "bounded", "synchronous"])
def test_a_batch_that_was_not_handed_out_is_refused(mode: Mode) -> None:
    order = Order(Rules(mode, 1, 2), Applied(), 4)
    with pytest.raises(ValueError, match="batch 0 was not handed out"):
        order.give(0)
    assert order.take() == 0
    order.give(0)
    with pytest.raises(ValueError, match="batch 0 was not handed out"):
        order.give(0)


def test_an_update_is_not_made_a_second_time() -> None:
    applied = Applied().after([1])
    assert applied == Applied(1, 0, frozenset({1}))
    with pytest.raises(ValueError, match="batch 1 twice"):
        applied.after([1])
    assert applied.after([0]) == Applied(2, 2)
    with pytest.raises(ValueError, match="batch 0 twice"):
        applied.after([0]).after([0])
