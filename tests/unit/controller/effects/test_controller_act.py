"""What the controller does when AWS fails it, at each of its calls in turn."""

import io
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, get_args

import msgspec
import pytest
from botocore.exceptions import ClientError, ReadTimeoutError
from spotelastic_checkpoints.types import Resume
from support.aws.fake_services import cloud_over
from support.clusters.leading_controller import CONFIG
from support.store.memory_store import MemoryStore

from spotelastic.cloud.events import SpotWarning
from spotelastic.cloud.model import GroupMember, GroupNames, Instance, WorkerGroup, ZoneOffer
from spotelastic.controller.decisions import housekeeping
from spotelastic.controller.decisions.decide import decide
from spotelastic.controller.effects.executor import ControllerExecutor
from spotelastic.controller.loop.leader_state import LeaderState
from spotelastic.controller.model.observation import (
    Action,
    AskToEnd,
    ControllerPolicy,
    Discard,
    DrainNode,
    EndJobAtOnce,
    Forget,
    LaunchFailures,
    Message,
    Observation,
    PendingCommand,
    Remove,
    Reply,
    Resettle,
    Revive,
    SetDesired,
    SetSubnets,
    Tell,
)
from spotelastic.errors import LeaseLost, Unavailable
from spotelastic.model.job import Ending, Job, JobSpec, Settings
from spotelastic.model.node import Fingerprint, Node
from spotelastic.model.notice import Drain
from spotelastic.model.progress import Event
from spotelastic.model.requests.command import Command
from spotelastic.model.round import Member, Round, RoundRecord
from spotelastic.rendezvous import rounds
from spotelastic.rendezvous.decision import WriteRound
from spotelastic.rendezvous.view import LiveNode
from spotelastic.rendezvous.view import RunState as ViewSeen
from spotelastic.store.codec import decode, encode
from spotelastic.store.election import Leadership, campaign
from spotelastic.store.keys import Keys

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

    def __init__(self, fails: int = -1, trouble: Exception | None = None) -> None:
        self.calls: list[Call] = []
        self._fails, self._trouble = fails, trouble
        self._count = 0

    def get_queue_url(self, *, QueueName: str) -> dict[str, str]:
        """Never fails: a name is as good as a URL here."""
        return {"QueueUrl": QueueName}

    def __getattr__(self, name: str) -> Any:
        def call(**arguments: Any) -> dict[str, Any]:
            self._count += 1
            if self._count - 1 == self._fails and self._trouble is not None:
                raise self._trouble
            about = [str(arguments[key]) for key in sorted(arguments) if key != "StartTime"]
            self.calls.append((name, *about))
            if name == "get_object":
                return {"Body": io.BytesIO(msgspec.json.encode(SPEC)), "ETag": "v1"}
            return {}

        return call


Call = tuple[str, ...]
AnyAction = Action | housekeeping.Action
BY_ETCD_ALONE = {DrainNode, Forget, Tell, AskToEnd, EndJobAtOnce, Revive, Resettle}
AS_DOWN = {housekeeping.Teardown}
"""Its calls are those of `spotelastic down`, which are let fail where that is tested."""
POLICY = ControllerPolicy()


def everything() -> Observation:
    """A cluster in which all is to be done that AWS is asked for: by two messages, a command, a
    zone that is dry, and what is wrong with instances."""
    states = {"i-noticed": "InService", "i-silent": "InService", "i-drained": "Terminating:Wait"}
    machines = {
        name: Instance(name, "worker", "running", "t", "a", "", True, 0.0)
        for name in (*states, "i-stranger", "i-dear")
    }
    off = "Client.InstanceInitiatedShutdown"
    machines["i-off"] = replace(machines["i-noticed"], id="i-off", state="terminated", reason=off)
    return Observation(
        desired=4,
        since=0.0,
        job=Job("running", 100.0),
        wanted=SPEC.settings,
        group=WorkerGroup(
            "workers",
            3,
            tuple(GroupMember(name, state) for name, state in states.items()),
            ("net-a",),
            suspended=True,
        ),
        on_demand=WorkerGroup("on-demand", 1, (GroupMember("i-dear", "InService"),), ("net-a",)),
        zones=(ZoneOffer("a", ("net-a",)), ZoneOffer("b", ("net-b",))),
        failed={("on-demand", "a"): LaunchFailures(3, NOW - 1.0, "none left", "capacity")},
        machines=machines,
        nodes={"i-noticed": Node("i-noticed", "n1", "", "z", Fingerprint())},
        messages=(
            Message("r1", SpotWarning("e1", NOW - 1.0, "i-noticed"), NOW),
            Message("r2", SpotWarning("e2", NOW - 1.0, "i-of-somebody-else"), NOW),
        ),
        orders=(PendingCommand("r3", Command("c1", "scale", 1, 8), NOW),),
    )


def all_actions(seen: Observation) -> list[AnyAction]:
    joined = frozenset(seen.machines) - {"i-off"}
    standing = housekeeping.ClusterState(1, joined=joined)
    kept = housekeeping.upkeep(
        seen, standing, NOW, housekeeping.HousekeepingPolicy(boot_within=-1.0)
    ).actions
    return [*kept, *decide(seen, NOW, POLICY).actions]


def actor(
    client: Client,
    store: MemoryStore,
    leadership: Leadership,
    alive: Callable[[], bool] = lambda: True,
    etcd: MemoryStore | None = None,
) -> ControllerExecutor:
    services = dict.fromkeys(("autoscaling", "ec2", "sqs", "s3"), client)
    aws: Any = SimpleNamespace(**services)
    etcd = etcd or store.client()
    return ControllerExecutor(cloud_over(aws), etcd, leadership, SPEC.run, alive)


def recorded() -> list[tuple[Call, AnyAction]]:
    """Every call of AWS that those actions come to, with its action."""
    store, client = MemoryStore(lambda: NOW), Client()
    acts, found = actor(client, store, leads(store)), list[tuple[Call, AnyAction]]()
    for action in all_actions(everything()):
        if isinstance(action, Tell) and action.after:
            continue  # it goes with what it tells of
        assert acts.perform([action]) == (action,)
        found += [(call, action) for call in client.calls[len(found) :]]
    return found


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(lambda: NOW)


def leads(store: MemoryStore, name: bytes = b"i-control") -> Leadership:
    leadership = campaign(store.client(), KEYS.leader, name, store.client().grant(10.0))
    assert leadership is not None
    return leadership


CALLS = recorded()


def test_all_that_the_controller_asks_of_aws_is_among_the_calls_that_fail() -> None:
    kinds = {*get_args(Action), *get_args(housekeeping.Action)}
    assert {type(action) for _, action in CALLS} == kinds - BY_ETCD_ALONE - AS_DOWN


@pytest.mark.parametrize("trouble", TROUBLE)
@pytest.mark.parametrize("fails", range(len(CALLS)))
def test_a_call_that_fails_keeps_back_its_message_only_and_is_made_at_the_next_turn(
    store: MemoryStore, fails: int, trouble: str
) -> None:
    client, (_, failed) = Client(fails, TROUBLE[trouble]), CALLS[fails]
    acts, seen = actor(client, store, leads(store)), everything()
    done = acts.perform(all_actions(seen))
    own = [call for call, action in CALLS[fails:] if action == failed]
    kept = [call for call, action in CALLS if goes_after(action, failed)]
    assert client.calls == [call for call, _ in CALLS if call not in (*own, *kept)]

    gone = {receipt for action in done if (receipt := receipt_of(action))}
    messages = tuple(each for each in seen.messages if each.receipt not in gone)
    orders = tuple(each for each in seen.orders if each.receipt not in gone)
    acts.perform(all_actions(replace(seen, messages=messages, orders=orders)))
    assert set(client.calls) == {call for call, _ in CALLS}
    deleted = [call[-1] for call in client.calls if call[0] == "delete_message"]
    assert sorted(deleted) == ["r1", "r2", "r3"], "each once"
    held = store.client().get(KEYS.drain("i-noticed"))
    assert held is not None
    assert decode(held.data, Drain).notice.source == "sqs"


def test_a_warning_is_deleted_only_once_its_node_is_replaced(store: MemoryStore) -> None:
    """However often that fails: its drain is known from the first turn on."""
    leadership, deleted = leads(store), []
    place, (warning, _) = GroupMember("i-noticed", "InService"), everything().messages
    machine = everything().machines["i-noticed"]
    seen = Observation(
        desired=1,
        since=0.0,
        group=WorkerGroup("workers", 1, (place,)),
        machines={"i-noticed": machine},
        messages=(warning,),
    )
    for fails in (0, 0, -1):
        client = Client(fails, TROUBLE["throttled"])
        actor(client, store, leadership).perform(decide(seen, NOW, POLICY).actions)
        deleted.append([call[-1] for call in client.calls if call[0] == "delete_message"])
        held = store.client().get(KEYS.drain("i-noticed"))
        assert held is not None
        seen = replace(seen, drains={"i-noticed": decode(held.data, Drain)})
    assert deleted == [[], [], ["r1"]]


def test_a_message_whose_receipt_holds_no_more_is_not_deleted_for_ever(
    store: MemoryStore,
) -> None:
    """Each try would have AWS looked at again."""
    code = {"Code": "ReceiptHandleIsInvalid", "Message": "it has expired"}
    client = Client(0, ClientError({"Error": code}, "DeleteMessage"))
    discard = Discard(everything().messages[1], "foreign", cause="e2")
    assert actor(client, store, leads(store)).perform([discard]) == (discard,)


def test_a_message_counts_once_it_is_deleted(store: MemoryStore) -> None:
    acts = actor(Client(0, TROUBLE["throttled"]), store, leads(store))
    state = LeaderState.first(CONFIG, GroupNames("spot", "on-demand"), 0.0)
    for counted in ({}, {"foreign": 1}):
        done = acts.perform([Discard(everything().messages[1], "foreign", cause="e2")])
        state = state.performed(done)
        assert state.fates == counted


def test_what_was_not_done_is_not_told(store: MemoryStore) -> None:
    """Else an on-demand node is paid for until the next commit, or a zone counts as left."""
    gives, moves = Remove("i-dear", "spot is back"), SetSubnets("workers", ("net-b",), "a is dry")
    told = [Tell(Event(NOW, kind, ""), after=(of,)) for kind, of in (("gb", gives), ("z", moves))]
    leadership = leads(store)
    for fails, kinds in ((0, ["z"]), (1, ["gb", "z"]), (-1, ["gb", "gb", "z", "z"])):
        acts = actor(Client(fails, TROUBLE["throttled"]), store, leadership)
        acts.perform([gives, moves, *told])
        events = [decode(held.data, Event) for held in store.client().range(KEYS.event())[0]]
        assert sorted(event.kind for event in events) == kinds


@pytest.mark.parametrize(
    ("kind", "data", "kept"),
    [("ledger", {"id": "round 4"}, 1), ("loss", {"incarnation": "x"}, 1), ("zone", {}, 2)],
)
def test_what_happens_once_and_may_have_been_told_is_not_told_twice(
    store: MemoryStore,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    data: dict[str, object],
    kept: int,
) -> None:
    """As when etcd's leader dies between a write and its answer. What is known of a thing may have
    changed until it is told again; what happens repeatedly may be another one by then."""
    leadership, client = leads(store), store.client()
    commit = client.commit

    def unanswered(compares: Any, writes: Any) -> Any:
        commit(compares, writes)
        raise Unavailable("etcd gave no answer")

    acts = actor(Client(), store, leadership, etcd=client)
    first, second = (
        Event(NOW + later, kind, text, "i-1", data)
        for later, text in ((0.0, "at first"), (1.0, "then"))
    )
    monkeypatch.setattr(client, "commit", unanswered)
    assert acts.perform([Tell(first)]) == ()
    monkeypatch.setattr(client, "commit", commit)
    assert acts.perform([Tell(second)]) == (Tell(second),)
    events = [decode(held.data, Event) for held in client.range(KEYS.event())[0]]
    assert events == [first, second][-kept:]


def test_a_boot_whose_console_may_not_be_read_is_on_record_nevertheless(
    store: MemoryStore,
) -> None:
    machine = Instance("i-off", "worker", "terminated", "t", "z", "", True, 0.0)
    acts = actor(Client(0, TROUBLE["denied"]), store, leads(store))
    acts.perform((housekeeping.Examine(machine, "it has shut itself down", NOW),))
    [event] = [decode(e.data, Event) for e in store.client().range(KEYS.event())[0]]
    assert (event.kind, event.node) == (housekeeping.BOOT, "i-off")
    assert event.data["said"].startswith("controller: cannot read the console of i-off")


def goes_after(action: AnyAction, failed: AnyAction) -> bool:
    same = action.cause == failed.cause and action != failed
    return isinstance(action, Discard | Reply) and same


def receipt_of(action: AnyAction) -> str:
    """Of the message that it deletes."""
    match action:
        case Discard(message):
            return message.receipt
        case Reply(order):
            return order.receipt
    return ""


def test_a_registration_is_dropped_only_of_the_incarnation_that_was_seen(
    store: MemoryStore,
) -> None:
    acts = actor(Client(), store, leads(store))
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
    client = Client()
    acts = actor(client, store, old)
    with pytest.raises(LeaseLost):
        acts.perform(decide(everything(), NOW, ControllerPolicy()).actions)
    with pytest.raises(LeaseLost):
        acts.perform([SetDesired("workers", 9, "as it was a minute ago")])
    assert client.calls == [], "nor does it call AWS"
    with pytest.raises(LeaseLost):
        acts.perform([Forget(node)])
    assert store.client().get(KEYS.drain("i-noticed")) is None
    assert store.client().get(KEYS.live("i-1")) is not None


def test_a_batch_ends_where_the_lease_does(store: MemoryStore) -> None:
    """A call may take longer than the lease lives: the next is another controller's to make."""
    client = Client()
    acts = actor(client, store, leads(store), alive=lambda: len(client.calls) < 2)
    sizes = [SetDesired("workers", size, "") for size in (1, 2, 3)]
    with pytest.raises(LeaseLost):
        acts.perform(sizes)
    assert len(client.calls) == 2


def lease_of(store: MemoryStore) -> int:
    held = store.client().get(KEYS.leader)
    assert held is not None
    return held.lease


def test_a_job_goes_on_after_its_end_with_its_history_and_a_new_budget(store: MemoryStore) -> None:
    client = store.client()
    last = Round(
        7, "r7", "started", (Member("i-1", "n1", 0, "", "z", 1),), "loss", "i-2 was lost",
        parent="r6", resume=Resume("store", 120, epoch=3), charged=(1.0, 2.0, 3.0),
        run_id="run",
    )  # fmt: skip
    client.put(KEYS.round, encode(last))
    client.put(KEYS.job, encode(Job("failed", NOW - 60.0, "the script failed 4 times")))
    client.put(KEYS.ending, encode(Ending("stopped", NOW - 99.0, "stopped by command")))
    client.put(KEYS.settings, encode(Settings(1, 2, code="old")))
    acts = actor(Client(), store, leads(store))
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
    assert write.round.run_id == "run"
    acts.perform([again])
    assert read(KEYS.job, Job).state == "pending", "a second time changes nothing"


NEWCOMER = LiveNode(Node("i-9", "n9", "", "z", Fingerprint()), 1, NOW)
