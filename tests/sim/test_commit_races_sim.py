"""The commit protocol while calls fail, come late, or race: every call in turn, and by chance.

Whatever happens, LATEST names a whole step at every moment and never goes back, and what was
retired stays so.
"""

import contextlib
import os
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from spotelastic_checkpoints.commit import retention
from spotelastic_checkpoints.commit.commit_protocol import Commits, step_folders
from spotelastic_checkpoints.commit.retention import Keep
from spotelastic_checkpoints.errors import Fenced, StorageUnavailable
from spotelastic_checkpoints.types import Commit
from support.draws import part
from support.processes.patience import PATIENT
from support.saving.commit_protocol import Auditor, put_all, retried, two_rounds
from support.store.store_doubles import WRITES, Interposed, MemoryStorage

pytestmark = [pytest.mark.faults, pytest.mark.every_turn]
SOAK_TURN = int(os.environ.get("SOAK_TURN", "0"))


def calls_of(scenario: Callable[[Commits], object]) -> list[str]:
    """The names of all calls that it makes of a store that works."""
    made: list[str] = []

    def around(name: str, work: Callable[[], Any]) -> Any:
        made.append(name)
        return work()

    scenario(Commits(Interposed(MemoryStorage(), around), "me"))
    return made


CALLS = calls_of(two_rounds)


class Failing:
    """Call `at` is answered by an error: carried out first, or never, or only `late` calls on."""

    def __init__(self, at: int, how: str, late: int = 0) -> None:
        self.at, self.how, self.late = at, how, late
        self.calls = 0
        self._left: Callable[[], Any] | None = None

    def __call__(self, name: str, work: Callable[[], Any]) -> Any:
        self.calls += 1
        if self._left is not None and self.calls == self.at + self.late:
            self.arrive()
        if self.calls != self.at:
            return work()
        if self.how == "carried out":
            work()
        elif self.how == "late":
            self._left = work
        raise StorageUnavailable("503")

    def arrive(self) -> None:
        left, self._left = self._left, None
        if left is not None:
            left()


def check_end(storage: MemoryStorage, auditor: Auditor, latest: Commit, what: object) -> None:
    assert auditor.broken == [], what
    reader = Commits(storage, "me")
    assert reader.latest() == latest, what
    first = latest.epoch - 1
    # A failure in the middle of collecting may leave more than is wanted, never less.
    retention.collect(reader, latest, latest.epoch, Keep(2))
    kept = [c for c, found in step_folders(storage.keys()).items() if len(found.names) > 1]
    wanted = {first: (1, 3), first - 1: (1, 3)}[next(c.epoch for c in kept)]
    assert [c.step for c in kept] == [*wanted, 4], what
    for commit in kept:
        reader.checkpoint(commit)


@pytest.mark.parametrize("how", ["carried out", "not carried out"])
def test_a_failure_at_any_call_leaves_the_same_commits(how: str) -> None:
    assert len(CALLS) > 40
    for at in range(1, len(CALLS) + 1):
        auditor = Auditor()
        storage = MemoryStorage(auditor)
        latest = two_rounds(Commits(Interposed(storage, Failing(at, how)), "me"))
        check_end(storage, auditor, latest, at)


@pytest.mark.in_part
def test_a_write_that_arrives_late_changes_nothing_whenever_it_arrives() -> None:
    """The request timed out, was made again, and is carried out after all some calls later."""
    writes = [at for at, name in enumerate(CALLS, 1) if name in WRITES]
    for at in writes:
        for late in part(range(1, len(CALLS) - at + 4), at):
            auditor = Auditor()
            storage = MemoryStorage(auditor)
            failing = Failing(at, "late", late)
            latest = two_rounds(Commits(Interposed(storage, failing), "me"))
            failing.arrive()
            check_end(storage, auditor, latest, (at, late))


@pytest.mark.parametrize("again", [2, 3], ids=["for the same step", "for a later one"])
def test_a_round_that_another_fences_at_any_of_its_calls_moves_latest_no_more(again: int) -> None:
    """Both halves of a split write: the other one's whole life fits between two of our calls."""

    def ours(commits: Commits) -> bool:
        epoch = retried(commits.claim).epoch
        try:
            for step in (1, 2):
                put_all(commits, epoch, step)
                commits.commit(Commit(epoch, step), epoch)
                retention.collect(commits, Commit(epoch, step), epoch, Keep(1))
        except Fenced:
            return False
        return True

    calls = len(calls_of(ours))
    for at in range(1, calls + 1):
        auditor = Auditor()
        storage = MemoryStorage(auditor)
        theirs: list[Commit] = []
        count = 0

        def around(
            name: str,
            work: Callable[[], Any],
            *,
            at: int = at,
            storage: MemoryStorage = storage,
            theirs: list[Commit] = theirs,
        ) -> Any:
            nonlocal count
            count += 1
            if count == at:
                commits = Commits(storage, "me")
                epoch = commits.claim().epoch
                put_all(commits, epoch, again)
                assert commits.commit(Commit(epoch, again), epoch)
                retention.collect(commits, Commit(epoch, again), epoch, Keep(1))
                theirs.append(Commit(epoch, again))
            return work()

        finished = ours(Commits(Interposed(storage, around), "me"))
        assert auditor.broken == [], at
        latest = Commits(storage, "me").latest()
        assert latest is not None
        if finished and latest != theirs[0]:
            # They came before our claim, which then fenced them.
            assert latest.epoch > theirs[0].epoch, at
        else:
            assert latest == theirs[0], at
        Commits(storage, "me").checkpoint(latest)


class Killed(Exception):
    """Of a process; it makes no further call."""


def test_a_claimant_that_dies_at_any_of_its_calls_loses_no_complete_step() -> None:
    """All shards and manifests are there; who was to write the record has died, too."""
    for at in range(1, len(calls_of(Commits.claim)) + 10):
        auditor = Auditor()
        storage = MemoryStorage(auditor)
        commits = Commits(storage, "me")
        epoch = commits.claim().epoch
        put_all(commits, epoch, 1)
        left = iter(range(1, at))

        def around(name: str, work: Callable[[], Any], left: Iterator[int] = left) -> Any:
            if next(left, None) is None:
                raise Killed
            return work()

        with contextlib.suppress(Killed):
            Commits(Interposed(storage, around), "me").claim()
        assert Commits(storage, "me").claim().commit == Commit(epoch, 1), at
        assert auditor.broken == [], at


def test_a_step_completed_at_any_call_of_claims_that_nothing_follows_is_not_lost() -> None:
    """Rounds that are replaced before they save; then the one that saved is the last."""

    def claims(commits: Commits) -> None:
        for _ in range(3):
            commits.claim()

    made = 0
    for at in range(1, 1000):
        auditor = Auditor()
        storage = MemoryStorage(auditor)
        before = Commits(storage, "me")
        epoch = before.claim().epoch
        put_all(before, epoch, 1)
        assert before.commit(Commit(epoch, 1), epoch)
        put_all(before, epoch, 2, ranks=[0])
        made = 0

        def around(
            name: str,
            work: Callable[[], Any],
            *,
            at: int = at,
            before: Commits = before,
            epoch: int = epoch,
        ) -> Any:
            nonlocal made
            made += 1
            if made == at:
                put_all(before, epoch, 2, ranks=[1])
                with contextlib.suppress(Fenced):
                    before.commit(Commit(epoch, 2), epoch)
            return work()

        claims(Commits(Interposed(storage, around), "me"))
        if made < at:
            break
        claim = Commits(storage, "me").claim()
        assert claim.commit == Commit(epoch, 2), at
        assert Commits(storage, "me").latest() == claim.commit, at
        assert auditor.broken == [], at
    assert made > 20


class Turns:
    """One of several threads at a time passes one call, by chance; some calls fail or come late."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._changed = threading.Condition()
        self._waiting: set[int] = set()
        self._done: set[int] = set()
        self._chosen = -1
        self._late: list[Callable[[], Any]] = []
        self.errors: list[BaseException] = []

    def run(self, storage: MemoryStorage, *writers: Callable[[Commits], None]) -> None:
        """Until all have returned."""
        threads = [
            threading.Thread(target=self._write, args=(number, writer, storage))
            for number, writer in enumerate(writers)
        ]
        for thread in threads:
            thread.start()
        with self._changed:
            while len(self._done) < len(threads):
                everybody = len(threads)
                assert self._changed.wait_for(
                    lambda: (
                        self._chosen < 0 and len(self._waiting) + len(self._done) == everybody  # noqa: B023
                    ),
                    PATIENT,
                )
                if self._waiting:
                    self._chosen = self._random.choice(sorted(self._waiting))
                    self._waiting.discard(self._chosen)
                    self._changed.notify_all()
        for thread in threads:
            thread.join()
        for late in self._late:
            late()

    def _write(self, me: int, writer: Callable[[Commits], None], storage: MemoryStorage) -> None:
        def around(name: str, work: Callable[[], Any]) -> Any:
            with self._changed:
                self._waiting.add(me)
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._chosen == me)
                self._chosen = -1
            if self.errors:
                raise RuntimeError("another writer has failed")
            return self._carried_out(name, work)

        try:
            writer(Commits(Interposed(storage, around), "me"))
        except BaseException as error:
            self.errors.append(error)
        finally:
            with self._changed:
                self._done.add(me)
                self._changed.notify_all()

    def _carried_out(self, name: str, work: Callable[[], Any]) -> Any:
        if self._late and self._random.random() < 0.1:
            self._late.pop(self._random.randrange(len(self._late)))()
        fate = self._random.random()
        if fate < 0.05:
            work()
        elif fate < 0.1 and name in WRITES:
            self._late.append(work)
        if fate < 0.1:
            raise StorageUnavailable("503")
        return work()


def recorded(commits: Commits, commit: Commit) -> bool:
    return retried(lambda: commits.commit(commit, commit.epoch))


def collect(commits: Commits, latest: Commit) -> None:
    retried(lambda: retention.collect(commits, latest, latest.epoch, Keep(1)))


def rounds(count: int) -> list[Callable[[Commits], None]]:
    """Rounds of two nodes each that save the same steps, and do not know of each other."""
    epochs: dict[int, int] = {}
    over: set[int] = set()

    def node(number: int, rank: int) -> Callable[[Commits], None]:
        def work(commits: Commits) -> None:
            try:
                if rank == 0:
                    epochs[number] = retried(commits.claim).epoch
                while number not in epochs:
                    if number in over:
                        return
                    retried(commits.latest)
                epoch = epochs[number]
                for step in (1, 2, 3):
                    commit = Commit(epoch, step)
                    put_all(commits, epoch, step, ranks=[rank])
                    done = False
                    while not done and number not in over:
                        done = recorded(commits, commit)
                    if done and rank == 0:  # what LATEST does not name yet makes nothing useless
                        collect(commits, commit)
            except Fenced:
                # Its agent tells a node that its round has been replaced.
                over.add(number)

        return work

    return [node(number, rank) for number in range(count) for rank in (0, 1)]


@pytest.mark.in_part
@pytest.mark.parametrize("count", [1, 2, 3])
def test_rounds_that_race_leave_one_history(count: int) -> None:
    several = part(range(45)) if not SOAK_TURN else range(1000 * SOAK_TURN, 1000 * SOAK_TURN + 500)
    for seed in several:
        auditor = Auditor()
        storage = MemoryStorage(auditor)
        turns = Turns(seed)
        turns.run(storage, *rounds(count))
        assert turns.errors == [], seed
        assert auditor.broken == [], seed
        assert auditor.latest is not None
        assert auditor.latest.commit == Commit(auditor.latest.epoch, 3), seed
        claim = Commits(storage, "me").claim()
        assert claim.commit == auditor.latest.commit, seed
