"""Notifications while controllers lead, die and follow each other: each is sent once at most."""

from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from support.clusters.leading_controller import KEYS, SPEC, FakeNotifier, Leader

from spotelastic.errors import LeaseLost, Unavailable
from spotelastic.model.job import Capacity, Failure, Job, JobSpec
from spotelastic.model.progress import Event, Progress
from spotelastic.model.round import Member, Round
from spotelastic.notifications.due import TOLD
from spotelastic.store.codec import decode, encode

ROUND = Round(1, "r", "started", (Member("i-1", "1", 0, "127.0.0.1", "a", 1),), "start", "")


class KilledBeforeSending(BaseException):
    """SIGKILL, between the record and the sending."""


class Deadly(FakeNotifier):
    def offer(self, *_: object) -> None:
        raise KilledBeforeSending


@pytest.fixture
def watched(leader: Leader) -> Leader:
    """Its job trains, and somebody is to be told."""
    leader.wants(watched_job(leader))
    leader.store.put(KEYS.round, encode(ROUND))
    leader.happen()
    return leader


def watched_job(leader: Leader, **more: Any) -> JobSpec:
    """Its deadline is near."""
    capacity = Capacity(deadline=leader.time.clock() + 200.0, within=3600.0)
    return replace(SPEC, **{"notify": {"1-json": 1}, "capacity": capacity, **more})


def kinds(leader: Leader) -> list[str]:
    return [each.kind for each in leader.notifier.sent]


def recorded(leader: Leader) -> list[Event]:
    events = [decode(value.data, Event) for value in leader.store.range(KEYS.event())[0]]
    return [event for event in events if event.kind == TOLD]


def fails(leader: Leader) -> None:
    failure = Failure("f", "i-1", "r", 0, 0, 1.0, 1, "boom", "Traceback: boom")
    job = Job("failed", leader.time.clock(), "rank 0 failed", failure=failure)  # it says no step
    leader.store.put(KEYS.job, encode(job))


def follows(leader: Leader) -> None:
    """Another controller leads, in a process of its own."""
    leader.notifier = FakeNotifier()
    leader.elect()
    leader.happen()
    leader.turn()


def test_a_leader_tells_once_what_it_finds(watched: Leader) -> None:
    watched.turn()
    assert sorted(kinds(watched)) == ["begun", "deadline"]
    watched.turns(5.0)
    assert sorted(kinds(watched)) == ["begun", "deadline"]
    assert sorted(e.message for e in recorded(watched)) == sorted(
        f"notification: {each.title}" for each in watched.notifier.sent
    )


def test_nobody_is_told_where_nobody_is_to_be(leader: Leader) -> None:
    leader.store.put(KEYS.round, encode(ROUND))
    leader.turns(2.0)
    assert leader.notifier.sent == [] and recorded(leader) == []


def test_a_receiver_that_is_named_later_hears_what_is_so_then(watched: Leader) -> None:
    watched.wants(watched_job(watched, notify={}))
    watched.turns(2.0)
    assert watched.notifier.sent == []
    watched.wants(watched_job(watched))
    watched.turns(30.0)
    assert sorted(kinds(watched)) == ["begun", "deadline"]


def test_a_new_leader_repeats_nothing(watched: Leader) -> None:
    watched.turn()
    follows(watched)
    watched.turns(5.0)
    assert watched.notifier.sent == []
    fails(watched)
    watched.turn()
    assert kinds(watched) == ["ended"]
    assert "Traceback: boom" in watched.notifier.sent[0].text
    follows(watched)
    assert watched.notifier.sent == []


def test_one_leader_sends_the_digest_of_a_day(watched: Leader) -> None:
    clock = datetime.fromtimestamp(watched.time.clock(), UTC).strftime("%H:%M")
    watched.wants(watched_job(watched, digest=clock))
    watched.turns(30.0)
    (digest,) = (each for each in watched.notifier.sent if each.kind == "digest")
    assert f"0 interruptions since yesterday {clock} UTC." in digest.text
    follows(watched)
    watched.turns(30.0)
    assert watched.notifier.sent == []


def test_a_failure_is_told_with_the_last_step_that_is_known(watched: Leader) -> None:
    watched.turn()
    watched.store.put(KEYS.progress("i-1"), encode(Progress("i-1", 1, 1485, 1.0)))
    fails(watched)
    watched.happen()
    watched.turn()
    (ended,) = [each for each in watched.notifier.sent if each.kind == "ended"]
    assert "failed, at step 1,485." in ended.text


def test_a_leader_that_dies_between_record_and_sending_loses_it_and_nothing_comes_twice(
    watched: Leader,
) -> None:
    watched.notifier = Deadly()
    watched.elect()
    watched.happen()
    with pytest.raises(KilledBeforeSending):
        watched.turn()
    assert len(recorded(watched)) == 2
    follows(watched)
    watched.turns(5.0)
    assert watched.notifier.sent == []


def test_a_leader_that_dies_before_the_record_leaves_it_to_the_next(
    watched: Leader,
) -> None:
    watched.store.cut()
    with suppress(Unavailable):
        watched.turn()
    watched.store.heal()
    assert watched.notifier.sent == [], "it is not on record"
    follows(watched)
    assert sorted(kinds(watched)) == ["begun", "deadline"]


def test_a_leader_that_is_none_any_more_tells_nothing(watched: Leader) -> None:
    watched.store.delete(KEYS.leader)
    with pytest.raises(LeaseLost):
        watched.turn()
    assert watched.notifier.sent == [] and recorded(watched) == []


def test_what_was_not_delivered_is_a_warning_of_the_status(watched: Leader) -> None:
    line = "--notify 1-json: “demo started training” was not delivered: status 500"
    watched.notifier.undelivered = (line,)
    watched.turn()
    assert line in watched.publisher.offered[-1].held
