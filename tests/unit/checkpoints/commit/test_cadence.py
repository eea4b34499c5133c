"""Nodes that upload more slowly than the schedule allows choose the same steps; of those that are
about to go, each sends what it has time for."""

import itertools
import random
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spotelastic_checkpoints.commit.upload_cadence import MARGIN, Cadence, goes_first, stride

LAST = 400
"""Scheduled saves of a run, a second apart."""


class Node:
    """Its uploads take about `upload` seconds each."""

    def __init__(self, upload: float, seed: int) -> None:
        self.cadence = Cadence()
        self.sent: list[int] = []
        self._upload, self._random = upload, random.Random(seed)
        self._took = 0.0
        self._under_way: tuple[int, float, float] | None = None
        self._wanted = 0

    def seal(self, number: int, passes: Callable[["Node", int, float], bool]) -> None:
        now = float(number)
        self._end_uploads(now)
        if passes(self, number, now):
            self._wanted = number
            self._begin(now)

    def took(self, now: float) -> float:
        return max(self._took, now - self._under_way[1] if self._under_way else 0.0)

    def _end_uploads(self, now: float) -> None:
        while self._under_way is not None and self._under_way[2] <= now:
            number, begun, end = self._under_way
            self.sent.append(number)
            self._took, self._under_way = end - begun, None
            self._begin(end)

    def _begin(self, now: float) -> None:
        if self._under_way is None and self._wanted:
            took = self._upload * self._random.uniform(0.9, 1.1)
            self._under_way, self._wanted = (self._wanted, now, now + took), 0


def commits(nodes: list[Node], passes: Callable[[Node, int, float], bool]) -> list[int]:
    for number in range(1, LAST + 1):
        for node in nodes:
            node.seal(number, passes)
    sent = Counter(itertools.chain.from_iterable(set(node.sent) for node in nodes))
    return sorted(number for number, count in sent.items() if count == len(nodes))


def by_cadence(node: Node, number: int, now: float) -> bool:
    return node.cadence.passes(number, now, node.took(now))


@given(
    upload=st.floats(0.05, 30.0),
    paces=st.lists(st.floats(0.5, 1.0), min_size=1, max_size=8),
    seed=st.integers(0, 1000),
)
def test_commits_are_as_frequent_as_the_slowest_uploads_allow(
    upload: float, paces: list[float], seed: int
) -> None:
    nodes = [Node(upload * pace, seed + n) for n, pace in enumerate([1.0, *paces])]
    made = commits(nodes, by_cadence)
    # Uploads vary by a tenth: the longest may ask for the next power of two, and the first of all
    # is not known to be long when it begins.
    most = 2 * max(1.0, 2 * 1.1 * upload * MARGIN)
    gaps = [after - before for before, after in itertools.pairwise([0, *made, LAST])]
    assert max(gaps[1:]) <= 2 * most + 2


def test_without_it_commits_are_rare() -> None:
    nodes = [Node(10.0 + n / 10, n) for n in range(8)]
    assert len(commits(nodes, lambda *_: True)) <= 3
    assert len(commits([Node(10.0 + n / 10, n) for n in range(8)], by_cadence)) >= LAST / 35


@given(upload=st.floats(0.0, 1e9), pace=st.floats(0.01, 1.0), interval=st.floats(1e-3, 1e6))
def test_a_quick_node_sends_what_a_slow_one_sends(
    upload: float, pace: float, interval: float
) -> None:
    assert stride(upload, interval) % stride(upload * pace, interval) == 0


def test_what_was_left_out_is_uploaded_after_all_when_nothing_else_comes() -> None:
    cadence = Cadence()
    assert cadence.passes(1, 1.0, upload=3.0)
    assert not cadence.has_paused(100.0), "nothing was left out"
    assert not any(cadence.passes(n, float(n), upload=3.0) for n in (101, 102, 103))
    assert not cadence.has_paused(106.0)
    assert cadence.has_paused(108.0)
    assert not cadence.has_paused(109.0), "once"


@pytest.mark.parametrize(
    ("upload", "interval", "expected"), [(0.0, 5.0, 1), (4.0, 5.0, 1), (5.0, 5.0, 2), (20, 5, 8)]
)
def test_an_upload_has_its_time_and_a_margin(upload: float, interval: float, expected: int) -> None:
    assert stride(upload, interval) == expected


@pytest.mark.parametrize(
    ("later", "left", "room", "first"),
    [
        pytest.param(100, 90, 240, False, id="time for both"),
        pytest.param(100, 90, 200, True, id="time for one: the later"),
        pytest.param(100, 90, 115, False, id="time for the one that is on its way alone"),
        pytest.param(100, 90, 0, False, id="time for none: what is nearer to its end"),
        pytest.param(100, 100, 0, True, id="no speed is known, and nothing is sent yet"),
    ],
)
def test_before_a_node_is_gone_it_sends_the_latest_that_it_has_time_for(
    later: int, left: int, room: float, first: bool
) -> None:
    assert goes_first(later, left, room) is first
