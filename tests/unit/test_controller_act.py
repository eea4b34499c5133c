"""What the controller does when AWS fails it, at each of its calls in turn."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError, ReadTimeoutError

from spotelastic.aws.autoscaling import Group, Machine, Place
from spotelastic.aws.events import SpotWarning
from spotelastic.controller.act import Actor
from spotelastic.controller.decide import decide
from spotelastic.controller.seen import (
    Action,
    Discard,
    Forget,
    Message,
    Policy,
    Revive,
    Seen,
    SetDesired,
)
from spotelastic.controller.upkeep import BOOT, Examine
from spotelastic.errors import LeaseLost
from spotelastic.model.job import Ending, Job, JobSpec, Settings
from spotelastic.model.node import Fingerprint, Node
from spotelastic.model.notice import Drain
from spotelastic.model.progress import Event
from spotelastic.model.round import Member, Resume, Round, RoundRecord
from spotelastic.rendezvous import rounds
from spotelastic.rendezvous.decision import WriteRound
from spotelastic.rendezvous.view import LiveNode
from spotelastic.rendezvous.view import Seen as ViewSeen
from spotelastic.store.codec import decode, encode
from spotelastic.store.election import Leadership, campaign
from spotelastic.store.keys import Keys
from spotelastic.store.memory import MemoryStore

NOW = 10_000.0
KEYS = Keys("run")
SPEC = JobSpec("demo", "run", "train.py", (), "c0de", Settings(1, 2), "s3://bucket/demo", ())
TROUBLE = {
    "throttled": ClientError({"Error": {"Code": "Throttling", "Message": "slow down"}}, "op"),
    "denied": ClientError({"Error": {"Code": "AccessDenied", "Message": "no"}}, "op"),
    "silent": ReadTimeoutError(endpoint_url="https://aws"),
}


class Client:
    """Takes every call; the one with the number `fails` is answered with `trouble`, once."""

    def __init__(self, fails: int, trouble: Exception) -> None:
        self.calls: list[tuple[str, str]] = []
        self._fails, self._trouble = fails, trouble
        self._count = 0

    def __getattr__(self, name: str) -> Any:
        def call(**arguments: Any) -> dict[str, Any]:
            self._count += 1
            if self._count - 1 == self._fails:
                raise self._trouble
            about = next((str(arguments[key]) for key in ABOUT if key in arguments), "")
            self.calls.append((name, about))
            return {}

        return call


ABOUT = ("InstanceId", "InstanceIds", "DesiredCapacity", "ReceiptHandle")
DONE = {
    ("terminate_instance_in_auto_scaling_group", "i-noticed"),
    ("terminate_instance_in_auto_scaling_group", "i-silent"),
    ("complete_lifecycle_action", "i-drained"),
    ("terminate_instances", "['i-stranger']"),
    ("set_desired_capacity", "4"),
    ("delete_message", "r1"),
    ("delete_message", "r2"),
}


def everything() -> Seen:
    """A cluster in which something of every kind is to be done, by two messages among others."""
    states = {"i-noticed": "InService", "i-silent": "InService", "i-drained": "Terminating:Wait"}
    machines = {
        name: Machine(name, "worker", "running", "t", "z", "", True, 0.0)
        for name in (*states, "i-stranger")
    }
    return Seen(
        desired=4,
        since=0.0,
        job=Job("running", 100.0),
        group=Group("workers", 3, tuple(Place(name, state) for name, state in states.items())),
        machines=machines,
        nodes={"i-noticed": Node("i-noticed", "n1", "", "z", Fingerprint())},
        messages=(
            Message("r1", SpotWarning("e1", NOW - 1.0, "i-noticed"), NOW),
            Message("r2", SpotWarning("e2", NOW - 1.0, "i-of-somebody-else"), NOW),
        ),
    )


def actor(client: Client, store: MemoryStore, leadership: Leadership) -> Actor:
    aws: Any = SimpleNamespace(autoscaling=client, ec2=client, sqs=client)
    return Actor(aws, store.client(), leadership, SPEC, "bucket", "queue", "commands")


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(lambda: NOW)


def leads(store: MemoryStore, name: bytes = b"i-control") -> Leadership:
    leadership = campaign(store.client(), KEYS.leader, name, store.client().grant(10.0))
    assert leadership is not None
    return leadership


@pytest.mark.parametrize("trouble", TROUBLE)
@pytest.mark.parametrize("fails", range(len(DONE)))
def test_a_call_that_fails_keeps_back_its_message_only_and_is_made_at_the_next_turn(
    store: MemoryStore, fails: int, trouble: str
) -> None:
    client = Client(fails, TROUBLE[trouble])
    acts = actor(client, store, leads(store))
    first = acts.perform(decide(everything(), NOW, Policy()).actions)
    assert len(client.calls) == len(DONE) - 1 - noticed_was_kept_back(client)
    kept = tuple(m for m in everything().messages if m.receipt not in discarded(first))
    acts.perform(decide(replace(everything(), messages=kept), NOW, Policy()).actions)
    assert set(client.calls) == DONE
    assert client.calls.count(("delete_message", "r1")) == 1
    held = store.client().get(KEYS.drain("i-noticed"))
    assert held is not None
    assert decode(held.data, Drain).notice.source == "sqs"


def test_a_boot_whose_console_may_not_be_read_is_on_record_nevertheless(
    store: MemoryStore,
) -> None:
    machine = Machine("i-off", "worker", "terminated", "t", "z", "", True, 0.0)
    acts = actor(Client(0, TROUBLE["denied"]), store, leads(store))
    acts.perform((Examine(machine, "it has shut itself down", NOW),))
    [event] = [decode(e.data, Event) for e in store.client().range(KEYS.event())[0]]
    assert (event.kind, event.node) == (BOOT, "i-off")
    assert event.data["said"].startswith("controller: cannot read the console of i-off")


def noticed_was_kept_back(client: Client) -> bool:
    """Whether what the first message caused has failed, so that it was not deleted either."""
    return ("terminate_instance_in_auto_scaling_group", "i-noticed") not in client.calls


def discarded(actions: tuple[Action, ...]) -> set[str]:
    return {action.message.receipt for action in actions if isinstance(action, Discard)}


def test_a_registration_is_dropped_only_of_the_incarnation_that_was_seen(
    store: MemoryStore,
) -> None:
    acts = actor(Client(-1, ValueError()), store, leads(store))
    gone = Node("i-1", "first", "", "z", Fingerprint())
    store.client().put(KEYS.live("i-1"), encode(replace(gone, incarnation="second")))
    acts.perform([Forget(gone)])
    assert store.client().get(KEYS.live("i-1")) is not None
    acts.perform([Forget(replace(gone, incarnation="second"))])
    assert store.client().get(KEYS.live("i-1")) is None


def test_who_believes_to_lead_but_does_not_writes_nothing(store: MemoryStore) -> None:
    """As after a pause that outlasted its lease: another one leads by now."""
    old = leads(store, b"i-paused")
    store.client().revoke(lease_of(store))
    leads(store, b"i-other")
    node = Node("i-1", "first", "", "z", Fingerprint())
    store.client().put(KEYS.live("i-1"), encode(node))
    client = Client(-1, ValueError())
    acts = actor(client, store, old)
    with pytest.raises(LeaseLost):
        acts.perform(decide(everything(), NOW, Policy()).actions)
    with pytest.raises(LeaseLost):
        acts.perform([SetDesired("workers", 9, "as it was a minute ago")])
    assert client.calls == [], "nor does it call AWS"
    with pytest.raises(LeaseLost):
        acts.perform([Forget(node)])
    assert store.client().get(KEYS.drain("i-noticed")) is None
    assert store.client().get(KEYS.live("i-1")) is not None


def lease_of(store: MemoryStore) -> int:
    held = store.client().get(KEYS.leader)
    assert held is not None
    return held.lease


def test_a_job_goes_on_after_its_end_with_its_history_and_a_new_budget(store: MemoryStore) -> None:
    client = store.client()
    last = Round(
        7, "r7", "started", (Member("i-1", "n1", 0, "", "z", 1),), "loss", "i-2 was lost",
        parent="r6", resume=Resume("store", 120, epoch=3), charged=(1.0, 2.0, 3.0),
    )  # fmt: skip
    client.put(KEYS.round, encode(last))
    client.put(KEYS.job, encode(Job("failed", NOW - 60.0, "the script failed 4 times")))
    client.put(KEYS.ending, encode(Ending("stopped", NOW - 99.0, "stopped by command")))
    client.put(KEYS.settings, encode(Settings(1, 2, code="old")))
    acts = actor(Client(-1, TROUBLE["denied"]), store, leads(store))
    again = Revive(Job("pending", NOW, "restarted"), Settings(1, 4, code="new"))
    assert acts.perform([again]) == (again,)

    def read(key: str, kind: Any) -> Any:
        held = client.get(key)
        return None if held is None else decode(held.data, kind)

    assert read(KEYS.job, Job).state == "pending"
    assert read(KEYS.ending, Ending) is None
    assert read(KEYS.settings, Settings) == Settings(1, 4, code="new")
    over = read(KEYS.round, Round)
    assert (over.number, over.phase, over.members, over.charged) == (7, "over", (), ())
    record = read(KEYS.history(7), RoundRecord)
    assert (record.round, record.ended_at) == (last, NOW - 60.0)
    seen = ViewSeen(settings=Settings(1, 4), round=over, nodes={"i-9": NEWCOMER})
    (write,) = rounds.decide(seen, NOW + 60.0, lambda: "r8").actions
    assert isinstance(write, WriteRound)
    assert (write.round.number, write.round.parent, write.round.cause) == (8, "", "start")
    acts.perform([again])
    assert read(KEYS.job, Job).state == "pending", "a second time changes nothing"


NEWCOMER = LiveNode(Node("i-9", "n9", "", "z", Fingerprint()), 1, NOW)
