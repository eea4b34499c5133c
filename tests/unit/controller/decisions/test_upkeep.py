"""What the leader does for the account, from hand-made observations."""

import logging
from dataclasses import replace

from spotelastic_checkpoints import log_records
from spotelastic_checkpoints.log_records import LogStyle

from spotelastic.cloud.model import GroupMember, Instance, InstanceState, WorkerGroup
from spotelastic.controller.decisions.housekeeping import (
    BOOT,
    ClusterState,
    Examine,
    HousekeepingPolicy,
    Postpone,
    Teardown,
    cause,
    said,
    upkeep,
)
from spotelastic.controller.model.observation import EndJobAtOnce, Observation, Tell, account
from spotelastic.model.job import Job
from spotelastic.model.node import Fingerprint, Node
from spotelastic.model.progress import Event

NOW = 10_000.0
POLICY = HousekeepingPolicy()
LED = ClusterState(minimum=2, switch_at=NOW + POLICY.unattended)


def machine(
    id: str, at: float = NOW - 60.0, state: InstanceState = "running", reason: str = ""
) -> Instance:
    return Instance(id, "worker", state, "g5.xlarge", "a", "10.0.0.9", True, at, reason=reason)


def seen(*machines: Instance, nodes: tuple[str, ...] = (), job: str = "running") -> Observation:
    places = tuple(GroupMember(m.id, "InService") for m in machines if m.state == "running")
    return Observation(
        desired=4,
        since=1000.0,
        job=Job(job, NOW - 100.0),  # type: ignore[arg-type]
        group=WorkerGroup("workers", 4, places),
        machines={m.id: m for m in machines},
        nodes={id: Node(id, id, "10.0.0.9", "a", Fingerprint()) for id in nodes},
    )


def failed(id: str, launched: float, why: str = "boot: no torch", at: float = NOW - 10.0) -> Event:
    return Event(
        at, BOOT, "", id, {"said": why, "cause": why, "console": why, "launched": launched}
    )


def test_a_new_leader_postpones_the_switch_at_once_and_then_every_ten_minutes() -> None:
    taken_over = upkeep(seen(), replace(LED, switch_at=0.0), NOW, POLICY)
    assert taken_over.actions == (Postpone(NOW + 3600.0),)
    soon = upkeep(seen(), LED, NOW + 599.0, POLICY)
    assert (soon.actions, soon.wake_at) == ((), NOW + 600.0)
    assert upkeep(seen(), LED, NOW + 600.0, POLICY).actions == (Postpone(NOW + 4200.0),)


def test_a_node_that_prepares_itself_has_not_failed_to_boot() -> None:
    late = NOW - 60.0 + POLICY.boot_within
    waited = seen(machine("i-1"))
    (examined,) = (a for a in upkeep(waited, LED, late, POLICY).actions if isinstance(a, Examine))
    assert examined.why == "it has not joined within 900 s"
    told = replace(waited, preparing={"i-1": late - 1.0})
    assert not any(isinstance(a, Examine) for a in upkeep(told, LED, late, POLICY).actions)


def test_without_a_group_and_after_the_job_there_is_no_switch_to_postpone() -> None:
    standing = replace(LED, switch_at=0.0)
    assert upkeep(replace(seen(), group=None), standing, NOW, POLICY).actions == ()
    assert upkeep(seen(job="succeeded"), standing, NOW, POLICY).actions == ()


def test_a_cluster_whose_up_died_before_its_workers_is_taken_down_after_an_hour() -> None:
    """Its control nodes would stay, and cost, for good."""
    alone = Observation(desired=4, since=NOW - 3600.0)
    standing = ClusterState(minimum=2)
    told, dissolved = upkeep(alone, standing, NOW, POLICY).actions
    assert isinstance(told, Tell) and "`up` was not finished" in told.event.message
    assert isinstance(dissolved, Teardown)
    again = replace(alone, told=frozenset({account(told.event)}))
    assert upkeep(again, standing, NOW, POLICY).actions == (dissolved,)
    group = WorkerGroup("workers", 0, ())
    for case, how in (
        (replace(alone, since=NOW - 3599.0), standing),
        (alone, replace(standing, asked_at=NOW - 3599.0)),  # `up` may still be at work
        (replace(alone, group=group), replace(standing, switch_at=NOW + 3600.0)),
        (replace(alone, on_demand=group), standing),
        (alone, replace(standing, switch_at=NOW + 60.0)),  # an answer had left the group out
        (alone, replace(standing, joined=frozenset({"i-1"}))),
        (replace(alone, job=Job("running", NOW - 7200.0)), standing),
    ):
        assert upkeep(case, how, NOW, POLICY).actions == ()


def test_an_instance_that_shuts_itself_down_or_never_joins_is_examined_once() -> None:
    off = machine("i-off", state="terminated", reason="Client.InstanceInitiatedShutdown")
    mute = machine("i-mute", at=NOW - 900.0)
    young, joined = machine("i-young"), machine("i-joined", at=NOW - 5000.0)
    taken = machine("i-taken", state="terminated", reason="Server.SpotInstanceTermination")
    standing = replace(LED, joined=frozenset({"i-joined"}))
    now = seen(off, mute, young, joined, taken, nodes=("i-joined",))
    found = upkeep(now, standing, NOW, POLICY).actions
    assert [a.machine.id for a in found if isinstance(a, Examine)] == ["i-off", "i-mute"]
    told = replace(standing, boots=(failed("i-off", NOW), failed("i-mute", NOW)))
    assert not [a for a in upkeep(now, told, NOW, POLICY).actions if isinstance(a, Examine)]


def test_three_boots_in_a_row_that_fail_alike_fail_a_job_that_cannot_run() -> None:
    boots = tuple(failed(f"i-{n}", NOW - 500.0 + n) for n in range(3))
    decided = upkeep(seen(nodes=("i-9",)), replace(LED, boots=boots), NOW, POLICY)
    ended, told = decided.actions
    assert isinstance(ended, EndJobAtOnce) and isinstance(told, Tell)
    assert "3 instances in a row did not boot: boot: no torch" in ended.job.reason
    assert "The console of i-2 ends:\nboot: no torch" in ended.job.reason
    assert told.event.kind == "job" and told.event.message == f"failed: {ended.job.reason}"


def test_boots_that_fail_alike_are_hopeless_however_many_nodes_there_are() -> None:
    """Also where all that were asked for train: a spare one is not launched either."""
    boots = tuple(failed(f"i-{n}", NOW - 500.0 + n) for n in range(3))
    everyone = seen(nodes=("i-6", "i-7", "i-8", "i-9"))
    decided = upkeep(everyone, replace(LED, boots=boots), NOW, POLICY)
    assert (decided.desired, decided.hopeless) == (4, True)
    assert not upkeep(everyone, replace(LED, boots=boots[:2]), NOW, POLICY).hopeless


def test_boots_that_hang_one_after_the_other_are_still_three_in_a_row() -> None:
    """A job of one node: the next is launched when the one before has had its time."""
    apart = POLICY.boot_within + 60.0
    boots = tuple(
        failed(f"i-{n}", NOW - (3 - n) * apart, at=NOW - (2 - n) * apart) for n in range(3)
    )
    decided = upkeep(seen(), replace(LED, minimum=1, boots=boots), NOW, POLICY)
    assert [type(action) for action in decided.actions] == [EndJobAtOnce, Tell]


def test_a_job_that_can_run_goes_on_with_the_nodes_that_it_has() -> None:
    boots = tuple(failed(f"i-{n}", NOW - 500.0 + n) for n in range(3))
    decided = upkeep(seen(nodes=("i-8", "i-9")), replace(LED, boots=boots), NOW, POLICY)
    assert decided.desired == 2
    (told,) = decided.actions
    assert isinstance(told, Tell)
    assert "no more nodes are launched for now: 3 instances in a row" in told.event.message
    again = replace(seen(nodes=("i-8", "i-9")), told=frozenset({account(told.event)}))
    assert upkeep(again, replace(LED, boots=boots), NOW, POLICY).actions == ()
    mended = replace(LED, boots=boots, asked_at=NOW - 5.0)
    assert (upkeep(again, mended, NOW, POLICY).desired) == again.desired  # `up` was run again


def test_boots_that_are_not_in_a_row_or_fail_for_different_causes_stop_nothing() -> None:
    alike = [failed(f"i-{n}", NOW - 500.0 + n) for n in range(3)]
    joined = machine("i-ok", at=NOW - 499.5)
    cases = (
        (alike[:2], seen()),
        ([*alike[:2], failed("i-2", NOW - 400.0, "boot: disk full")], seen()),
        ([replace(e, at=NOW - POLICY.boot_memory - 1.0) for e in alike], seen()),
        (alike, seen(joined)),
    )
    for boots, now in cases:
        standing = replace(LED, boots=tuple(boots), joined=frozenset({"i-ok"}))
        decided = upkeep(now, standing, NOW, POLICY)
        assert (decided.actions, decided.desired) == ((), 4)


def test_the_cluster_goes_when_the_job_has_ended_and_lingered() -> None:
    now = seen(job="failed")  # ended 100 s ago
    assert upkeep(now, LED, NOW, POLICY).wake_at == NOW + 500.0
    (action,) = upkeep(now, LED, NOW + 500.0, POLICY).actions
    assert isinstance(action, Teardown)
    kept = upkeep(now, LED, NOW + 1e6, replace(POLICY, linger=None))
    assert (kept.actions, kept.wake_at) == ((), None)


def test_a_cluster_that_is_being_taken_down_launches_nothing_more() -> None:
    decided = upkeep(seen(), replace(LED, stopping=True), NOW, POLICY)
    assert decided.desired == 0
    assert [type(action) for action in decided.actions] == [Teardown]


def test_a_boot_failed_for_what_we_said_last_and_alike_without_what_varies() -> None:
    console = (
        "[  12.3] cloud-init[812]: spotelastic: cannot read s3://b-123456789012/x: not permitted\n"
        "[  13.0] reboot: Power down after 31 s\n\n"
    )
    assert said(console) == "spotelastic: cannot read s3://b-123456789012/x: not permitted"
    assert cause(said(console)) == "spotelastic: cannot read s#://b-#/x: not permitted"
    assert cause("kernel panic at 0xdeadbeef") == cause("kernel panic at 0xcafe0123")
    assert said("") == "its console is empty"
    retried = "boot: no torch:\nboot: agent ended with 75: starting it again\n"
    assert said(retried) == "no torch"


def test_why_a_boot_failed_is_found_in_json_records_too() -> None:
    lines: list[str] = []
    with log_records.logging_to("boot: ", LogStyle(log_records.JSON), lines.append):
        for line in (
            "--setup 'pip' ended with 1:\nno torch",
            "agent ended with 75: starting it again",
        ):
            logging.getLogger("spotelastic.bootstrap").warning(line)
    console = "".join(f"[ 12.3] spotelastic[812]: {line}\n" for line in lines)
    assert said(console) == "--setup 'pip' ended with 1"


def test_a_node_that_outlives_its_job_is_looked_after_until_the_cluster_goes() -> None:
    """Else the dead man's switch would end it."""
    kept = WorkerGroup("workers", 1, (GroupMember("i-kept", "InService"),))
    over = replace(seen(), group=kept, job=Job("failed", NOW - 60.0))
    policy = replace(POLICY, linger=7200.0)
    due = replace(LED, switch_at=NOW + 60.0)
    assert upkeep(over, due, NOW, policy).actions == (Postpone(NOW + policy.unattended),)
    fresh = replace(LED, switch_at=NOW + policy.unattended)
    quiet = upkeep(over, fresh, NOW, policy)
    assert (quiet.actions, quiet.wake_at) == ((), NOW + policy.postpone_every)
    (end,) = upkeep(over, fresh, NOW + 7200.0, policy).actions
    assert isinstance(end, Teardown)
