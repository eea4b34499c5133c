"""Which step a move takes next: from every state that it can be in, however often it was killed."""

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal

from hypothesis import given
from hypothesis import strategies as st
from spotelastic_checkpoints.commit import moving
from spotelastic_checkpoints.commit.commit_protocol import Commits
from spotelastic_checkpoints.commit.latest import ForwardPointer, LatestObject
from spotelastic_checkpoints.errors import Fenced, StorageRefused
from spotelastic_checkpoints.types import Commit
from support.saving.commit_protocol import put_all
from support.store.store_doubles import MemoryStorage

from spotelastic.client.moving.move_decision import (
    MoveSeen,
    MoveStep,
    RegionSide,
    decide,
)
from spotelastic.errors import UsageError

EAST, WEST = "us-east-1", "us-west-2"
LONGEST = 30
BACKWARD = {
    MoveStep.CLOSE_TARGET,
    MoveStep.REOPEN,
    MoveStep.END_TARGET,
    MoveStep.DROP,
    MoveStep.RESUME,
    MoveStep.REMAKE,
    MoveStep.TARGET_SLEEPS,
    MoveStep.SOURCE_WAKES,
}


@dataclass(frozen=True)
class Refusal:
    """Why a move cannot go on."""

    why: str


def decided(seen: MoveSeen, *, back: bool) -> MoveStep | Refusal | None:
    try:
        return decide(seen, back=back)
    except UsageError as error:
        return Refusal(str(error))


@dataclass
class Cluster:
    """What a region's cloud has."""

    there: bool = False
    state: str = ""
    stopping: bool = False
    trains: bool = False


class World:
    """Two regions, whose storages are real ones in memory."""

    def __init__(self, *, soon: bool = True, sleeps: bool = False) -> None:
        """`soon`: whether a cluster that is marked to end has ended at the next look. `sleeps`:
        whether there is a cluster in both regions, of which one is asleep."""
        self.soon, self.sleeps = soon, sleeps
        self.stores = {EAST: MemoryStorage(), WEST: MemoryStorage()}
        self.clusters = {EAST: Cluster(True, "running", trains=True), WEST: Cluster()}
        self.copied: set[Commit] = set()
        self.begun = False
        self.acknowledged = Commit(0, 0)
        self.train()

    def train(self) -> None:
        """Every cluster that has nodes tries to train a step, and to commit it."""
        trained = []
        for region, cluster in self.clusters.items():
            if cluster.stopping and self.soon:
                self.clusters[region] = Cluster()
            if not cluster.there or cluster.state != "running":
                continue
            commits = Commits(self.stores[region], "run")
            try:
                claim = commits.claim()
            except StorageRefused:
                continue
            assert claim.commit is None or claim.commit >= self.acknowledged, "a commit was lost"
            assert (
                region == EAST
                or claim.commit in self.copied
                or claim.commit is None
                or (claim.commit.epoch > min(self.copied).epoch)
            ), "the target began from an incomplete copy"
            step = 1 if claim.commit is None else claim.commit.step + 1
            put_all(commits, claim.epoch, step)
            assert commits.commit(Commit(claim.epoch, step), claim.epoch)
            self.acknowledged, cluster.trains = Commit(claim.epoch, step), True
            trained.append(region)
        assert len(trained) <= 1, "both regions train"

    def seen(self) -> MoveSeen:
        source, target = self._side(EAST), self._side(WEST)
        copied = source.commit is None or source.commit in self.copied
        return MoveSeen("demo", source, target, copied, self.begun)

    def _side(self, region: str) -> RegionSide:
        its, latest = self.clusters[region], LatestObject(self.stores[region]).read()[0]
        step = self.acknowledged.step if its.trains else 0
        up: Literal["none", "up", "asleep"] = (
            "up" if its.there else "asleep" if self.sleeps else "none"
        )
        return RegionSide(
            region, latest, up, self.sleeps, its.stopping, its.state, its.trains, step
        )

    def act(self, step: MoveStep, seen: MoveSeen) -> None:
        """What the mover does."""
        if step in BACKWARD:
            self._act_backward(step, seen)
            return
        east, here = self.clusters[EAST], self.stores[EAST]
        match step:
            case MoveStep.STOP:
                east.state, east.trains = "stopped", False
            case MoveStep.CLAIM:
                moving.claim_to_move(Commits(here, "run"))
            case MoveStep.COPY:
                assert seen.source.commit is not None
                self.copied.add(seen.source.commit)
            case MoveStep.CLOSE:
                east.stopping = not self.sleeps
                assert seen.source.latest is not None
                moving.close(here, seen.source.latest, seen.source.latest, "w", region=WEST, now=0)
            case MoveStep.OPEN:
                moving.open_here(self.stores[WEST], _pointer(seen.source))
            case MoveStep.MAKE | MoveStep.WAKE:
                assert (step == MoveStep.WAKE) == self.sleeps
                self.clusters[WEST] = Cluster(True, "running")
            case MoveStep.AWAIT:
                self.train()
            case MoveStep.END_SOURCE | MoveStep.SLEEP:
                assert (step == MoveStep.SLEEP) == self.sleeps
                self.clusters[EAST] = Cluster()

    def _act_backward(self, step: MoveStep, seen: MoveSeen) -> None:
        match step:
            case MoveStep.CLOSE_TARGET:
                pointer, there = _pointer(seen.source), self.stores[WEST]
                moving.close(there, seen.target.latest, pointer, "e", region=EAST, now=0)
            case MoveStep.REOPEN:
                moving.open_here(self.stores[EAST], _pointer(seen.target))
            case MoveStep.END_TARGET | MoveStep.TARGET_SLEEPS:
                assert (step == MoveStep.TARGET_SLEEPS) == self.sleeps
                self.clusters[WEST] = Cluster()
            case MoveStep.DROP:
                assert seen.source.commit is not None
                self.copied.discard(seen.source.commit)
            case MoveStep.RESUME:
                east = self.clusters[EAST]
                assert east.there and not east.stopping
                self.clusters[EAST] = replace(east, state="running")
            case MoveStep.REMAKE | MoveStep.SOURCE_WAKES:
                assert (step == MoveStep.SOURCE_WAKES) == self.sleeps
                self.clusters[EAST] = Cluster(True, "running")

    def run(self, *, back: bool, steps: int) -> MoveStep | Refusal | None:
        """A mover that is killed after so many steps."""
        decision = decided(self.seen(), back=back)
        while isinstance(decision, MoveStep) and steps > 0:
            self.begun = self.begun or not back
            seen = self.seen()
            with suppress(Fenced, StorageRefused):
                self.act(decision, seen)
            steps -= 1
            self.train()
            decision = decided(self.seen(), back=back)
        if back and decision is None:
            self.begun = False
        return decision


def _pointer(side: RegionSide) -> ForwardPointer:
    assert isinstance(side.latest, ForwardPointer)
    return side.latest


Runs = st.lists(st.tuples(st.booleans(), st.integers(1, 6)), max_size=6)


@given(Runs, st.booleans(), st.booleans())
def test_a_move_that_is_killed_anywhere_and_run_again_ends_in_the_other_region(
    runs: list[tuple[bool, int]], soon: bool, sleeps: bool
) -> None:
    """Also if it was undone in between, as often as anybody likes."""
    world = World(soon=soon, sleeps=sleeps)
    for back, steps in runs:
        world.run(back=back, steps=steps)
    last = world.run(back=False, steps=LONGEST)
    if last is not None:  # it is half undone
        assert "is being undone" in str(last)
        assert world.run(back=True, steps=LONGEST) is None
        last = world.run(back=False, steps=LONGEST)
    assert last is None
    assert world.clusters[WEST].there and not world.clusters[EAST].there
    assert isinstance(world.seen().source.latest, ForwardPointer)


@given(Runs, st.booleans(), st.booleans())
def test_what_was_begun_and_has_not_trained_there_can_be_undone(
    runs: list[tuple[bool, int]], soon: bool, sleeps: bool
) -> None:
    world = World(soon=soon, sleeps=sleeps)
    for back, steps in runs:
        world.run(back=back, steps=steps)
    trained = world.clusters[WEST].trains
    last = world.run(back=True, steps=LONGEST)
    if trained:
        assert "has trained in us-west-2 since" in str(last)
    else:
        assert not isinstance(last, MoveStep)
        assert world.clusters[EAST].there and not world.clusters[WEST].there
        assert world.clusters[EAST].state == "running"


def test_a_job_that_somebody_has_stopped_does_not_move_by_itself() -> None:
    why = "moves to us-west-2: it was worth more"
    world = World()
    world.clusters[EAST] = Cluster(True, "stopped")
    seen = world.seen()

    def next_step(reason: str, ended: str, state: str = "stopped") -> object:
        source = replace(seen.source, reason=ended, state=state)
        its = decided(replace(seen, source=source, reason=reason), back=False)
        return its.why if isinstance(its, Refusal) else its

    assert next_step(why, "stopped by command; step 1 is committed") == (
        "demo has stopped: stopped by command; step 1 is committed"
    )
    assert next_step(why, "its deadline", "timed out") == "demo has timed out: its deadline"
    assert next_step(why, f"{why}; step 1 is committed") is MoveStep.CLAIM
    assert next_step("", "stopped by command; step 1 is committed") is MoveStep.CLAIM
