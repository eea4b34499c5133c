"""AWS is left in peace while it throttles, and what is urgent is done all the same."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from support.leading import KEYS, NODES, SPEC, Account, Time, lead, turns, warns

from spotelastic.clock import unbroken
from spotelastic.controller.effects.throttle import LOOKING, PRESSING
from spotelastic.controller.loop import leader_loop as terms
from spotelastic.controller.loop.leader_loop import LeaderLoop
from spotelastic.controller.model.observation import PendingCommand
from spotelastic.model.command import Command
from spotelastic.model.interruption_kind import InterruptionKind
from spotelastic.model.job import Capacity, Ending
from spotelastic.model.notice import Drain, Notice
from spotelastic.store.codec import decode, encode
from spotelastic.store.memory import MemoryStore

DOUBLING = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0]


def test_aws_that_throttles_is_asked_ever_more_rarely_whatever_changes_in_etcd(
    term: LeaderLoop, account: Account, time: Time, said: list[str]
) -> None:
    account.throttled = frozenset({"machines"})
    lead(term, time, 200.0)
    assert account.pauses == [*DOUBLING, *[LOOKING] * 3]
    assert account.calls.count("groups") == account.calls.count("machines") == 9
    assert sum("AWS is busy" in line for line in said) == 1
    account.throttled = frozenset()
    account.calls.clear()
    lead(term, time, 1.5 * LOOKING)
    assert account.calls.count("machines") > 10, "as usual again"
    account.throttled = frozenset({"groups"})
    account.pauses.clear()
    lead(term, time, 2.0)
    assert account.pauses == [1.0, 2.0], "the pauses begin anew"


def test_a_job_that_cannot_be_read_at_first_is_asked_for_ever_more_rarely(
    term: LeaderLoop, account: Account, time: Time
) -> None:
    account.throttled = frozenset({"stopping"})
    lead(term, time, 60.0)
    assert account.calls.count("stopping") == 6


def test_a_warning_is_answered_at_once_while_aws_is_left_in_peace(
    term: LeaderLoop, account: Account, time: Time
) -> None:
    account.throttled = frozenset({"machines"})
    turns(term, time, 100.0)
    account.calls.clear()
    term._inbox.pending["r-i-1"] = warns("i-1")  # type: ignore[attr-defined]
    rest = term._turn()
    assert account.calls == ["replace i-1", "delete r-i-1"]
    assert rest > PRESSING


def test_a_warning_that_cannot_be_answered_is_tried_again_and_holds_up_no_other(
    term: LeaderLoop, account: Account, time: Time
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
    term: LeaderLoop, account: Account, store: MemoryStore, time: Time
) -> None:
    account.throttled = frozenset({"machines"})
    turns(term, time, 100.0)
    term._machines = {}
    store.put(
        KEYS.drain("i-1"),
        encode(Drain("i-1", Notice(InterruptionKind.SPOT_INTERRUPTION, "i-1", "imds", 1.0, 1.0))),
    )
    account.calls.clear()
    turns(term, time, 8.0)
    assert 4 <= account.calls.count("machines") <= 5
    account.throttled = frozenset()
    turns(term, time, PRESSING + 2 * terms.TURN)
    assert "replace i-1" in account.calls


def test_a_command_is_answered_in_time_once_aws_answers_again(
    term: LeaderLoop, account: Account, time: Time
) -> None:
    account.throttled = frozenset({"machines"})
    turns(term, time, 100.0)
    pending = term._orders.pending  # type: ignore[attr-defined]
    pending["o"] = PendingCommand("o", Command("c", "scale", 1, 3), unbroken())
    account.calls.clear()
    turns(term, time, 4.0)
    assert 2 <= account.calls.count("machines") <= 3
    account.throttled = frozenset()
    turns(term, time, PRESSING + 2 * terms.TURN)
    assert account.calls.count("put demo/commands/c.json") == 1
    assert set(pending) == set()


def test_an_action_that_fails_is_not_repeated_at_every_turn_but_at_what_is_new(
    term: LeaderLoop, account: Account, store: MemoryStore, time: Time
) -> None:
    term._wanted = replace(SPEC.settings, max_nodes=4)
    account.throttled = frozenset({"size"})
    turns(term, time, 100.0, busy=False)
    assert account.pauses == [1.0, 2.0, 4.0, 8.0, 16.0, *[terms.IDLE] * 4]
    assert account.calls.count("size") == 9
    time.happen()  # there is another node
    term._turn()
    assert account.calls.count("size") == 10
    account.throttled = frozenset()
    time.now += terms.IDLE
    term._turn()
    assert account.calls.count("size") == 11
    account.throttled = frozenset({"size"})
    account.pauses.clear()
    time.now += terms.SOON
    term._turn()
    assert account.pauses == [1.0], "the pauses begin anew"


def test_progress_is_told_while_aws_is_left_in_peace(
    term: LeaderLoop, account: Account, time: Time
) -> None:
    told: list[Any] = []
    term._publisher = SimpleNamespace(offer=told.append, entries=())  # type: ignore[assignment]
    account.throttled = frozenset({"machines"})
    turns(term, time, 10.0)
    told.clear()
    term._turn()
    assert [set(each.machines) for each in told] == [set(NODES)]


def test_a_limit_holds_while_aws_does_not_answer(
    term: LeaderLoop, account: Account, store: MemoryStore, time: Time
) -> None:
    """What ends a job is written to etcd: hours without EC2 are none beyond the deadline."""
    account.throttled = frozenset({"machines"})
    turns(term, time, 10.0)
    assert store.get(KEYS.ending) is None
    asked: list[str] = []
    prices: Any = SimpleNamespace(spot=lambda *pool: asked.append(pool), date="")
    term._prices = prices
    over = replace(SPEC, capacity=Capacity(max_price=1.0, deadline=unbroken() - 1.0))
    term._go_by(False, over)
    term._turn()
    assert asked == [], "AWS is left in peace"
    held = store.get(KEYS.ending)
    assert held is not None
    assert decode(held.data, Ending).state == "timed out"


def test_what_a_job_may_cost_holds_while_aws_does_not_answer(
    term: LeaderLoop, account: Account, store: MemoryStore, time: Time
) -> None:
    """The bill goes on without EC2: three nodes at $1 an hour, an hour ago."""
    account.throttled = frozenset({"machines"})
    turns(term, time, 10.0)
    began = unbroken() - 3600.0
    term._bill = {name: replace(each, start=began) for name, each in term._bill.items()}

    def ending(max_cost: float) -> Ending | None:
        term._go_by(False, replace(SPEC, capacity=Capacity(max_cost=max_cost)))
        term._turn()
        held = store.get(KEYS.ending)
        return None if held is None else decode(held.data, Ending)

    assert ending(3.5) is None
    ended = ending(3.1)
    assert ended is not None
    assert (ended.state, ended.reason) == (
        "stopped",
        "it has cost $3.00 at $3.00 an hour (--max-cost 3.1)",
    )


def test_messages_that_are_delivered_again_and_again_are_no_news(
    term: LeaderLoop, account: Account, time: Time
) -> None:
    """Each would else be a reason to try once more what has failed."""
    term._wanted = replace(SPEC.settings, max_nodes=4)
    receipts = [f"r{turn}" for turn in range(400)]
    account.throttled = frozenset({"size", *(f"delete {receipt}" for receipt in receipts)})
    message = warns("i-of-somebody-else")
    for receipt in receipts:
        term._inbox.pending = {"m": replace(message, receipt=receipt)}  # type: ignore[attr-defined]
        turns(term, time, terms.TURN, busy=False)
    assert account.calls.count("size") <= 11


def test_a_command_is_not_carried_out_on_what_the_job_was_before(
    term: LeaderLoop, account: Account, time: Time
) -> None:
    """A restart with another deadline would end at the old one; without an answer it expires."""
    account.throttled = frozenset({"stopping"})
    pending = term._orders.pending  # type: ignore[attr-defined]
    pending["o"] = PendingCommand("o", Command("c", "scale", 1, 3), unbroken())
    turns(term, time, 4.0)
    assert "put demo/commands/c.json" not in account.calls
    account.throttled = frozenset()
    turns(term, time, PRESSING + 2 * terms.TURN)
    assert account.calls.count("put demo/commands/c.json") == 1
