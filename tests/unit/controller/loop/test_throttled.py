"""AWS is left in peace while it throttles, and what is urgent is done all the same."""

from dataclasses import replace

from support.clusters.leading_controller import KEYS, NODES, PACE, SPEC, STOPPING, Leader, warns

from spotelastic.controller.decisions.throttle import LOOKING, PRESSING
from spotelastic.model.interruption_kind import InterruptionKind
from spotelastic.model.job import Capacity, Ending, Settings
from spotelastic.model.notice import Drain, Notice
from spotelastic.model.requests.command import Command
from spotelastic.store.codec import decode, encode

DOUBLING = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0]
SCALE = Command("c", "scale", 1, 3)
ANSWER = "put commands/c.json"
LARGER = replace(SPEC, settings=Settings(1, 4))


def ending(leader: Leader) -> Ending | None:
    held = leader.store.get(KEYS.ending)
    return None if held is None else decode(held.data, Ending)


def test_aws_that_throttles_is_asked_ever_more_rarely_whatever_changes_in_etcd(
    leader: Leader, said: list[str]
) -> None:
    leader.log.throttled = frozenset({"instances"})
    leader.lead(200.0)
    assert leader.pauses == [*DOUBLING, *[LOOKING] * 3]
    assert leader.calls.count("groups") == leader.calls.count("instances") == 9
    assert sum("the cloud is busy" in line for line in said) == 4, "now and then"
    leader.log.throttled = frozenset()
    leader.calls.clear()
    leader.lead(1.5 * LOOKING)
    assert leader.calls.count("instances") > 10, "as usual again"
    leader.log.throttled = frozenset({"groups"})
    leader.pauses.clear()
    leader.lead(2.0)
    assert leader.pauses == [1.0, 2.0], "the pauses begin anew"


def test_a_job_that_cannot_be_read_at_first_is_asked_for_ever_more_rarely() -> None:
    leader = Leader()
    leader.log.throttled = frozenset({STOPPING})
    leader.lead(60.0)
    assert leader.calls.count(STOPPING) == 6


def test_a_warning_is_answered_at_once_while_aws_is_left_in_peace(leader: Leader) -> None:
    leader.log.throttled = frozenset({"instances"})
    leader.turns(100.0)
    leader.calls.clear()
    leader.events.put(warns("i-1"))
    rest = leader.turn()
    assert leader.calls == ["replace i-1", "delete r-i-1"]
    assert rest > PRESSING


def test_a_warning_that_cannot_be_answered_is_tried_again_and_holds_up_no_other(
    leader: Leader,
) -> None:
    leader.log.throttled = frozenset({"instances", "replace i-1"})
    leader.turns(10.0)
    leader.events.put(warns("i-1"))
    leader.calls.clear()
    leader.turns(60.0)
    assert leader.calls.count("replace i-1") == 14
    leader.events.put(warns("i-2"))
    leader.calls.clear()
    leader.turns(2 * PACE.turn)
    assert "replace i-2" in leader.calls
    leader.log.throttled = frozenset({"instances"})
    leader.turns(10.0)
    assert leader.calls.count("replace i-1") == leader.calls.count("replace i-2") == 1
    assert leader.events.messages == ()


def test_a_warned_node_that_aws_has_not_shown_yet_has_it_looked_at(leader: Leader) -> None:
    leader.log.throttled = frozenset({"instances"})
    leader.turns(100.0)
    leader.capacity.has("i-5", leader.time.begun)
    leader.joins("i-5")
    notice = Notice(InterruptionKind.SPOT_INTERRUPTION, "i-5", "imds", 1.0, 1.0)
    leader.store.put(KEYS.drain("i-5"), encode(Drain("i-5", notice)))
    leader.calls.clear()
    leader.turns(8.0)
    assert 4 <= leader.calls.count("instances") <= 5
    leader.log.throttled = frozenset()
    leader.turns(PRESSING + 2 * PACE.turn)
    assert "remove i-5" in leader.calls, "it is one more than is wanted"


def test_a_command_is_answered_in_time_once_aws_answers_again(leader: Leader) -> None:
    leader.wants(SPEC)
    leader.log.throttled = frozenset({"instances"})
    leader.turns(100.0)
    leader.asks(SCALE)
    leader.calls.clear()
    leader.turns(4.0)
    assert 2 <= leader.calls.count("instances") <= 3
    leader.log.throttled = frozenset()
    leader.turns(PRESSING + 2 * PACE.turn)
    assert leader.calls.count(ANSWER) == 1
    assert leader.commands.messages == ()


def test_an_action_that_fails_is_not_repeated_at_every_turn_but_at_what_is_new(
    leader: Leader,
) -> None:
    leader.wants(LARGER)
    leader.time.now += PACE.idle
    leader.log.throttled = frozenset({"size"})
    leader.turns(100.0, busy=False)
    assert leader.pauses == [1.0, 2.0, 4.0, 8.0, 16.0, *[PACE.idle] * 4]
    assert leader.calls.count("size") == 9
    leader.happen()  # there is another node
    leader.turn()
    assert leader.calls.count("size") == 10
    leader.log.throttled = frozenset()
    leader.time.now += PACE.idle
    leader.turn()
    assert leader.calls.count("size") == 11
    leader.log.throttled = frozenset({"size"})
    leader.pauses.clear()
    leader.wants(replace(SPEC, settings=Settings(1, 5)))
    leader.time.now += PACE.idle
    leader.turn()
    assert leader.pauses == [1.0], "the pauses begin anew"


def test_progress_is_told_while_aws_is_left_in_peace(leader: Leader) -> None:
    leader.log.throttled = frozenset({"instances"})
    leader.turns(10.0)
    leader.publisher.offered.clear()
    leader.turn()
    assert [set(each.machines) for each in leader.publisher.offered] == [set(NODES)]


def test_a_limit_holds_while_aws_does_not_answer(leader: Leader) -> None:
    """What ends a job is written to etcd: hours without EC2 are none beyond the deadline."""
    deadline = leader.time.clock() + 3600.0
    leader.wants(replace(SPEC, capacity=Capacity(max_price=1.0, deadline=deadline)))
    leader.log.throttled = frozenset({"instances"})
    leader.turns(30.0)
    assert ending(leader) is None
    leader.prices.asked.clear()
    leader.time.now += 3600.0
    leader.turns(PACE.turn)  # AWS is asked once more, and does not answer
    leader.turns(PACE.turn)
    assert leader.prices.asked == [], "AWS is left in peace"
    ended = ending(leader)
    assert ended is not None
    assert ended.state == "timed out"


def test_what_a_job_may_cost_holds_while_aws_does_not_answer(leader: Leader) -> None:
    """The bill goes on without EC2: three nodes at $1 an hour, for an hour."""
    leader.wants(replace(SPEC, capacity=Capacity(max_cost=3.1)))
    leader.log.throttled = frozenset({"instances"})
    leader.turns(30.0)
    leader.time.now = 1000.0 + 3400.0
    leader.turns(1.0)
    assert ending(leader) is None
    leader.time.now = 1000.0 + 3600.0
    leader.turns(1.0)
    ended = ending(leader)
    assert ended is not None
    assert (ended.state, ended.reason) == (
        "stopped",
        "it has cost $3.00 at $3.00 an hour (--max-cost 3.1)",
    )


def test_messages_that_are_delivered_again_and_again_are_no_news(leader: Leader) -> None:
    """Each would else be a reason to try once more what has failed."""
    leader.wants(LARGER)
    leader.time.now += PACE.idle
    receipts = [f"r{turn}" for turn in range(400)]
    leader.log.throttled = frozenset({"size", *(f"delete {receipt}" for receipt in receipts)})
    message = warns("i-of-somebody-else")
    for receipt in receipts:
        leader.events.pending = {"m": replace(message, receipt=receipt)}
        leader.turns(PACE.turn, busy=False)
    assert 1 <= leader.calls.count("size") <= 11


def test_a_command_is_not_carried_out_on_what_the_job_was_before(leader: Leader) -> None:
    """A restart with another deadline would end at the old one; without an answer it expires."""
    leader.wants(SPEC)
    leader.log.throttled = frozenset({STOPPING})
    leader.asks(SCALE)
    leader.turns(4.0)
    assert ANSWER not in leader.calls
    leader.log.throttled = frozenset()
    leader.turns(PRESSING + 2 * PACE.turn)
    assert leader.calls.count(ANSWER) == 1
