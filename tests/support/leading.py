"""What a leader deals with: its inbox, AWS, and time that passes as told."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from spotelastic.aws.messaging.eventbridge import SpotWarning
from spotelastic.clock import steady, unbroken
from spotelastic.controller.loop import leader_loop as terms
from spotelastic.controller.loop.leader_loop import LeaderLoop
from spotelastic.controller.model.observation import Discard, Message, Reply
from spotelastic.errors import Unavailable
from spotelastic.model.job import JobSpec, Settings
from spotelastic.model.node import Fingerprint, Node
from spotelastic.store.codec import encode
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


def lead(term: LeaderLoop, time: Time, seconds: float) -> None:
    over: Any = time
    time.end = time.now + seconds
    term.lead(over)


def turns(term: LeaderLoop, time: Time, seconds: float, *, busy: bool = True) -> None:
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
