"""The ledger of clusters in virtual time, against what was really done to them.

Processes of nodes are killed and frozen, one at a time and several at once, and so are controllers.
The oracle knows whom it struck, how, and when.
"""

from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from support.draws import drawn
from support.simulation.virtual_cluster import World
from support.simulation.virtual_controller import VirtualController, records_of, report

from spotelastic.controller.accounting.ledger_events import SETTLED_AFTER
from spotelastic.model.interruption_kind import InterruptionKind
from spotelastic.model.interval import Interval
from spotelastic.model.job import Settings
from spotelastic.model.progress import LEDGER, Interruption

SETTINGS = Settings(
    2, 4, max_restarts=100_000, snapshot_every=Interval(10), checkpoint_every=Interval(50)
)
NAMES = ("n0", "n1", "n2", "n3")
PEER = "RuntimeError: Read error [10.0.0.1]:3228: Connection reset by peer"
LOSS, WORKER = InterruptionKind.LOSS, InterruptionKind.WORKER
EXPECTED = {
    "worker": WORKER,
    "zygote": WORKER,
    "agent": LOSS,
    "frozen node": LOSS,
    "frozen agent": LOSS,
}
"""What a row says of each strike that stops training."""
HARMLESS = ("daemon", "frozen for a moment", "controller")
"""Strikes that stop no training by themselves."""


@dataclass(frozen=True)
class Strike:
    kind: str
    node: str
    delay: float = 0.0
    """Seconds after the strike before."""
    seconds: float = 3.0
    """How long it is frozen, or until it is started again."""


@dataclass(frozen=True)
class Struck:
    strike: Strike
    at: float
    hits: bool
    """Whether the node was training then."""


class Cluster:
    """Four nodes that train, struck in turns."""

    def __init__(self, seed: int, *, in_place: bool) -> None:
        self.world = World(SETTINGS, 1_000_000, seed, in_place=in_place)
        for name in NAMES:
            self.add(name)
        self.controller = VirtualController(self.world)
        self.struck: list[Struck] = []
        self.final: dict[tuple[int | None, str], Interruption] = {}
        self.wait_for_all()

    def add(self, name: str) -> None:
        self.world.add(name).message = PEER

    def wait(self, seconds: float) -> None:
        until = self.world.now + seconds
        self.world.after(seconds, lambda: None)
        self.world.run(lambda: self.world.now >= until, seconds + 1)

    def wait_for_all(self) -> None:
        self.world.run(lambda: self.world.trains(*NAMES), 300)

    def watch(self, seconds: float) -> None:
        """Time passes; no row that is final changes, and none is added to its pause."""
        for _ in range(round(seconds)):
            self.wait(1.0)
            told = {(row.round, row.node): row for row in self.controller.rows() or ()}
            pauses = {round_ for round_, _ in self.final}
            for (round_, node), row in told.items():
                known = self.final.get((round_, node))
                assert known in (None, row), f"{known} became {row}"
                assert known or round_ not in pauses, f"{row} comes after its pause was final"
            for key, row in told.items():
                if row.first_step_at and self.world.now >= row.first_step_at + SETTLED_AFTER:
                    self.final[key] = row
            assert not told or self.final.keys() <= told.keys(), "a row is gone"

    def strike(self, strike: Strike) -> None:
        self.wait(strike.delay)
        world, node = self.world, self.world.nodes.get(strike.node)
        if node is None or world.round is None:
            return
        training = world.trainings.get(world.round.incarnation)
        trains = (
            world.round.phase == "started"
            and training is not None
            and training.running
            and not (training.closed if world.in_place else training.broken)  # type: ignore[union-attr]
            and not any(other.frozen for other in world.nodes.values())
        )
        hits = strike.kind in EXPECTED and trains and world.round.member(strike.node) is not None
        hits = hits and not (world.in_place and not node.processes.ranks)
        self.struck.append(Struck(strike, world.now, hits))
        match strike.kind:
            case "worker":
                node.worker_exits(world.round.incarnation, -9)
            case "zygote":
                node.processes.zygote_dies()
            case "agent":
                node.kill()
                world.after(strike.seconds, lambda: self.add(strike.node))
            case "frozen node":
                node.freeze(2.5 + strike.seconds)
            case "frozen agent":
                node.frozen = True
                world.after(2.5 + strike.seconds, node._thaw)
            case "frozen for a moment":
                node.freeze(0.2)
            case "daemon":
                node.processes.daemon_dies()
            case "controller":
                self.controller.kill(strike.seconds)

    def check(self) -> None:
        """Each strike that stopped training has one row, of its node, kind and time; nobody has a
        row that was not struck.
        """
        records = records_of(self.world)
        rows = list(report(self.world, records, records.events).interruptions)
        told = f"{rows}\n{self.struck}\n{self.world.story()}"
        for row in rows:
            assert any(
                each.strike.node == row.node and each.at - 0.05 <= (row.first_step_at or row.at)
                for each in self.struck
            ), f"{row} is of an innocent node: {told}"
        for each in self.struck:
            if not each.hits:
                continue
            found = [
                row
                for row in rows
                if row.node == each.strike.node
                and each.at - 0.05 <= row.at <= (row.first_step_at or 0.0)
                and not any(
                    each.at < later.at <= row.at + 0.05 and later.strike.node == row.node
                    for later in self.struck
                )
            ]
            assert len(found) == 1, f"{each} has {found}: {told}"
            assert found[0].kind is EXPECTED[each.strike.kind], f"{each}: {found[0]}"
        assert len({(row.round, row.node) for row in rows}) == len(rows), told
        without = tuple(event for event in records.events if event.kind != LEDGER)
        again = report(self.world, records, without).interruptions
        assert [(r.round, r.node, r.kind, r.at) for r in again] == [
            (r.round, r.node, r.kind, r.at) for r in rows
        ], f"what is on record is not what the events say: {again}\n{told}"


def rounds_name_no_innocent(cluster: Cluster) -> None:
    struck = {each.strike.node for each in cluster.struck}
    for round_ in cluster.world.started:
        if round_.cause == "worker":
            assert set(round_.nodes) <= struck, f"{round_.reason}: {cluster.struck}"


strikes = st.builds(
    Strike,
    kind=st.sampled_from([*EXPECTED, *HARMLESS]),
    node=st.sampled_from(NAMES),
    delay=st.sampled_from([0.0, 0.0, 0.002, 0.02, 0.2, 0.7]),
    seconds=st.floats(0.5, 6.0),
)
turns = st.tuples(
    st.lists(strikes, min_size=1, max_size=3, unique_by=lambda strike: strike.node),
    st.sampled_from([0.0, 3.0, 15.0]),
)


def suffers(seed: int, in_place: bool, story: list[tuple[list[Strike], float]]) -> Cluster:
    cluster = Cluster(seed, in_place=in_place)
    for together, quiet in story:
        cluster.wait(1.0 + cluster.world.random.random())
        for strike in together:
            cluster.strike(strike)
        cluster.watch(12.0)
        cluster.wait_for_all()
        cluster.watch(quiet)
    cluster.watch(SETTLED_AFTER + 5.0)
    cluster.check()
    rounds_name_no_innocent(cluster)
    return cluster


FEW = settings(
    max_examples=drawn(8),
    deadline=None,
    suppress_health_check=[*HealthCheck],
    phases=[Phase.explicit, Phase.generate],  # a story is known by its seed, and shrinks slowly
)
MANY = settings(FEW, max_examples=400)
STORY = (st.integers(0, 999), st.booleans(), st.lists(turns, min_size=1, max_size=4))


@pytest.mark.parametrize("in_place", [True, False], ids=["in place", "new processes"])
@pytest.mark.parametrize("kind", [*EXPECTED, *HARMLESS])
def test_each_kind_of_strike_by_itself(kind: str, in_place: bool) -> None:
    cluster = suffers(3, in_place, [([Strike(kind, name)], 0.0) for name in NAMES[:2]])
    assert [each.hits for each in cluster.struck] == [kind in EXPECTED] * 2


@FEW
@given(*STORY)
def test_the_table_says_what_was_done(
    seed: int, in_place: bool, story: list[tuple[list[Strike], float]]
) -> None:
    suffers(seed, in_place, story)


@pytest.mark.soak
@pytest.mark.timeout(900)
@MANY
@given(*STORY)
def test_the_table_says_what_was_done_hundreds_of_times(
    seed: int, in_place: bool, story: list[tuple[list[Strike], float]]
) -> None:
    suffers(seed, in_place, story)
