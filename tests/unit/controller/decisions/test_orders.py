"""What people's commands cause, each once, and how they are answered."""

from dataclasses import replace

import pytest

from spotelastic.cloud.model import GroupMember, Instance, WorkerGroup
from spotelastic.controller.decisions.decide import decide
from spotelastic.controller.model.observation import (
    Action,
    AskToEnd,
    ControllerPolicy,
    Observation,
    PendingCommand,
    Replace,
    Reply,
    Rescale,
    Revive,
    SetDesired,
)
from spotelastic.model.job import Ending, Job, Settings
from spotelastic.model.node import Fingerprint, Node
from spotelastic.model.protocol import PROTOCOL, ProtocolVersion
from spotelastic.model.requests.command import LIFETIME, Answer, Command

NOW = 10_000.0
NAMES = ("i-1", "i-2")
ENDING = Ending("stopped", NOW - 1.0, "stopped by command")


def cluster(*commands: Command, sent_at: float = NOW - 0.5) -> Observation:
    orders = [PendingCommand(f"r{n}", command, sent_at) for n, command in enumerate(commands)]
    return Observation(
        desired=2,
        since=0.0,
        job=Job("running", 100.0),
        wanted=Settings(1, 2),
        group=WorkerGroup("workers", 2, tuple(GroupMember(name, "InService") for name in NAMES)),
        machines={
            name: Instance(name, "worker", "running", "t", "z", "", True, 0.0) for name in NAMES
        },
        nodes={name: Node(name, f"{name}-1", "", "z", Fingerprint()) for name in NAMES},
        orders=tuple(orders),
    )


def ended(seen: Observation, state: str = "stopped") -> Observation:
    reason = f"{ENDING.reason}; step 7 is committed" if state == "stopped" else "over"
    job = Job(state, NOW - 60.0, reason)  # type: ignore[arg-type]
    return replace(seen, job=job, ending=ENDING if state == "stopped" else None, nodes={})


def only(seen: Observation, *kinds: type[Action]) -> list[Action]:
    return [
        action
        for action in decide(seen, NOW, ControllerPolicy()).actions
        if isinstance(action, kinds)
    ]


def answer(seen: Observation) -> Answer | None:
    (reply,) = only(seen, Reply)
    assert isinstance(reply, Reply)
    return reply.answer


STOP, AGAIN = Command("c1", "stop"), Command("c2", "restart")


def grow(low: int, high: int) -> Command:
    return Command("c3", "scale", low, high)


def test_stop_has_the_nodes_save_first_and_is_answered_after_that_was_asked() -> None:
    actions = decide(cluster(STOP), NOW, ControllerPolicy()).actions
    kinds = [type(action) for action in actions]
    assert kinds.index(AskToEnd) < kinds.index(Reply)
    (asked,) = only(cluster(STOP), AskToEnd)
    assert asked == AskToEnd(Ending("stopped", NOW, "stopped by command"), cause="c1")
    assert answer(cluster(STOP)) == Answer("c1", NOW, "stops once its last step is committed")
    assert only(cluster(STOP), Replace, SetDesired) == []


@pytest.mark.parametrize(
    ("seen", "text"),
    [
        (replace(cluster(STOP), ending=ENDING), "is being ended already"),
        (ended(cluster(STOP)), "has stopped already"),
        (ended(cluster(STOP), "succeeded"), "has succeeded already"),
        (cluster(AGAIN), "has not ended, and continues"),
        (cluster(grow(1, 2)), "has 1 to 2 nodes already"),
        (replace(cluster(grow(3, 3)), wanted=Settings(3, 3)), "has 3 nodes already"),
        (replace(cluster(grow(1, 1)), wanted=Settings(1, 1)), "has 1 node already"),
    ],
)
def test_what_is_so_already_is_a_success_and_changes_nothing(seen: Observation, text: str) -> None:
    assert answer(seen) == Answer("c1", NOW, text) or answer(seen) == Answer(
        seen.orders[0].command.id if seen.orders[0].command else "", NOW, text
    )
    assert only(seen, AskToEnd, Revive, Rescale) == []


@pytest.mark.parametrize(
    ("seen", "text"),
    [
        (replace(cluster(AGAIN), ending=ENDING), "is being ended: try again once it has"),
        (cluster(grow(3, 2)), "cannot have 3 to 2 nodes"),
        (cluster(grow(0, 2)), "cannot have 0 to 2 nodes"),
    ],
)
def test_what_cannot_be_is_refused(seen: Observation, text: str) -> None:
    told = answer(seen)
    assert told is not None
    assert (told.text, told.accepted) == (text, False)
    assert only(seen, AskToEnd, Revive, Rescale) == []


MOVES = "moves to us-west-2: it was worth more"


def moved(seen: Observation, *, over: bool) -> Observation:
    ending = Ending("stopped", NOW - 1.0, MOVES)
    job = Job("stopped", NOW - 60.0, f"{MOVES}; step 7 is committed") if over else seen.job
    return replace(seen, job=job, ending=ending)


@pytest.mark.parametrize("over", [False, True])
def test_a_job_is_not_stopped_for_two_purposes(over: bool) -> None:
    to_move = Command("c5", "stop", reason=MOVES)
    told = answer(moved(cluster(STOP), over=over))
    assert told is not None and not told.accepted
    assert told.text.startswith("is only stopped to be moved")
    stopped = ended(cluster(to_move)) if over else replace(cluster(to_move), ending=ENDING)
    told = answer(stopped)
    assert told is not None
    assert (told.text, told.accepted) == ("was stopped by command, and is not moved", False)
    again = answer(moved(cluster(to_move), over=over))
    assert again is not None and again.accepted, "a mover that is killed is run again"
    for state in ("failed", "succeeded", "timed out"):
        told = answer(ended(cluster(STOP), state))
        assert told is not None and told.accepted


@pytest.mark.parametrize("state", ["stopped", "failed", "timed out", "succeeded"])
def test_a_restart_brings_new_nodes_and_leaves_none_of_the_old_ones(state: str) -> None:
    seen = ended(cluster(AGAIN), state)
    assert seen.group is not None
    shrunk = replace(seen, group=replace(seen.group, desired=0))
    (revived,) = only(shrunk, Revive)
    assert isinstance(revived, Revive) and revived.job.state == "pending"
    gone = [action.instance for action in only(shrunk, Replace) if isinstance(action, Replace)]
    assert gone == list(NAMES)
    assert [a.size for a in only(shrunk, SetDesired) if isinstance(a, SetDesired)] == [2]


def test_scale_changes_the_description_and_moves_nobody_by_itself() -> None:
    assert only(cluster(grow(2, 8)), Rescale) == [Rescale(grow(2, 8), cause="c3")]
    assert only(cluster(grow(2, 8)), Replace, SetDesired) == []


def test_a_command_that_arrives_twice_is_carried_out_once() -> None:
    twice = cluster(STOP, STOP)
    assert len(only(twice, AskToEnd)) == 1
    later = replace(twice, answered=frozenset({"c1"}))
    assert only(later, AskToEnd) == []
    assert only(later, Reply) == [Reply(order, None) for order in twice.orders]


def test_a_command_that_came_too_late_or_cannot_be_read_changes_nothing() -> None:
    late = cluster(STOP, sent_at=NOW - LIFETIME - 0.1)
    assert only(late, AskToEnd) == []
    assert answer(late) is None
    unreadable = replace(cluster(), orders=(PendingCommand("r1", None, NOW),))
    assert answer(unreadable) is None


def test_a_command_of_a_newer_version_is_refused_and_its_sender_told() -> None:
    seen = cluster(Command("c1", "hibernate"))  # type: ignore[arg-type]
    told = answer(seen)
    assert told is not None and not told.accepted
    assert "does not know “hibernate”" in told.text
    assert only(seen, AskToEnd, Revive, Rescale) == []
    seen = cluster(replace(STOP, protocol=ProtocolVersion(PROTOCOL.major + 1, 0)))
    told = answer(seen)
    assert told is not None and "speaks protocol" in told.text
    assert only(seen, AskToEnd) == []


def test_commands_that_contradict_each_other_are_dealt_with_one_by_one() -> None:
    both = cluster(STOP, grow(1, 8))
    assert len(only(both, AskToEnd, Rescale)) == 1
    assert len(only(both, Reply)) == 1
