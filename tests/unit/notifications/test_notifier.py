"""The threads that send: nobody waits for them, and no receiver holds up another one."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from support.processes.patience import PATIENT, eventually
from support.processes.webhooks import TOKEN, webhook

from spotelastic.errors import Unavailable
from spotelastic.notifications.notification import Notification, Receiver, SendOutcome
from spotelastic.notifications.notifier import Notifier
from spotelastic.notifications.url_receiver import UrlReceiver


def notification(number: int) -> Notification:
    return Notification(f"begun {number}", f"demo has begun {number}", "See it.")


@dataclass
class Scripted:
    """Answers as it is told, and then takes all."""

    name: str
    outcomes: list[SendOutcome] = field(default_factory=list)
    got: list[str] = field(default_factory=list)
    asked: threading.Event = field(default_factory=threading.Event)
    goes_on: threading.Event | None = None

    def send(self, notification: Notification) -> SendOutcome:
        self.asked.set()
        if self.goes_on is not None:
            self.goes_on.wait(PATIENT)
        outcome = self.outcomes.pop(0) if self.outcomes else SendOutcome()
        if not outcome.why:
            self.got.append(notification.id)
        return outcome


@contextmanager
def notifying(*receivers: Receiver, **more: float) -> Iterator[Notifier]:
    def find(names: Mapping[str, int]) -> Sequence[Receiver]:
        return [each for each in receivers if each.name in names]

    notifier = Notifier(find, **{"first_pause": 0.01, **more})  # type: ignore[arg-type]
    yield notifier
    notifier.finish(PATIENT)


ONE = {"1-a": 1}
TWO = {"1-a": 1, "2-b": 1}


def test_each_receiver_gets_each_notification_in_order() -> None:
    one, two = Scripted("1-a"), Scripted("2-b")
    with notifying(one, two) as notifier:
        notifier.offer(TWO, [notification(1), notification(2)])
        notifier.offer(ONE, [notification(3)])
    assert one.got == ["begun 1", "begun 2", "begun 3"]
    assert two.got == ["begun 1", "begun 2"]


def test_nothing_is_started_while_there_is_nothing_to_tell() -> None:
    before = threading.active_count()
    with notifying(Scripted("1-a")) as notifier:
        notifier.offer(ONE, [])
        assert threading.active_count() == before


def test_a_receiver_that_hangs_holds_up_neither_the_caller_nor_the_others() -> None:
    hanging = Scripted("1-a", goes_on=threading.Event())
    other = Scripted("2-b")
    with notifying(hanging, other) as notifier:
        notifier.offer(TWO, [notification(1)])
        assert hanging.asked.wait(PATIENT)
        eventually(lambda: other.got == ["begun 1"])
        assert hanging.goes_on is not None
        hanging.goes_on.set()
    assert hanging.got == ["begun 1"]


def test_a_refusal_is_tried_again_told_meanwhile_and_forgotten_after() -> None:
    told: list[tuple[str, ...]] = []
    receiver = Scripted("1-a", [SendOutcome("status 500"), SendOutcome("status 500")])

    def find(_names: Mapping[str, int]) -> Sequence[Receiver]:
        return [receiver]

    notifier = Notifier(find, first_pause=0.01, changed=lambda: told.append(notifier.undelivered))
    notifier.offer(ONE, [notification(1)])
    notifier.finish(PATIENT)
    assert receiver.got == ["begun 1"]
    line = "--notify 1-a: “demo has begun 1” was not delivered: status 500"
    assert told == [(line,), ()]


def test_what_may_have_come_is_not_sent_again() -> None:
    receiver = Scripted("1-a", [SendOutcome("no answer within 20 s", unsure=True)])
    with notifying(receiver) as notifier:
        notifier.offer(ONE, [notification(1), notification(2)])
    assert receiver.got == ["begun 2"]


def test_a_dead_receiver_is_given_up_in_the_end_and_stays_told() -> None:
    receiver = Scripted("1-a", [SendOutcome("refused")] * 1000)
    now = [0.0]

    def clock() -> float:
        now[0] += 100.0
        return now[0]

    notifier = Notifier(lambda _names: [receiver], first_pause=0.001, clock=clock)
    notifier.offer(ONE, [notification(1)])
    notifier.finish(PATIENT)
    assert len(receiver.outcomes) > 990
    assert "was not delivered: refused" in notifier.undelivered[0]


def test_a_receiver_that_breaks_costs_one_notification() -> None:
    @dataclass
    class Breaking:
        name: str = "1-a"
        broke: int = 0

        def send(self, notification: Notification) -> SendOutcome:
            self.broke += 1
            raise RuntimeError("a defect")

    receiver = Breaking()
    notifier = Notifier(lambda _names: [receiver], first_pause=0.01, tried_for=0.0)
    notifier.offer(ONE, [notification(1), notification(2)])
    notifier.finish(PATIENT)
    assert receiver.broke == 2
    assert "RuntimeError: a defect" in notifier.undelivered[0]


def test_receivers_that_cannot_be_looked_up_are_looked_up_again() -> None:
    receiver, failures = Scripted("1-a"), [Unavailable("the Parameter Store is busy")]

    def find(_names: Mapping[str, int]) -> Sequence[Receiver]:
        if failures:
            raise failures.pop()
        return [receiver]

    notifier = Notifier(find, first_pause=0.01)
    notifier.offer(ONE, [notification(1)])
    notifier.finish(PATIENT)
    assert receiver.got == ["begun 1"] and notifier.undelivered == ()


def test_a_url_that_has_changed_is_looked_up_anew() -> None:
    looked: list[dict[str, int]] = []

    def find(names: Mapping[str, int]) -> Sequence[Receiver]:
        looked.append(dict(names))
        return [Scripted("1-a")]

    notifier = Notifier(find)
    notifier.offer({"1-a": 1}, [notification(1), notification(2)])
    notifier.offer({"1-a": 2}, [notification(3)])
    notifier.finish(PATIENT)
    assert looked == [{"1-a": 1}, {"1-a": 2}]


def test_the_end_waits_no_longer_than_it_is_told_to() -> None:
    hanging = Scripted("1-a", goes_on=threading.Event())
    notifier = Notifier(lambda _names: [hanging])
    notifier.offer(ONE, [notification(1)])
    assert hanging.asked.wait(PATIENT)
    notifier.finish(0.01)
    assert hanging.got == []
    assert hanging.goes_on is not None
    hanging.goes_on.set()


def test_a_real_webhook_that_fails_first_gets_it_once() -> None:
    with webhook(503) as hook:
        receiver = UrlReceiver("1-json", hook.url, PATIENT)
        with notifying(receiver) as notifier:
            notifier.offer({"1-json": 1}, [notification(1)])
            eventually(lambda: any("503" in line for line in notifier.undelivered))
            assert TOKEN not in str(notifier.undelivered)
            hook.wait(2)
    assert [each["status"] for each in hook.heard] == [503, 200]
