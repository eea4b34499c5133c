"""The status that people see, from what a controller has observed."""

from dataclasses import replace
from typing import Any

from spotelastic_checkpoints.types import Schedule
from support.clusters.leading_controller import CONFIG
from support.store.memory_store import MemoryStore

from spotelastic.cloud.model import GroupNames, Instance, InstanceState, Role
from spotelastic.controller.accounting.status import Account, run_total, status, step_time
from spotelastic.controller.etcd.etcd_mirror import Mirror
from spotelastic.controller.loop.leader_state import LeaderState
from spotelastic.controller.model.observation import (
    REPLACED,
    DepartedNode,
    Records,
    SlowReplacement,
)
from spotelastic.model.gpu import GpuFault
from spotelastic.model.interruption_kind import InterruptionKind
from spotelastic.model.job import Failure, Job
from spotelastic.model.node import Fingerprint, Node
from spotelastic.model.notice import Drain, Notice
from spotelastic.model.progress import Event, NodeStatus, Point, Progress, SlowNode, Upload
from spotelastic.model.protocol import PROTOCOL, ProtocolVersion
from spotelastic.model.round import Member, Partner, Round
from spotelastic.store.codec import encode
from spotelastic.store.keys import Keys

KEYS = Keys("demo")


def machine(
    id: str, role: Role = "worker", state: InstanceState = "running", **more: Any
) -> Instance:
    made = Instance(id, role, state, "g5.xlarge", "us-east-1a", "127.80.0.9", True, 100.0)
    return replace(made, **more)


def node(id: str, incarnation: str = "1") -> Node:
    return Node(id, incarnation, "127.80.0.9", "us-east-1a", Fingerprint())


# -- the status ----------------------------------------------------------------------------------

MEMBERS = tuple(
    Member(id, "1", slot, "127.80.0.9", "us-east-1a", 2) for slot, id in enumerate(("a", "b"))
)
ROUND = Round(3, "r", "started", MEMBERS, "arrival", "b joined", started_at=20.0)
RECORDS = Records(
    job=Job("running", 10.0),
    round=ROUND,
    leader="k1",
    controllers=frozenset({"k1", "k2"}),
    nodes={id: node(id) for id in ("a", "b", "c")},
    left={"d": DepartedNode("1", 30.0)},
    drains={
        "b": Drain("b", Notice(InterruptionKind.SPOT_INTERRUPTION, "b", "imds", 1.0, 2.0, 62.0))
    },
    progress={"a": Progress("a", 3, 41, 40.0, committed=30), "x": Progress("x", 2, 99, 15.0)},
    points=tuple(Point(step, 2.5, 20.0 + step / 2) for step in range(38, 42)),
)
MACHINES = {
    each.id: each
    for each in (
        machine("a"),
        machine("b"),
        machine("c"),
        machine("d"),
        machine("e"),
        machine("f", state="pending"),
        machine("g", state="terminated"),
        machine("k1", role="control", member="a"),
        machine("k2", role="control", member="b"),
        machine("k3", role="control", member="c"),
        machine("k0", role="control", member="b", state="terminated"),
    )
}


def test_a_node_that_comes_back_with_other_code_is_not_gone() -> None:
    told = frozenset({("restart", "d", "::1")})
    states = {
        row.id: row.state
        for row in status("demo", Account(replace(RECORDS, told=told), MACHINES), "b", 50.0).nodes
    }
    assert states["d"] == "restarting"
    again = replace(RECORDS, told=told, left={"d": DepartedNode("2", 40.0)})
    states = {
        row.id: row.state for row in status("demo", Account(again, MACHINES), "b", 50.0).nodes
    }
    assert states["d"] == "gone"


def test_the_status_shows_every_node_with_its_part() -> None:
    made = status("demo", Account(RECORDS, MACHINES), "b", 50.0)
    assert {(row.id, row.state, row.ranks) for row in made.nodes} == {
        ("a", "training", (0, 1)),
        ("b", "draining", (2, 3)),
        ("c", "waiting", ()),
        ("d", "gone", ()),
        ("e", "joining", ()),
        ("f", "pending", ()),
        ("k1", "leading", ()),
        ("k2", "standing by", ()),
        ("k3", "joining", ()),
    }
    assert {row.id: row.leaves_at for row in made.nodes if row.leaves_at} == {"b": 62.0}
    assert {row.type for row in made.nodes} == {"g5.xlarge"}
    assert (made.leader, made.etcd_leader) == ("k1", "k2")
    assert (made.state, made.round, made.step, made.world_size) == ("running", 3, 41, 4)
    assert (made.committed, made.loss, made.step_time) == (30, 2.5, 0.5)


def test_a_node_that_trains_on_shows_when_it_may_go_and_one_that_is_gone_does_not() -> None:
    told = {
        id: Notice(InterruptionKind.RETIREMENT, id, "imds", 1.0, 2.0, deadline=900.0)
        for id in ("a", "d")
    }
    made = status("demo", Account(replace(RECORDS, scheduled=told, drains={}), MACHINES), "b", 50.0)
    assert {row.id: row.leaves_at for row in made.nodes if row.leaves_at} == {"a": 900.0}


def test_a_failed_job_shows_the_first_failing_rank_and_its_traceback() -> None:
    failure = Failure("f", "a", "r", 1, 1, 40.0, 1, "ValueError: no", "Traceback ...\nValueError")
    failed = replace(RECORDS, job=Job("failed", 41.0, "", 40, failure))
    made = status("demo", Account(failed, MACHINES), "", 50.0)
    assert made.state == "failed"
    assert made.step == 40
    assert "rank 1 on a" in made.reason
    assert "ValueError" in made.reason


def test_silence_is_shown_until_the_job_has_ended() -> None:
    line = "no step for 961 s: rank 0 at train.py:27"
    silent = replace(RECORDS, progress={"a": Progress("a", 3, 41, 40.0, quiet=line)})
    assert status("demo", Account(silent, MACHINES), "", 50.0).quiet == line
    stopped = replace(silent, job=Job("stopped", 41.0, "told to stop", 41))
    assert status("demo", Account(stopped, MACHINES), "", 50.0).quiet == ""


def test_before_the_first_round_the_job_is_pending() -> None:
    made = status("demo", Account(Records(), {"e": MACHINES["e"]}), "", 5.0)
    assert (made.state, made.step, made.loss) == ("pending", 0, None)
    assert made.nodes == (
        NodeStatus("e", "worker", "joining", "us-east-1a", "127.80.0.9", (), "g5.xlarge"),
    )


def test_the_time_of_a_step_leaves_out_pauses_and_repeats() -> None:
    steps = [(1, 0.0), (2, 0.1), (3, 0.2), (3, 9.0), (4, 9.1), (5, 20.0)]
    assert step_time([Point(step, None, at) for step, at in steps]) == 0.1
    assert step_time([]) == 0.0


def test_the_status_tells_how_far_all_nodes_are_with_the_newest_checkpoint() -> None:
    def told(step: int, done: int, committed: int = 0) -> Progress:
        return Progress("", 1, 90, 5.0, committed=committed, upload=Upload(step, done, 100, 10.0))

    node = Node("", "i", "10.0.0.1", "z", Fingerprint())
    records = Records(
        nodes=dict.fromkeys("abcd", node),
        progress={
            "a": told(80, 30),
            "b": told(80, 50),
            "c": told(40, 99),  # late with an older one
            "d": Progress("", 1, 90, 5.0),  # done with its part
            "gone": told(80, 10),
        },
    )
    assert status("demo", Account(records, {}), "", 5.0).upload == Upload(80, 80, 200, 20.0)
    committed = dict(records.progress, d=Progress("", 1, 90, 5.0, committed=80))
    assert status("demo", Account(replace(records, progress=committed), {}), "", 5.0).upload is None


def test_the_status_tells_of_which_step_each_node_has_its_partners_shards() -> None:
    pairs = (Partner("a", "b", "b:1"), Partner("b", "a", "a:1"))
    round_ = replace(ROUND, partners=pairs)

    def replica(**of: Progress) -> int:
        return status("demo", Account(Records(round=round_, progress=of), {}), "", 5.0).replica

    def told(step: int, round: int = round_.number) -> Progress:
        return Progress("", round, 90, 5.0, replica=step)

    assert replica(a=told(80), b=told(90)) == 80
    assert replica(a=told(80)) == 0
    assert replica(a=told(80), b=told(90, round_.number - 1)) == 0, "of the round before"
    assert status("demo", Account(Records(round=ROUND), {}), "", 5.0).replica == 0


def test_status_warns_of_replicas_that_take_longer_than_snapshots_are_apart() -> None:
    def warnings(seconds: float, round_: Round) -> tuple[str, ...]:
        told = {"a": replace(RECORDS.progress["a"], replica_time=seconds)}
        return status(
            "demo", Account(replace(RECORDS, round=round_, progress=told), {}), "", 5.0
        ).warnings

    pairs = (Partner("a", "b", "b:1"), Partner("b", "a", "a:1"))
    # Ten steps of half a second each.
    round_ = replace(ROUND, partners=pairs, schedule=Schedule(10, 100))
    assert warnings(4.9, round_) == ()
    assert warnings(9.0, replace(round_, partners=())) == ()
    (told,) = warnings(6.0, round_)
    assert told.startswith("a replica takes 6.0 s, and snapshots come every 5.0 s")


def test_status_warns_of_what_cannot_be_read_and_of_unlike_versions() -> None:
    store = MemoryStore(lambda: 0.0)
    mirror = Mirror(KEYS, lambda: None)
    watch = store.watch(KEYS.root, mirror)
    later = ProtocolVersion(PROTOCOL.major, PROTOCOL.minor + 1)
    for name, protocol in (("a", PROTOCOL), ("b", later)):
        store.put(KEYS.live(name), encode(Node(name, "i", "", "z", Fingerprint(protocol=protocol))))
    store.put(KEYS.round, b'{"number":"first"}')
    store.put(KEYS.event("1"), encode(Event(1.0, "version", "a does not know it", "a")))
    store.put(KEYS.event("2"), encode(Event(1.0, "version", "c does not know it", "c")))
    made = status("demo", Account(mirror.records(), {}), "", 5.0)
    unread, mixed, said = made.warnings
    assert "cannot read all/round in etcd" in unread and "number" in unread
    assert f"{PROTOCOL} (the controller, a), {later} (b)" in mixed
    assert said == "a does not know it", "c is gone"
    store.put(KEYS.round, encode(Round(1, "i", "started", (), "start", "")))
    store.delete(KEYS.live("b"))
    store.delete(KEYS.event("1"))
    assert status("demo", Account(mirror.records(), {}), "", 5.0).warnings == ()
    watch.close()
    store.close()


# -- slow nodes -----------------------------------------------------------------------------------


def test_the_status_names_slow_nodes_as_long_as_they_are_there() -> None:
    slow = {id: SlowNode(id, "1", 30.0, factor, 0.6) for id, factor in (("a", 1.5), ("b", 2.0))}
    gone = SlowNode("x", "1", 30.0, 3.0, 0.3)
    seen = replace(RECORDS, slow={**slow, "x": gone})
    assert [each.node for each in status("demo", Account(seen, MACHINES), "a", 50.0).slow] == [
        "b",
        "a",
    ]


def test_a_controller_remembers_who_is_slow_and_who_was_replaced_for_it() -> None:
    store = MemoryStore(lambda: 0.0)
    mirror = Mirror(KEYS, lambda: None)
    slow = SlowNode("a", "1", 30.0, 1.5, 0.7)
    data = {"slot": 2, "incarnation": "1"}
    store.put(KEYS.slow("a"), encode(slow))
    store.put(KEYS.event("1"), encode(Event(40.0, REPLACED, "", "a", data)))
    store.watch(KEYS.root, mirror)
    assert mirror.records().slow == {"a": slow}
    assert mirror.records().slow_replaced == (SlowReplacement("a", "1", 40.0, 2),)
    store.delete(KEYS.slow("a"))
    assert mirror.records().slow == {}


FAULT = GpuFault("Xid 79, the GPU has fallen off the bus", "kernel", "xid 79", "0000:1b:00", 79)


def test_a_sick_node_is_shown_with_what_was_seen_for_an_hour() -> None:
    drain = Drain("b", Notice(InterruptionKind.UNHEALTHY, "b", "health", 1.0, 2.0))
    told = FAULT.event("b", 40.0, joined=True)
    xid = Event(41.0, "gpu", "a: GPU 0000:1c:00: Xid 31, the program has used a wrong address", "a")
    elsewhere = Event(41.0, "gpu", "d: GPU 0000:1c:00: Xid 31", "d")
    ill = replace(RECORDS, drains={"b": drain}, events=(told, told, xid, elsewhere))
    shown = status("demo", Account(ill, MACHINES), "a", 50.0)
    assert {each.id: each.state for each in shown.nodes}["b"] == "sick"
    assert shown.warnings == (told.message, xid.message)
    assert status("demo", Account(ill, MACHINES), "a", 4000.0).warnings == (xid.message,)


def test_the_status_says_which_network_nodes_have() -> None:
    def efa(node: str, devices: int, plugin: bool) -> Event:
        data = {"devices": devices, "plugin": plugin}
        return Event(20.0, "efa", f"{node} has {devices} EFA devices", node, data)

    def network(*events: Event) -> str:
        return status("demo", Account(replace(RECORDS, events=events), MACHINES), "a", 50.0).network

    assert network() == ""
    alike = [efa(node, 4, plugin=True) for node in ("a", "b", "c", "gone")]
    assert network(*alike) == "EFA: 4 devices, plugin yes"
    assert network(*alike[:2], efa("c", 1, plugin=False)) == (
        "EFA: 4 devices, plugin yes (a, b); EFA: 1 device, plugin no (c)"
    )
    lacking = status(
        "demo", Account(replace(RECORDS, events=(efa("a", 4, plugin=False),)), MACHINES), "a", 50.0
    )
    assert lacking.network == "EFA: 4 devices, plugin no (a)"
    assert lacking.warnings == ("a has 4 EFA devices",)


def test_what_is_announced_and_what_somebody_has_suspended_is_shown() -> None:
    kind = InterruptionKind.MAINTENANCE
    reboot = Notice(kind, "a", "imds", 1.0, 2.0, 1_000_000.0, "system-reboot", "event-1")
    nodes = {"a": reboot, "b": replace(reboot, node="b"), "x": replace(reboot, node="x")}
    records, held = replace(RECORDS, scheduled=nodes), ("it is suspended",)
    shown = status("demo", Account(records, MACHINES, held=held), "a", 41.0)
    assert shown.warnings == (
        "it is suspended",
        "a will be rebooted, or cut off for a while at 1970-01-12 13:46 UTC (system-reboot)",
    ), "not of a node that leaves already, nor of one that is gone"


def test_a_script_without_a_checkpointer_is_told_of_where_its_steps_would_be() -> None:
    plain = replace(RECORDS, round=replace(ROUND, plain=2), progress={}, points=())
    (said,) = status("demo", Account(plain, {}), "", 5.0).warnings
    assert said.startswith("the script has entered no Checkpointer: its steps are not known")


def test_the_total_of_steps_stays_while_a_round_changes() -> None:
    first = Progress("a", 2, 41, 40.0, step_time=0.5, total=100)
    records = replace(RECORDS, progress={"a": first})
    assert run_total(records, 0) == 100
    for told in ({}, {"a": replace(first, round=3, total=0, step_time=0.0)}):
        begun = replace(records, progress=told)
        assert run_total(begun, 100) == 100, "no node has made a step of the new round"
        assert status("demo", Account(begun, MACHINES, total=100), "a", 50.0).total == 100
        again = replace(begun, events=(Event(45.0, "restart", "restarted", "a"),))
        assert run_total(again, 100) == 0, "its arguments may be others"
    assert run_total(replace(records, progress={"a": replace(first, total=60)}), 100) == 60
    silent = replace(records, progress={"a": replace(first, total=0)})
    assert run_total(silent, 100) == 0, "another script says no total"


def test_a_leader_remembers_the_total_while_the_only_node_is_replaced() -> None:
    told = replace(RECORDS, progress={"a": Progress("a", 3, 41, 40.0, step_time=0.5, total=100)})
    leader = LeaderState.first(CONFIG, GroupNames("spot", "on-demand"), 1.0).counted(told, 41.0)
    alone = replace(RECORDS, nodes={}, progress={})
    leader = leader.counted(alone, 45.0)
    assert status("demo", leader.account(alone, 45.0), "a", 45.0).total == 100
    assert leader.notification_facts(alone, 45.0).total == 100


def test_files_that_go_with_their_node_are_told_until_a_restart() -> None:
    said = Event(40.0, "files", "model.pt is on this node alone: write elsewhere", "a")
    restarted = Event(45.0, "restart", "restarted", "a")
    for state in ("running", "succeeded"):
        records = replace(RECORDS, job=Job(state, 42.0), events=(said,))
        (line,) = status("demo", Account(records, MACHINES), "", 50.0).warnings
        assert line == f"a: {said.message}"
        (line,) = status("demo", Account(replace(records, nodes={}), MACHINES), "", 50.0).warnings
        assert line == "model.pt is lost with a: write elsewhere"
    again = replace(records, events=(said, restarted))
    assert status("demo", Account(again, MACHINES), "", 50.0).warnings == ()
