"""What the leader publishes, and how often: each object that is written costs a little."""

import threading
from dataclasses import dataclass, field, replace
from typing import IO

import msgspec
from spotelastic_checkpoints.types import TimedValue
from support.clusters.memory_bucket import MemoryBucket
from support.processes.needed_threads import begun
from support.processes.patience import PATIENT

from spotelastic.cloud.bucket import CURVE, EVENTS, MEASURED, STATUS
from spotelastic.controller.accounting.status import Account
from spotelastic.controller.effects.publisher import PROGRESS_EVERY, Publisher
from spotelastic.controller.model.observation import Records
from spotelastic.errors import Unavailable
from spotelastic.model.job import Job, JobState
from spotelastic.model.progress import Event, Point, Status


@dataclass
class Bucket(MemoryBucket):
    """Keeps all that is written."""

    cluster: str = "demo"
    written: list[tuple[str, bytes]] = field(default_factory=list)
    news: threading.Condition = field(default_factory=threading.Condition)

    def put(self, name: str, data: bytes | IO[bytes]) -> None:
        assert isinstance(data, bytes)
        with self.news:
            self.written.append((name, data))
            self.news.notify_all()

    def of(self, name: str) -> list[bytes]:
        return [data for each, data in self.written if each == name]

    def wait(self, name: str, count: int) -> None:
        with self.news:
            assert self.news.wait_for(lambda: len(self.of(name)) == count, timeout=PATIENT)

    def steps(self) -> list[int]:
        return [msgspec.json.decode(data, type=Status).step for data in self.of(STATUS)]


def at_step(step: int, state: JobState = "running") -> Account:
    events = tuple(Event(float(n), "test", "") for n in range(step))
    points = tuple(Point(n, None, float(n)) for n in range(1, step + 1))
    return Account(Records(job=Job(state, 0.0, ""), events=events, points=points))


def test_a_step_is_news_once_a_second_and_what_happens_is_at_once() -> None:
    bucket, now = Bucket(), 100.0
    publisher = Publisher(bucket, lambda: "a", lambda: True, lambda: now)
    publisher.offer(at_step(1))
    bucket.wait(STATUS, 1)
    publisher.offer(at_step(2))
    bucket.wait(EVENTS, 2)  # so that it was looked at
    publisher.offer(at_step(3, "succeeded"))
    bucket.wait(STATUS, 2)
    now += PROGRESS_EVERY
    publisher.offer(at_step(4, "succeeded"))
    bucket.wait(STATUS, 3)
    publisher.close()
    assert bucket.steps() == [1, 3, 4]


def test_what_is_measured_is_progress_and_is_published_whole() -> None:
    """Of each node's GPUs there is something new four times a minute."""
    bucket, now = Bucket(), 100.0
    publisher = Publisher(bucket, lambda: "a", lambda: True, lambda: now)
    series = (TimedValue(1.0, 0.5), TimedValue(2.0, None))
    for count in range(3):
        measured = {"lr": (*series, TimedValue(3.0 + count, float(count)))}
        records = replace(at_step(1).records, measured=measured)
        events = at_step(count + 1).records.events
        publisher.offer(Account(replace(records, events=events)))
        bucket.wait(EVENTS, count + 1)  # so that it was looked at
    assert len(bucket.of(STATUS)) == 1
    publisher.finish(timeout=PATIENT)
    told = msgspec.json.decode(bucket.of(STATUS)[-1], type=Status)
    assert told.logged == {"lr": 2.0}
    assert msgspec.json.decode(bucket.of(MEASURED)[-1])["lr"] == [[1.0, 0.5], [2.0, None], [5.0, 2]]


def test_messages_of_others_are_no_news_and_are_told_with_the_next() -> None:
    bucket = Bucket()
    publisher = Publisher(bucket, lambda: "a", lambda: True, lambda: 100.0)
    states: tuple[JobState, ...] = ("running", "running", "succeeded")
    for count, state in enumerate(states):
        publisher.offer(replace(at_step(count, state), fates={"foreign": count}))
        bucket.wait(EVENTS, count + 1)  # so that it was looked at
    publisher.finish(timeout=PATIENT)
    told = [msgspec.json.decode(data, type=Status) for data in bucket.of(STATUS)]
    assert [status.messages for status in told] == [{"foreign": 0}, {"foreign": 2}]


def test_the_last_word_is_written_whatever_came_just_before_it() -> None:
    bucket = Bucket()
    publisher = Publisher(bucket, lambda: "a", lambda: True, lambda: 100.0)
    publisher.offer(at_step(1))
    bucket.wait(STATUS, 1)
    publisher.offer(at_step(2))
    publisher.finish(timeout=PATIENT)
    assert bucket.steps() == [1, 2]
    assert len(bucket.of(CURVE)) == 2


def test_the_end_is_waited_for_and_a_store_that_is_away_for_some_time_only() -> None:
    bucket = Bucket()
    publisher = Publisher(bucket, lambda: "a", lambda: True, lambda: 100.0)
    assert publisher.settle(PATIENT)
    publisher.offer(at_step(2, "succeeded"))
    assert publisher.settle(PATIENT)
    assert bucket.steps() == [2]
    publisher.close()

    def away() -> str:
        raise OSError("the store is away")

    publisher = Publisher(bucket, away, lambda: True, lambda: 100.0)
    publisher.offer(at_step(3, "succeeded"))
    assert not publisher.settle(0.2)
    publisher.close()


def test_who_leads_no_more_writes_nothing_over_the_word_of_who_does() -> None:
    """Neither what was offered last, nor what is left of what it is writing."""
    bucket, asked, answer = Bucket(), threading.Event(), threading.Event()

    def etcd_leader() -> str:
        asked.set()
        assert answer.wait(PATIENT)
        return "a"

    publisher, thread = begun(lambda: Publisher(bucket, etcd_leader, lambda: True, lambda: 100.0))
    publisher.offer(at_step(1))
    assert asked.wait(PATIENT)  # for the status
    publisher.offer(at_step(2, "succeeded"))
    publisher.close()
    before = len(bucket.written)
    answer.set()
    thread.join(PATIENT)
    assert not thread.is_alive()
    assert bucket.written[before:] == []


def test_a_leader_that_stood_still_for_longer_than_its_lease_writes_nothing() -> None:
    """Nor its last word, which it has before anybody has told it."""
    bucket, alive = Bucket(), True
    publisher = Publisher(bucket, lambda: "a", lambda: alive, lambda: 100.0)
    publisher.offer(at_step(1))
    bucket.wait(STATUS, 1)
    alive, before = False, len(bucket.written)
    publisher.offer(at_step(2, "succeeded"))
    publisher.finish(timeout=PATIENT)
    assert bucket.written[before:] == []


@dataclass
class Throttled(Bucket):
    """Fails so many times."""

    times: int = 0
    attempts: int = 0
    pauses: list[float] = field(default_factory=list)
    paused: threading.Event = field(default_factory=threading.Event)
    stays: bool = True
    """In the last of the pauses."""

    def put(self, name: str, data: bytes | IO[bytes]) -> None:
        self.attempts += 1
        if self.times:
            self.times -= 1
            raise Unavailable("AWS is busy")
        super().put(name, data)

    def draw(self, _: float, high: float) -> float:
        """No pause is waited for but the last one."""
        self.pauses.append(high)
        if self.times or not self.stays:
            return 0.0
        self.paused.set()
        return 1e6


def published_to(bucket: Throttled) -> Publisher:
    return Publisher(
        bucket,
        lambda: "a",
        lambda: True,
        lambda: 100.0,
        bucket.draw,
    )


def test_a_bucket_that_throttles_is_written_to_ever_more_rarely_whatever_is_offered(
    said: list[str],
) -> None:
    bucket = Throttled(times=7)
    publisher = published_to(bucket)
    publisher.offer(at_step(1))
    assert bucket.paused.wait(PATIENT)
    for step in range(2, 50):
        publisher.offer(at_step(step))
    assert bucket.attempts == 7
    assert bucket.pauses == [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0]
    assert sum("AWS is busy" in line for line in said) == 1
    publisher.finish(timeout=PATIENT)
    assert bucket.steps() == [49], "the last word waits for nothing"


def test_a_bucket_that_answers_again_is_written_to_as_before() -> None:
    bucket = Throttled(times=3, stays=False)
    publisher, thread = begun(lambda: published_to(bucket))
    publisher.offer(at_step(1))
    bucket.wait(STATUS, 1)
    bucket.times = 1
    publisher.offer(at_step(2, "succeeded"))
    bucket.wait(STATUS, 2)
    publisher.close()
    thread.join(PATIENT)
    assert not thread.is_alive()
    assert bucket.pauses == [0.25, 0.5, 1.0, 0.25]


def test_who_leads_no_more_ends_whatever_pause_it_is_in() -> None:
    bucket = Throttled(times=1)
    publisher, thread = begun(lambda: published_to(bucket))
    publisher.offer(at_step(1))
    assert bucket.paused.wait(PATIENT)
    publisher.close()
    thread.join(PATIENT)
    assert not thread.is_alive()
    assert bucket.written == []


def test_since_when_there_are_too_few_nodes_is_told_to_the_next_leader() -> None:
    bucket = Bucket()
    publisher = Publisher(bucket, lambda: "a", lambda: True, lambda: 100.0)
    publisher.offer(replace(at_step(1), short_since=90.0))
    publisher.finish(timeout=PATIENT)
    (status,) = (msgspec.json.decode(data, type=Status) for data in bucket.of(STATUS))
    assert status.short_since == 90.0
    older = msgspec.json.decode(bucket.of(STATUS)[0])
    del older["short_since"]
    assert msgspec.convert(older, Status).short_since is None
