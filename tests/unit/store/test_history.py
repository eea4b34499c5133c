"""The checker of a run's history finds each kind of broken history, and none in a sound one."""

from dataclasses import dataclass, field, replace

import pytest
from spotelastic_checkpoints.types import Branch, Commit, Holder, Resume
from support.store.run_history import Entry, Recorder, violations

from spotelastic.model.agreement import Proposal, Vote
from spotelastic.model.job import Failure, Job, Settings
from spotelastic.model.node import Fingerprint, Node
from spotelastic.model.round import Member, Round
from spotelastic.store.codec import encode
from spotelastic.store.keys import Keys
from spotelastic.store.port import Change, Reset, StoredValue

KEYS = Keys("r")


@dataclass
class Story:
    entries: list[Entry] = field(default_factory=list)

    def put(self, key: str, value: object) -> None:
        data = value if isinstance(value, bytes | None) else encode(value)
        self.entries.append(Entry(len(self.entries) + 1, key, data))

    def node(self, name: str, incarnation: str = "1") -> None:
        self.put(KEYS.live(name), Node(name, incarnation, "127.0.0.1", "z", Fingerprint()))

    def round(self, round_: Round) -> Round:
        self.put(KEYS.round, round_)
        return round_

    def told(self) -> list[str]:
        return violations(self.entries, "r")


def members(*names: str, incarnation: str = "1") -> tuple[Member, ...]:
    return tuple(
        Member(name, incarnation, slot, "127.0.0.1", "z", 1) for slot, name in enumerate(names)
    )


def started(round_: Round, **changes: object) -> Round:
    return replace(round_, phase="started", store="h:1", **changes)  # type: ignore[arg-type]


def memory(incarnation: str, step: int) -> Resume:
    return Resume("memory", step, incarnation, "l", (Holder("a", "h:2", (0,)),))


FIRST = Round(1, "i1", "proposed", members("a", "b", "c"), "start", "first")
SECOND = Round(2, "i2", "proposed", members("a", "b"), "loss", "c was lost", parent="i1")
LINEAGE = (Branch("i1", 10),)


def opening(settings: Settings | None = None) -> Story:
    """Three nodes of which a holds the election, and a first round that has started."""
    story = Story()
    story.put(KEYS.settings, settings or Settings(2, 3))
    for name in ("a", "b", "c", "d"):
        story.node(name)
    story.put(KEYS.holder, b"a")
    story.round(FIRST)
    story.round(started(FIRST, epoch=1))
    return story


def test_a_sound_history_breaks_no_rule() -> None:
    story = opening()
    story.put(KEYS.commit, Commit(1, 10))
    story.put(KEYS.failure("c"), Failure("f", "c", "i1", 2, 0, 0.0, 1))
    charged = replace(SECOND, cause="worker", charged=(1.0,))
    story.round(charged)
    again = story.round(replace(charged, incarnation="i3", members=members("a", "b", "d")))
    last = started(again, epoch=2, resume=memory("i1", 10), lineage=LINEAGE)
    story.round(replace(last, epoch=0))
    story.round(last)
    story.put(KEYS.commit, Commit(2, 20))
    assert story.told() == []


@pytest.mark.parametrize(
    ("round_", "told"),
    [
        (replace(SECOND, number=3), "follows started round 1"),
        (replace(SECOND, parent="other"), "i1 was the last to start"),
        (replace(SECOND, number=1), "follows started round 1"),
        (started(SECOND, resume=memory("i1", 10)), "follows a started round"),
        (replace(SECOND, members=members("b", "a")), "moved from slot"),
        (replace(SECOND, members=members("a", "c")), None),
        (replace(SECOND, members=members("b", "c")), None),
        (replace(SECOND, members=members("a", "d", "b")), "moved from slot 1 to 2"),
        (replace(SECOND, members=members("c", "b")), None),
        (replace(SECOND, members=members("a", "b", "c", "d")), "more than 3"),
        (replace(SECOND, members=members("a", "x")), "x was never registered as 1"),
        (replace(SECOND, members=members("a", "b", incarnation="2")), "never registered as 2"),
        (replace(SECOND, members=(members("a", "b")[1],)), "no permutation"),
        (replace(SECOND, members=(*members("a"), replace(members("a")[0], slot=1))), "two slots"),
        (replace(SECOND, missed=("1",)), "had missed a proposal"),
        (replace(SECOND, charged=(1.0,)), "charged 1 failures for cause loss"),
        (replace(SECOND, cause="worker", charged=(1.0,)), "charged 1 failures"),
    ],
)
def test_a_broken_next_round_is_found(round_: Round, told: str | None) -> None:
    story = opening()
    story.round(round_)
    if told is None:
        assert story.told() == []
    else:
        assert any(told in each for each in story.told()), story.told()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"members": members("a")}, "not as it was proposed"),
        ({"phase": "proposed"}, "was proposed twice"),
        ({"lineage": ()}, "lineage does not end"),
        ({"resume": memory("i1", 9)}, "Commit(epoch=1, step=10) was there"),
        ({"resume": memory("i1", 11)}, "not on its lineage at 11"),
        ({"resume": memory("other", 10)}, "not on its lineage"),
        ({"epoch": 1}, "its epoch 1 is not newer"),
    ],
)
def test_a_broken_start_is_found(change: dict[str, object], told: str) -> None:
    story = opening()
    story.put(KEYS.commit, Commit(1, 10))
    story.round(SECOND)
    sound = started(SECOND, epoch=2, resume=memory("i1", 10), lineage=LINEAGE)
    story.round(replace(sound, **change))  # type: ignore[arg-type]
    assert any(told in each for each in story.told()), story.told()


def test_a_round_that_starts_with_too_few_nodes_is_found() -> None:
    story = opening()
    alone = story.round(replace(SECOND, members=members("a")))
    assert story.told() == [], "it may be proposed, and waits"
    story.round(started(alone, lineage=LINEAGE))
    assert any("fewer than 2" in each for each in story.told())


def test_a_started_round_that_changes_is_found() -> None:
    story = opening()
    story.round(started(FIRST, epoch=1, resume=Resume(step=5)))
    assert any("changed after it had started" in each for each in story.told())


def test_an_agreed_step_that_is_lost_is_found() -> None:
    story = opening()
    story.put(KEYS.proposal, Proposal("p", "i1", "c leaves", target=12))
    for name in ("a", "b", "c"):
        story.put(KEYS.vote(name), Vote(name, "p", 12, sealed=12))
    story.round(SECOND)
    story.round(started(SECOND, epoch=2, resume=memory("i1", 10), lineage=LINEAGE))
    assert any("step 12 was agreed on" in each for each in story.told())


def test_an_overdrawn_budget_is_found() -> None:
    story = opening(Settings(2, 3, max_restarts=0))
    story.put(KEYS.failure("c"), Failure("f", "c", "i1", 2, 0, 0.0, 1))
    charged = story.round(replace(SECOND, cause="worker", charged=(1.0,)))
    assert story.told() == [], "the job ends instead"
    story.round(started(charged, lineage=LINEAGE))
    assert any("exceed the budget of 0" in each for each in story.told())


def test_a_write_without_the_election_key_is_found() -> None:
    story = opening()
    story.put(KEYS.holder, None)
    story.round(SECOND)
    assert any("nobody held the election key" in each for each in story.told())


def test_a_round_after_the_end_or_none_at_all_is_found() -> None:
    story = opening()
    story.put(KEYS.job, Job("succeeded", 0.0))
    story.round(SECOND)
    story.put(KEYS.round, None)
    assert [each.partition(": ")[2] for each in story.told()] == [
        "round 2 (proposed, c was lost): written after the job had succeeded",
        "the round was deleted",
    ]


def test_commits_that_go_back_or_come_from_nowhere_are_found() -> None:
    story = opening()
    story.put(KEYS.commit, Commit(1, 20))
    story.put(KEYS.commit, Commit(1, 10))
    story.put(KEYS.commit, Commit(7, 10))
    told = story.told()
    assert len(told) == 2
    assert "went from" in told[0] and "no started round has" in told[1]


def test_a_recorder_tells_what_it_missed() -> None:
    recorder, value = Recorder(), StoredValue("k", b"1", 1, 1)
    recorder((Reset((), 0),))
    recorder((Change("k", value, 1), Change("k", None, 2)))
    assert recorder.entries == [Entry(1, "k", b"1"), Entry(2, "k", None)]
    assert not recorder.gaps
    recorder((Reset((value,), 5),))
    assert len(recorder.gaps) == 1
