"""What a leader does while it looks at AWS, and when its term is over."""

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from spotelastic.aws.clients import Rejected
from spotelastic.aws.events import SpotWarning, StateChange
from spotelastic.aws.packing import Zone
from spotelastic.clock import steady, unbroken
from spotelastic.controller import term as terms
from spotelastic.controller.config import ControllerConfig
from spotelastic.controller.observe import Mirror
from spotelastic.controller.rest import LOOKING, PRESSING
from spotelastic.controller.seen import Discard, Message, Order, Reply
from spotelastic.controller.term import Term
from spotelastic.errors import Unavailable
from spotelastic.model.command import Command
from spotelastic.model.job import Capacity, Job, JobSpec, Settings
from spotelastic.model.node import Fingerprint, Node
from spotelastic.model.notice import Drain, Notice
from spotelastic.model.progress import Status
from spotelastic.store.codec import encode
from spotelastic.store.election import campaign
from spotelastic.store.keys import Keys
from spotelastic.store.memory import MemoryStore

KEYS = Keys("demo")
NODES = ("i-1", "i-2", "i-3")
BORN = 1e9
SPEC = JobSpec(
    "demo", "demo", "train.py", (), "c0de", Settings(1, 3), "s3://bucket/demo", (), born_at=BORN
)
GROUP = "spotelastic-demo-workers"


class Inbox:
    """Without a queue: what a test puts there is pending."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.pending: dict[str, Any] = {}
        self.handled: frozenset[str] = frozenset()

    @property
    def messages(self) -> tuple[Any, ...]:
        return tuple(self.pending.values())

    def settle(self, done: Any) -> None:
        for action in done:
            if isinstance(action, Discard) and self.pending.pop(action.message.receipt, None):
                self.handled |= {action.message.event.id}
            elif isinstance(action, Reply):
                self.pending.pop(action.order.receipt, None)

    def close(self) -> None: ...


class Account:
    """AWS with one group, in the order of its calls; `during` is called within each of them."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.leaving: set[str] = set()
        self.gone: dict[str, float] = {}
        """Instances that EC2 still shows, and when they were launched."""
        self.during: dict[str, Callable[[], None]] = {}
        self.throttled: frozenset[str] = frozenset()
        """Calls that fail until further notice."""
        self.pauses: list[float] = []
        """The longest that each could have been; it is as long as that."""

    def draw(self, _: float, high: float) -> float:
        self.pauses.append(high)
        return high

    def __getattr__(self, service: str) -> Any:
        return self

    def call(self, name: str) -> None:
        self.calls.append(name)
        self.during.pop(name, lambda: None)()
        if name in self.throttled:
            raise Unavailable("cannot do that: AWS is busy")

    def describe_auto_scaling_groups(self, **_: Any) -> dict[str, Any]:
        self.call("groups")
        states = {True: "Terminating:Wait", False: "InService"}
        places = [
            {"InstanceId": name, "LifecycleState": states[name in self.leaving], "HealthStatus": ""}
            for name in NODES
        ]
        group = {"AutoScalingGroupName": GROUP, "DesiredCapacity": 3, "Instances": places}
        return {"AutoScalingGroups": [group]}

    def terminate_instance_in_auto_scaling_group(self, **told: Any) -> None:
        self.call(f"replace {told['InstanceId']}")
        self.leaving.add(told["InstanceId"])

    def put_scheduled_update_group_action(self, **_: Any) -> None:
        """The dead man's switch."""
        self.call("postpone")

    def update_auto_scaling_group(self, **told: Any) -> None:
        self.call(f"launch in {told['VPCZoneIdentifier']}")

    def set_desired_capacity(self, **_: Any) -> None:
        self.call("size")

    def put_object(self, **told: Any) -> None:
        self.call(f"put {told['Key']}")

    def get_queue_url(self, **_: Any) -> dict[str, str]:
        return {"QueueUrl": "queue"}

    def delete_message(self, **told: Any) -> None:
        self.call(f"delete {told['ReceiptHandle']}")


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch) -> Account:
    account = Account()

    def machines(*_: Any) -> tuple[Any, ...]:
        account.call("machines")
        shown = {name: ("running", unbroken()) for name in NODES}
        shown |= {name: ("terminated", at) for name, at in account.gone.items()}
        return tuple(
            terms.Machine(name, "worker", state, "t", "z", "", False, at)
            for name, (state, at) in shown.items()
        )

    monkeypatch.setattr(terms.autoscaling, "machines", machines)
    monkeypatch.setattr(terms, "Inbox", Inbox)
    for name in ("Snapshots", "Publisher"):
        monkeypatch.setattr(terms, name, lambda *_: SimpleNamespace(offer=lambda _: None))
    return account


@pytest.fixture
def store() -> MemoryStore:
    store = MemoryStore(unbroken)
    store.put(KEYS.job, encode(Job("running", unbroken())))
    for name in NODES:
        store.put(KEYS.live(name), encode(Node(name, f"{name}-1", "", "z", Fingerprint())))
    return store


@pytest.fixture
def term(account: Account, store: MemoryStore) -> Term:
    mirror = Mirror(KEYS, lambda: None)
    store.watch(KEYS.root, mirror)
    leadership = campaign(store, KEYS.leader, b"i-control", store.grant(1e6))
    assert leadership is not None
    bucket: Any = SimpleNamespace(
        has=lambda _: account.call("stopping"),
        job=lambda: None,
        cluster="demo",
        get=lambda _: None,
        status=lambda: None,
        curve=list,
    )
    prices: Any = SimpleNamespace(
        spot=lambda *_: 1.0, on_demand=lambda _: 1.0, besides=lambda *_, **__: 0.0, date=""
    )
    config = ControllerConfig(SPEC, "bucket", "r", "i-control", "")
    aws: Any = account
    wake = threading.Event()
    term = Term(
        config, aws, store, bucket, mirror, leadership, wake, prices, lambda: True, account.draw
    )
    term._turn()
    account.calls.clear()
    return term


class Time:
    """Passes as told; as `over`, it is waited for, and something happens in etcd all the time."""

    def __init__(self, store: MemoryStore) -> None:
        self.now = steady()
        self.end = 0.0
        self._store = store
        self._there = False

    def __call__(self) -> float:
        return self.now

    def wait(self, seconds: float) -> bool:
        self.now += seconds
        self.happen()
        return self.is_set()

    def happen(self) -> None:
        self._there = not self._there
        if self._there:
            self._store.put(KEYS.live("i-4"), encode(Node("i-4", "i-4-1", "", "z", Fingerprint())))
        else:
            self._store.delete(KEYS.live("i-4"))

    def is_set(self) -> bool:
        return self.now >= self.end


@pytest.fixture
def time(term: Term, store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> Time:
    time = Time(store)
    monkeypatch.setattr(terms, "steady", time)
    term._wake = SimpleNamespace(wait=lambda _: True, clear=lambda: None)  # type: ignore[assignment]
    return time


def lead(term: Term, time: Time, seconds: float) -> None:
    over: Any = time
    time.end = time.now + seconds
    term.lead(over)


def turns(term: Term, time: Time, seconds: float, *, busy: bool = True) -> None:
    """Of a leader that has taken over before; `busy`: things happen in etcd."""
    end = time.now + seconds
    while time.now < end:
        time.now += terms.TURN
        if busy:
            time.happen()
        with suppress(Unavailable):
            term._turn()


def warns(node: str) -> Message:
    return Message(f"r-{node}", SpotWarning(f"e-{node}", unbroken(), node), unbroken())


def test_a_warning_that_comes_during_a_look_does_not_wait_for_its_end(
    term: Term, account: Account, store: MemoryStore
) -> None:
    """Nor for another one: five that come one after the other would take many seconds."""
    pending = term._inbox.pending  # type: ignore[attr-defined]
    other = Message("r-other", StateChange("e-other", 1.0, "i-3", "running"), unbroken())
    pending[other.receipt] = other
    notice = Notice("notice", "i-2", "imds", 1.0, 1.0, 121.0)
    account.during = {
        "groups": lambda: pending.update({"r-i-1": warns("i-1")}),
        "machines": lambda: store.put(KEYS.drain("i-2"), encode(Drain("i-2", notice))) and None,
    }
    term._turn()
    assert account.calls == [
        *("stopping", "groups", "replace i-1", "delete r-i-1"),
        *("machines", "replace i-2", "delete r-other"),
    ]


def test_a_warning_is_answered_before_a_look_whatever_else_has_come(
    term: Term, account: Account
) -> None:
    pending = term._inbox.pending  # type: ignore[attr-defined]
    other = Message("r-other", StateChange("e-other", 1.0, "i-3", "terminated"), unbroken())
    for message in (other, warns("i-1")):
        pending[message.receipt] = message
    term._turn()
    assert account.calls[:3] == ["replace i-1", "delete r-i-1", "stopping"]
    assert account.calls.count("replace i-1") == 1
    account.calls.clear()
    pending["r-i-2"] = warns("i-2")
    term._turn()
    assert account.calls[:2] == ["replace i-2", "delete r-i-2"], "as soon after an action"


def test_instances_of_an_earlier_cluster_of_the_same_name_are_none_of_this_one(
    term: Term, account: Account
) -> None:
    """They were on its bill from their launch until now, and their failed boots were its own."""
    account.gone = {"i-old": BORN - 600.0, "i-own": BORN + 60.0}
    term._look()
    assert set(term._machines) == set(term._bill) == {*NODES, "i-own"}


def test_the_dead_mans_switch_is_postponed_while_the_bucket_is_away(
    term: Term, account: Account, capsys: pytest.CaptureFixture[str]
) -> None:
    def away() -> None:
        raise Unavailable("cannot reach S3")

    account.during["stopping"] = away
    looks = "groups", "machines", "postpone", "postpone"
    for asked in (("stopping",), ()):  # S3 is left in peace for a while
        term._switch_at = term._look_at = 0.0
        term._turn()
        assert account.calls == [*asked, *looks]
        account.calls.clear()
    assert capsys.readouterr().err.count("cannot reach S3") == 1


def test_a_new_leader_that_cannot_read_the_job_postpones_the_switch_all_the_same(
    term: Term, account: Account, capsys: pytest.CaptureFixture[str]
) -> None:
    """It would have led for hours, and AWS ended all workers within the first one."""
    over = threading.Event()

    def away() -> None:
        raise Unavailable("cannot reach S3")

    term._switch_at = 0.0
    account.during = {"stopping": away, "postpone": over.set}
    term.lead(over)
    assert account.calls == ["stopping", "groups", "postpone", "postpone"]
    term._hold_off()
    assert len(account.calls) == 4, "not before it is due"
    assert capsys.readouterr().err.count("cannot reach S3") == 1


def test_zones_that_cannot_be_looked_up_hold_up_no_decision(
    term: Term, account: Account, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    asked: list[int] = []

    def busy(_: object) -> None:
        asked.append(1)
        raise Unavailable("cannot find the zones of the cluster's subnets: AWS is busy")

    monkeypatch.setattr(term._zones, "of", busy)
    pending = term._inbox.pending  # type: ignore[attr-defined]
    warning = warns("i-1")
    pending[warning.receipt] = warning
    term._switch_at = term._look_at = 0.0
    term._turn()
    assert account.calls[:2] == ["replace i-1", "delete r-i-1"]
    assert account.calls.count("postpone") == 2
    assert asked == [1], "AWS is left in peace for a while"
    assert capsys.readouterr().err.count("AWS is busy") == 1


def test_prices_and_scores_that_may_not_be_asked_for_hold_up_no_decision(
    term: Term, account: Account, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    zones = tuple(Zone(name, (f"subnet-{name}",)) for name in "ab")
    monkeypatch.setattr(term._zones, "of", lambda _: zones)
    asked: list[int] = []

    def refused(_: object, __: object, nodes: int) -> None:
        asked.append(nodes)
        raise Rejected("cannot look up spot prices: not allowed", "UnauthorizedOperation")

    monkeypatch.setattr(term._zones, "offers", refused)
    for _ in range(2):
        term._switch_at = term._look_at = 0.0
        term._turn()
    assert asked == [3], "AWS is left in peace for a while"
    assert account.calls.count("postpone") == 4
    assert account.calls.count("launch in subnet-a") == 2
    assert capsys.readouterr().err.count("not allowed") == 1


def test_types_that_up_has_changed_are_those_that_are_priced(term: Term) -> None:
    """The limit would else keep out nodes that cost less, or let in those that cost more."""
    prices: Any = SimpleNamespace(spot=lambda type, _: {"cheap": 0.3, "dear": 3.0}[type])
    term._prices = prices
    told = replace(SPEC, instance_types=("dear",), capacity=Capacity(max_price=1.0))
    for types, usd in (("dear",), 3.0), (("cheap",), 0.3):
        term._go_by(False, replace(told, instance_types=types))
        seen = term._seen(term._mirror.records(), ())
        assert (seen.types, seen.money.spot) == (types, usd)


DOUBLING = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0]


def test_aws_that_throttles_is_asked_ever_more_rarely_whatever_changes_in_etcd(
    term: Term, account: Account, time: Time, capsys: pytest.CaptureFixture[str]
) -> None:
    account.throttled = frozenset({"machines"})
    lead(term, time, 200.0)
    assert account.pauses == [*DOUBLING, *[LOOKING] * 3]
    assert account.calls.count("groups") == account.calls.count("machines") == 9
    assert capsys.readouterr().err.count("AWS is busy") == 1
    account.throttled = frozenset()
    account.calls.clear()
    lead(term, time, 1.5 * LOOKING)
    assert account.calls.count("machines") > 10, "as usual again"
    account.throttled = frozenset({"groups"})
    account.pauses.clear()
    lead(term, time, 2.0)
    assert account.pauses == [1.0, 2.0], "the pauses begin anew"


def test_a_job_that_cannot_be_read_at_first_is_asked_for_ever_more_rarely(
    term: Term, account: Account, time: Time
) -> None:
    account.throttled = frozenset({"stopping"})
    lead(term, time, 60.0)
    assert account.calls.count("stopping") == 6


def test_a_warning_is_answered_at_once_while_aws_is_left_in_peace(
    term: Term, account: Account, time: Time
) -> None:
    account.throttled = frozenset({"machines"})
    turns(term, time, 100.0)
    account.calls.clear()
    term._inbox.pending["r-i-1"] = warns("i-1")  # type: ignore[attr-defined]
    rest = term._turn()
    assert account.calls == ["replace i-1", "delete r-i-1"]
    assert rest > PRESSING


def test_a_warning_that_cannot_be_answered_is_tried_again_and_holds_up_no_other(
    term: Term, account: Account, time: Time
) -> None:
    account.throttled = frozenset({"machines", "replace i-1"})
    turns(term, time, 10.0)
    pending = term._inbox.pending  # type: ignore[attr-defined]
    pending["r-i-1"] = warns("i-1")
    account.calls.clear()
    turns(term, time, 60.0)
    assert account.calls.count("replace i-1") == 14
    pending["r-i-2"] = warns("i-2")
    account.calls.clear()
    turns(term, time, 2 * terms.TURN)
    assert "replace i-2" in account.calls
    account.throttled = frozenset({"machines"})
    turns(term, time, 10.0)
    assert account.calls.count("replace i-1") == account.calls.count("replace i-2") == 1
    assert set(pending) == set()


def test_a_warned_node_that_aws_has_not_shown_yet_has_it_looked_at(
    term: Term, account: Account, store: MemoryStore, time: Time
) -> None:
    account.throttled = frozenset({"machines"})
    turns(term, time, 100.0)
    term._machines = {}
    store.put(KEYS.drain("i-1"), encode(Drain("i-1", Notice("notice", "i-1", "imds", 1.0, 1.0))))
    account.calls.clear()
    turns(term, time, 8.0)
    assert 4 <= account.calls.count("machines") <= 5
    account.throttled = frozenset()
    turns(term, time, PRESSING + 2 * terms.TURN)
    assert "replace i-1" in account.calls


def test_a_command_is_answered_in_time_once_aws_answers_again(
    term: Term, account: Account, time: Time
) -> None:
    account.throttled = frozenset({"machines"})
    turns(term, time, 100.0)
    pending = term._orders.pending  # type: ignore[attr-defined]
    pending["o"] = Order("o", Command("c", "scale", 1, 3), unbroken())
    account.calls.clear()
    turns(term, time, 4.0)
    assert 2 <= account.calls.count("machines") <= 3
    account.throttled = frozenset()
    turns(term, time, PRESSING + 2 * terms.TURN)
    assert account.calls.count("put demo/commands/c.json") == 1
    assert set(pending) == set()


def test_an_action_that_fails_is_not_repeated_at_every_turn_but_at_what_is_new(
    term: Term, account: Account, store: MemoryStore, time: Time
) -> None:
    term._wanted = replace(SPEC.settings, max_nodes=4)
    account.throttled = frozenset({"size"})
    turns(term, time, 100.0, busy=False)
    assert account.pauses == [1.0, 2.0, 4.0, 8.0, *[terms.IDLE] * 6]
    assert account.calls.count("size") == 10
    time.happen()  # there is another node
    term._turn()
    assert account.calls.count("size") == 11
    account.throttled = frozenset()
    time.now += terms.IDLE
    term._turn()
    assert account.calls.count("size") == 12
    account.throttled = frozenset({"size"})
    account.pauses.clear()
    time.now += terms.SOON
    term._turn()
    assert account.pauses == [1.0], "the pauses begin anew"


def test_progress_is_told_while_aws_is_left_in_peace(
    term: Term, account: Account, time: Time
) -> None:
    told: list[Any] = []
    term._publisher = SimpleNamespace(offer=told.append)  # type: ignore[assignment]
    account.throttled = frozenset({"machines"})
    turns(term, time, 10.0)
    told.clear()
    term._turn()
    assert [set(each.machines) for each in told] == [set(NODES)]


def test_patience_with_spot_counts_from_when_the_leader_before_saw_too_few_nodes(
    term: Term, account: Account, store: MemoryStore, time: Time
) -> None:
    """Each new leader would else begin to wait anew, and nodes on demand would never come."""
    term._wanted = Settings(3, 3)
    since = unbroken() - 500.0
    told: list[Any] = []
    term._publisher = SimpleNamespace(offer=told.append)  # type: ignore[assignment]
    status = Status("demo", "running", unbroken(), short_since=since)
    term._objects.status = lambda: status  # type: ignore[method-assign]
    store.delete(KEYS.live("i-1"))
    term._take_over()
    term._turn()
    assert told[-1].short_since == since
    assert term._seen(term._mirror.records(), ()).short_since == since
    store.put(KEYS.live("i-1"), encode(Node("i-1", "i-1-2", "", "z", Fingerprint())))
    term._turn()
    assert told[-1].short_since is None
    store.delete(KEYS.live("i-1"))
    store.put(KEYS.job, encode(Job("failed", unbroken())))
    term._turn()
    assert told[-1].short_since is None, "a job that has ended needs no nodes"
