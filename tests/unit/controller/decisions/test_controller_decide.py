"""The controller's decisions, from hand-made observations."""

from dataclasses import replace

import pytest
from support.clusters.observations import (
    GROUP,
    NOW,
    POLICY,
    drain,
    group,
    healthy,
    in_service,
    machine,
    message,
    node,
    only,
)

from spotelastic.aws.messaging.launch_failures import read as read_failure
from spotelastic.cloud.events import (
    GroupActivity,
    LifecycleAction,
    Malformed,
    Rebalance,
    SpotWarning,
    StateChange,
    Unknown,
)
from spotelastic.cloud.model import GroupMember, InstanceState, LaunchQuotas
from spotelastic.controller.decisions.decide import decide
from spotelastic.controller.etcd.etcd_mirror import Mirror
from spotelastic.controller.model.observation import (
    Action,
    CompleteDrain,
    DepartedNode,
    Discard,
    DrainNode,
    EndMachine,
    LaunchFailures,
    Message,
    Observation,
    Replace,
    SetDesired,
    Tell,
    account,
)
from spotelastic.model.interruption_kind import InterruptionKind
from spotelastic.model.job import Job
from spotelastic.model.notice import Drain, Notice
from spotelastic.model.progress import Event
from spotelastic.store.codec import encode
from spotelastic.store.keys import Keys
from spotelastic.store.port import Reset, StoredValue


def test_nothing_is_done_when_all_is_well() -> None:
    decision = decide(healthy("a", "b"), NOW, POLICY)
    assert decision.actions == ()
    assert decision.wake_at is None
    assert decision.reason == "job running, 2 of 2 worker nodes, 0 leaving"


# -- notices -------------------------------------------------------------------------------------


def test_a_warning_from_the_queue_drains_and_replaces_at_once_and_is_deleted_last() -> None:
    warning = message(SpotWarning("e1", 999.0, "a"))
    decision = decide(replace(healthy("a", "b"), messages=(warning,)), NOW, POLICY)
    written, replaced, told, discarded = decision.actions
    assert written == DrainNode(
        Drain("a", Notice(InterruptionKind.SPOT_INTERRUPTION, "a", "sqs", 999.0, 999.75, 1119.0)),
        cause="e1",
    )
    assert isinstance(told, Tell)
    assert told.event.data["at"] == 999.0
    assert told.event.data["seen_at"] == 999.75
    assert replaced == Replace("a", "it has a notice", cause="e1")
    assert discarded == Discard(warning, "handled", cause="e1")


def test_a_notice_that_the_agent_saw_first_replaces_without_any_message() -> None:
    seen = replace(healthy("a", "b"), drains={"a": drain("a")})
    assert decide(seen, NOW, POLICY).actions == (Replace("a", "it has a notice"),)


def test_the_second_account_of_a_notice_is_recorded_but_drains_no_second_time() -> None:
    seen = replace(
        healthy("a", "b"),
        drains={"a": drain("a")},
        group=group(GroupMember("a", "Terminating:Wait"), *in_service("b")),
        messages=(message(SpotWarning("e1", 999.0, "a")),),
    )
    decision = decide(seen, NOW, POLICY)
    assert [type(action) for action in decision.actions] == [Tell, Discard]


def test_the_same_event_twice_is_acted_on_once() -> None:
    warning = SpotWarning("e1", 999.0, "a")
    seen = replace(healthy("a", "b"), messages=(message(warning, "r1"), message(warning, "r2")))
    decision = decide(seen, NOW, POLICY)
    assert len(only(decision, DrainNode)) == len(only(decision, Replace)) == 1
    fates = [action.fate for action in decision.actions if isinstance(action, Discard)]
    assert fates == ["handled", "duplicate"]


def test_an_event_that_was_handled_before_is_a_duplicate() -> None:
    seen = replace(
        healthy("a", "b"),
        messages=(message(SpotWarning("e1", 999.0, "a")),),
        handled=frozenset({"e1"}),
    )
    assert [type(action) for action in decide(seen, NOW, POLICY).actions] == [Discard]


def test_a_rebalance_recommendation_is_told_and_moves_nobody() -> None:
    seen = replace(healthy("a", "b"), messages=(message(Rebalance("e1", 999.0, "a")),))
    decision = decide(seen, NOW, POLICY)
    assert [type(action) for action in decision.actions] == [Tell, Discard]


@pytest.mark.parametrize(
    ("event", "fate"),
    [
        (SpotWarning("e", 1.0, "i-other"), "foreign"),
        (StateChange("e", 1.0, "i-other", "terminated"), "foreign"),
        (LifecycleAction("e", 1.0, "i-other", "their-group", "TERMINATING", "hook"), "foreign"),
        (Unknown("e", 1.0, "EC2 Fleet Error"), "unknown"),
        (Malformed("no JSON"), "malformed"),
        (StateChange("e", 1.0, "a", "running"), "handled"),
        (LifecycleAction("e", 1.0, "x", GROUP, "TERMINATING", "hook"), "handled"),
    ],
)
def test_what_does_not_concern_us_is_counted_and_deleted(event: object, fate: str) -> None:
    incoming = message(event)
    decision = decide(replace(healthy("a", "b"), messages=(incoming,)), NOW, POLICY)
    assert [action for action in decision.actions if not isinstance(action, Discard)] == []
    assert [a.fate for a in decision.actions if isinstance(a, Discard)] == [fate]


def test_a_launch_that_fails_is_told_with_its_reason() -> None:
    failed = GroupActivity("e1", 999.0, "", GROUP, "launch", False, "InsufficientInstanceCapacity")
    decision = decide(replace(healthy("a"), messages=(message(failed),)), NOW, POLICY)
    (told,) = only(decision, Tell)
    assert isinstance(told, Tell)
    assert "InsufficientInstanceCapacity" in told.event.message


@pytest.mark.parametrize("launched_at", [940.0, NOW + 3.0, 0.0])
def test_a_launch_is_told_as_of_when_the_cloud_has_launched_it(launched_at: float) -> None:
    """The first leader looks when nodes have told of their boots. A cloud's clock may be ahead."""
    seen = healthy("a")
    came = replace(seen.machines["a"], launched_at=launched_at)
    activity = GroupActivity("e1", 999.0, "a", GROUP, "launch", True)
    seen = replace(seen, machines={"a": came}, messages=(message(activity),))
    (told,) = only(decide(seen, NOW, POLICY), Tell)
    assert isinstance(told, Tell)
    assert told.event.at == (launched_at if launched_at == 940.0 else NOW)


@pytest.mark.parametrize("succeeded", [True, False])
def test_an_activity_of_a_group_is_told_once_however_often_it_is_delivered(succeeded: bool) -> None:
    def delivered(id: str, seen: Observation) -> list[Action]:
        activity = GroupActivity(id, 999.0, "", GROUP, "launch", succeeded, "no capacity")
        return only(decide(replace(seen, messages=(message(activity),)), NOW, POLICY), Tell)

    (told,) = delivered("e1", healthy("a"))
    assert isinstance(told, Tell)
    later = replace(healthy("a"), told=frozenset({account(told.event)}))
    assert delivered("e1", later) == []
    assert len(delivered("e2", later)) == 1


def lost(id: str, group: str, why: str = "InsufficientInstanceCapacity") -> Message:
    return message(
        GroupActivity(
            id, 999.0, "", group, "launch", False, why, "eu-x-1a", read_failure(why).cause
        )
    )


CONTROL = GROUP.replace("workers", "control-a")


def fates(seen: Observation) -> list[str]:
    found = only(decide(seen, NOW, POLICY), Discard)
    return [each.fate for each in found if isinstance(each, Discard)]


def test_a_control_node_that_cannot_be_launched_is_told_once_a_burst() -> None:
    seen = replace(healthy("a"), messages=(lost("e1", CONTROL), lost("e2", CONTROL)))
    assert fates(seen) == ["handled", "handled"]
    (told,) = only(decide(seen, NOW, POLICY), Tell)
    assert isinstance(told, Tell)
    assert told.event.message == (
        f"no control node could be launched for {CONTROL} in eu-x-1a: there is no capacity: "
        "InsufficientInstanceCapacity"
    )
    assert (told.event.data["group"], told.event.data["zone"]) == (CONTROL, "eu-x-1a")

    def again(after: float) -> list[Action]:
        failed = {(CONTROL, "eu-x-1a"): LaunchFailures(1, NOW - after)}
        later = replace(healthy("a"), failed=failed, messages=(lost("e3", CONTROL),))
        return only(decide(later, NOW, POLICY), Tell)

    assert again(600.0) == []
    assert len(again(3600.0)) == 1


def test_a_control_node_that_cannot_be_launched_holds_up_no_worker() -> None:
    short, keys = replace(healthy("a"), desired=3), Keys("run")
    mirror = Mirror(keys, lambda: None)
    told = []
    for number in range(5):
        seen = replace(short, messages=(lost(f"e{number}", CONTROL),))
        told += [
            each.event for each in only(decide(seen, NOW, POLICY), Tell) if isinstance(each, Tell)
        ]
    values = [StoredValue(keys.event(str(n)), encode(event), 1, 1) for n, event in enumerate(told)]
    mirror([Reset(tuple(values), 1)])
    failed = mirror.records().failed
    assert [each.count for each in failed.values()] == [5]
    (sized,) = only(decide(replace(short, failed=failed), NOW, POLICY), SetDesired)
    assert sized == SetDesired(GROUP, 3, "the job is running")


@pytest.mark.parametrize(
    "group", [GROUP.replace("workers", "2-control-a"), GROUP.replace("workers", "control-z")]
)
def test_launches_of_another_cluster_are_none_of_this_one(group: str) -> None:
    """Whose name begins with this one's: the bus brings them."""
    seen = replace(healthy("a"), messages=(lost("e1", group),))
    assert fates(seen) == ["foreign"]
    assert only(decide(seen, NOW, POLICY), Tell) == []


def test_a_quota_that_holds_up_a_control_node_is_that_of_its_type() -> None:
    seen = replace(healthy("a"), quotas=LaunchQuotas(spot="G", control="Standard on-demand"))
    seen = replace(seen, messages=(lost("e1", CONTROL, "VcpuLimitExceeded"),))
    (told,) = only(decide(seen, NOW, POLICY), Tell)
    assert isinstance(told, Tell)
    assert "the quota Standard on-demand does not allow it" in told.event.message


# -- losses --------------------------------------------------------------------------------------


def test_a_node_that_ec2_says_is_gone_is_a_loss_told_once() -> None:
    seen = replace(
        healthy("a", "b"),
        machines={"a": machine("a", "shutting-down"), "b": machine("b")},
        messages=(message(StateChange("e1", 999.5, "a", "shutting-down")),),
    )
    (told,) = only(decide(seen, NOW, POLICY), Tell)
    assert isinstance(told, Tell)
    assert (told.event.kind, told.event.node, told.event.data["at"]) == ("loss", "a", 999.5)
    assert told.event.data["source"] == "cloud"
    later = replace(
        seen,
        nodes={"b": node("b")},
        left={"a": DepartedNode("a-1", 999.9)},
        messages=(),
        told=frozenset({account(told.event)}),
    )
    assert only(decide(later, NOW + 2, POLICY), Tell) == []


def test_a_lease_that_runs_out_is_a_loss_and_a_second_one_is_another() -> None:
    seen = replace(
        healthy("a", "b"), nodes={"b": node("b")}, left={"a": DepartedNode("a-1", 999.0)}
    )
    (first,) = only(decide(seen, NOW, POLICY), Tell)
    assert isinstance(first, Tell)
    assert first.event.data["source"] == "lease"
    again = replace(
        seen, told=frozenset({account(first.event)}), left={"a": DepartedNode("a-2", 1500.0)}
    )
    (second,) = only(decide(again, 1501.0, POLICY), Tell)
    assert isinstance(second, Tell)
    assert second.event.data["at"] == 1500.0


def test_a_node_that_came_back_under_a_new_lease_is_lost_again_and_once_for_each_lease() -> None:
    """As an agent does that was frozen: its incarnation is the same. A controller that begins to
    lead may find it back already."""
    told: list[Event] = []
    for joined in (5, 5, 9):
        gone = {"a": DepartedNode("a-1", 990.0 + joined, joined)}
        for nodes, left in ((("b",), gone), (("a", "b"), {})):
            seen = replace(
                healthy("a", "b"),
                nodes={name: node(name) for name in nodes},
                left=left,
                lost=gone,
                joined={"a": joined + 1} if "a" in nodes else {},
                told=frozenset(map(account, told)),
            )
            told += [
                each.event for each in decide(seen, NOW, POLICY).actions if isinstance(each, Tell)
            ]
    assert [(event.kind, event.data["at"]) for event in told] == [("loss", 995.0), ("loss", 999.0)]


def test_a_lease_that_runs_out_before_ec2_speaks_is_told_once_too() -> None:
    away = replace(
        healthy("a", "b"), nodes={"b": node("b")}, left={"a": DepartedNode("a-1", 999.0)}
    )
    word = message(StateChange("e1", 999.5, "a", "terminated"))
    (told,) = only(decide(away, NOW, POLICY), Tell)
    assert isinstance(told, Tell)
    later = replace(away, messages=(word,), told=frozenset({account(told.event)}))
    assert only(decide(later, NOW + 2, POLICY), Tell) == []
    (both,) = only(decide(replace(away, messages=(word,)), NOW, POLICY), Tell)
    assert isinstance(both, Tell)
    assert both.event.data["source"] == "cloud", "of two at once"


def test_a_node_that_left_with_a_notice_or_after_the_end_is_no_loss() -> None:
    gone = replace(
        healthy("a", "b"), nodes={"b": node("b")}, left={"a": DepartedNode("a-1", 999.0)}
    )
    drained = replace(gone, drains={"a": drain("a")})
    ended = replace(gone, job=Job("succeeded", 998.0))
    assert only(decide(drained, NOW, POLICY), Tell) == []
    assert only(decide(ended, NOW, POLICY), Tell) == []


def test_a_machine_whose_node_stays_silent_is_replaced_when_its_time_is_up() -> None:
    seen = replace(
        healthy("a", "b"),
        nodes={"b": node("b")},
        left={"a": DepartedNode("a-1", 990.0)},
        since=500.0,
    )
    early = decide(seen, NOW, POLICY)
    assert only(early, Replace) == []
    assert early.wake_at == 990.0 + POLICY.silent_for
    (replaced,) = only(decide(seen, early.wake_at, POLICY), Replace)
    assert isinstance(replaced, Replace)
    assert replaced.instance == "a"


def test_a_new_leader_gives_silent_nodes_their_time_again() -> None:
    seen = replace(healthy("a"), nodes={}, machines={"a": machine("a", at=0.0)}, since=NOW)
    decision = decide(seen, NOW, POLICY)
    assert decision.actions == ()
    assert decision.wake_at == NOW + POLICY.boot_within


def test_a_node_that_tells_that_it_prepares_is_waited_for_longer() -> None:
    """Its environment may take an hour to build."""
    late = NOW + POLICY.boot_within
    seen = replace(healthy("a"), nodes={}, machines={"a": machine("a", at=NOW)}, since=0.0)
    assert only(decide(seen, late, POLICY), Replace)
    told = replace(seen, preparing={"a": late - 1.0})
    decision = decide(told, late, POLICY)
    assert only(decision, Replace) == []
    assert decision.wake_at == late - 1.0 + POLICY.boot_within
    assert only(decide(told, decision.wake_at, POLICY), Replace)

    again = replace(told, left={"a": DepartedNode("a-1", late - 2.0)})
    assert decide(again, late, POLICY).wake_at == decision.wake_at, "for what it has from then on"
    before = replace(told, left={"a": DepartedNode("a-1", late)})
    assert decide(before, late, POLICY).wake_at == late + POLICY.silent_for


# -- hooks and strangers -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("registered", "state", "completed"),
    [(True, "running", False), (False, "running", True), (True, "terminated", True)],
)
def test_a_drain_is_complete_when_the_agent_is_done_or_the_machine_gone(
    registered: bool, state: InstanceState, completed: bool
) -> None:
    seen = replace(
        healthy("a", "b"),
        group=group(GroupMember("a", "Terminating:Wait"), *in_service("b")),
        machines={"a": machine("a", state), "b": machine("b")},
        nodes={id: node(id) for id in (("a", "b") if registered else ("b",))},
        drains={"a": drain("a")},
    )
    assert (CompleteDrain("a", GROUP) in decide(seen, NOW, POLICY).actions) == completed


def test_a_machine_that_ec2_calls_gone_does_not_wait_for_its_group_to_notice() -> None:
    """Auto Scaling looks after the health of instances once in a while."""
    seen = replace(healthy("a", "b"), machines={"a": machine("a", "terminated"), "b": machine("b")})
    assert only(decide(seen, NOW, POLICY), Replace) == [
        Replace("a", "the cloud says that it is terminated")
    ]
    leaves = replace(seen, group=group(GroupMember("a", "Terminating"), *in_service("b")))
    assert only(decide(leaves, NOW, POLICY), Replace) == []


def test_a_node_that_aws_has_not_taken_at_the_end_of_its_notice_is_ended() -> None:
    seen = replace(
        healthy("a", "b"),
        group=group(GroupMember("a", "Terminating:Wait"), *in_service("b")),
        drains={"a": drain("a", deadline=NOW - 1.0)},
    )
    decision = decide(seen, NOW, POLICY)
    assert only(decision, CompleteDrain) == []
    assert decision.wake_at == NOW - 1.0 + POLICY.taken_within
    assert only(decide(seen, decision.wake_at, POLICY), CompleteDrain) == [
        CompleteDrain("a", GROUP)
    ]


def test_a_worker_that_no_group_knows_is_ended_but_not_while_it_is_new() -> None:
    seen = healthy("a")
    old = replace(seen, machines={**seen.machines, "z": machine("z", at=100.0)})
    new = replace(seen, machines={**seen.machines, "z": machine("z", at=NOW - 1)})
    assert EndMachine("z", "it belongs to no group") in decide(old, NOW, POLICY).actions
    assert only(decide(new, NOW, POLICY), EndMachine) == []


def test_control_machines_are_left_to_their_own_groups() -> None:
    seen = healthy("a")
    seen = replace(seen, machines={**seen.machines, "c": machine("c", role="control", at=0.0)})
    assert decide(seen, NOW, POLICY).actions == ()


# -- size ----------------------------------------------------------------------------------------


def test_the_group_is_held_at_what_the_job_should_have() -> None:
    seen = replace(healthy("a", "b"), desired=4)
    assert decide(seen, NOW, POLICY).actions == (SetDesired(GROUP, 4, "the job is running"),)


@pytest.mark.parametrize("state", ["succeeded", "failed", "stopped", "timed out"])
def test_after_the_end_the_size_goes_to_zero_first_and_then_the_nodes_go(state: str) -> None:
    seen = replace(healthy("a", "b"), job=Job(state, 999.0))  # type: ignore[arg-type]
    assert decide(seen, NOW, POLICY).actions == (SetDesired(GROUP, 0, f"the job is {state}"),)
    empty = replace(seen, group=group(*in_service("a", "b"), desired=0))
    assert [a.instance for a in only(decide(empty, NOW, POLICY), Replace)] == ["a", "b"]  # type: ignore[union-attr]


def test_without_a_group_nothing_is_touched() -> None:
    seen = replace(healthy("a"), group=None, drains={"a": drain("a")})
    assert decide(seen, NOW, POLICY).actions == ()


# -- what always holds ---------------------------------------------------------------------------
