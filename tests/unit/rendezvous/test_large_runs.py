"""Runs of thousands of nodes: what is kept, or done at once for many of them, changes no answer."""

import itertools
import random
from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest
from spotelastic_checkpoints.types import Snapshot

from spotelastic.model.agreement import Vote
from spotelastic.model.interruption_kind import InterruptionKind
from spotelastic.model.job import Reference, Settings
from spotelastic.model.node import Fingerprint, Node
from spotelastic.model.notice import Drain, Notice
from spotelastic.model.progress import Progress
from spotelastic.model.round import LARGE, Member, Round
from spotelastic.rendezvous import rounds
from spotelastic.rendezvous.decision import RoundDecision, WriteProposal, WriteRound
from spotelastic.rendezvous.duties import answers
from spotelastic.rendezvous.view import RunState, fold
from spotelastic.store.codec import encode
from spotelastic.store.keys import Keys
from spotelastic.store.port import Change, Reset, StoredValue, WatchItem

KEYS = Keys("r")
MANY = 10_000
NOW = 1000.0


def stored(key: str, told: object, revision: int) -> StoredValue:
    return StoredValue(
        key, told if isinstance(told, bytes) else encode(told), revision, revision, 0
    )


def changes(pairs: Iterable[tuple[str, object | None]]) -> list[WatchItem]:
    return [
        Change(key, stored(key, told, at) if told is not None else None, at)
        for at, (key, told) in enumerate(pairs, 10)
    ]


def node(number: int, code: str = "c") -> Node:
    fingerprint = Fingerprint("3.11", "2.13", code=code, workers=8)
    return Node(f"n{number}", f"inc-{number}", f"10.0.0.{number}", "abc"[number % 3], fingerprint)


# -- members by name ------------------------------------------------------------------------------


def members(count: int, first: int = 0) -> tuple[Member, ...]:
    return tuple(
        Member(f"n{first + slot}", f"inc-{first + slot}", slot, "", "", 1) for slot in range(count)
    )


@pytest.mark.parametrize("count", [1, LARGE, LARGE + 1, 300])
def test_a_member_is_found_by_its_name_in_rounds_of_any_size(count: int) -> None:
    made = [
        Round(number, f"r{number}", "started", members(count, 3 * number), "start", "")
        for number in range(8)
    ]
    for round_, name in itertools.product([*made, *reversed(made)], ("n0", "n5", "n21", "n99")):
        expected = [member for member in round_.members if member.node == name]
        assert round_.member(name) is (expected[0] if expected else None)


# -- a burst is folded at once --------------------------------------------------------------------


def written(rng: random.Random, count: int) -> list[tuple[str, object | None]]:
    """What nodes write in some order: values, values that cannot be read, and ends."""
    made: list[tuple[str, object | None]] = []
    for step in range(count):
        one = node(rng.randrange(12))
        notice = Notice(InterruptionKind.LEAVE, one.id, "signal", NOW, NOW, NOW + rng.random())
        told = Progress(one.id, 1, step, NOW, measured=step, own_time=0.1, waiting_time=0.01)
        key, value = rng.choice(
            [
                (KEYS.live(one.id), one),
                (KEYS.vote(one.id), Vote(one.id, "p", step)),
                (KEYS.drain(one.id), Drain(one.id, notice)),
                (KEYS.progress(one.id), told),
                (KEYS.vote(one.id), b"[]"),
            ]
        )
        made.append((key, None if rng.random() < 0.2 else value))
    return made


@pytest.mark.parametrize("seed", range(20))
def test_a_burst_in_one_delivery_is_worth_what_single_changes_are(seed: int) -> None:
    items = changes(written(random.Random(seed), 300))
    before = fold(RunState(), items[:100], KEYS, NOW, KEYS.nodes)
    kept = replace(before, nodes=dict(before.nodes), votes=dict(before.votes))
    single = before
    for item in items[100:]:
        single = fold(single, [item], KEYS, NOW, KEYS.nodes)
    at_once = fold(before, items[100:], KEYS, NOW, KEYS.nodes)
    assert at_once == single
    assert before == kept, "what was folded before stays as it was"


def test_what_is_read_anew_replaces_what_was_told_before_in_the_same_delivery() -> None:
    vote = stored(KEYS.vote("n1"), Vote("n1", "p", 7), 50)
    items = [*changes([(KEYS.vote("n2"), Vote("n2", "p", 3))]), Reset((vote,), 60)]
    items += changes([(KEYS.vote("n3"), Vote("n3", "p", 9))])
    seen = fold(RunState(), items, KEYS, NOW, KEYS.nodes)
    assert {name: told.step for name, told in seen.votes.items()} == {"n1": 7, "n3": 9}


# -- a decision about thousands -------------------------------------------------------------------


class Holder:
    """What the holder of a run sees, and decides."""

    def __init__(self, settings: Settings, nodes: Sequence[Node]) -> None:
        self.seen, self.now, self._ids = RunState(), NOW, itertools.count()
        self.all([(KEYS.settings, settings), (KEYS.reference, Reference(nodes[0], settings))])
        self.told((KEYS.live(one.id), one) for one in nodes)
        self.now += 1.0

    def all(self, pairs: Iterable[tuple[str, object | None]]) -> None:
        self.seen = fold(self.seen, changes(pairs), KEYS, self.now, KEYS.all)

    def told(self, pairs: Iterable[tuple[str, object | None]]) -> None:
        self.seen = fold(self.seen, changes(pairs), KEYS, self.now, KEYS.nodes)

    def decide(self) -> RoundDecision:
        decision = rounds.decide(self.seen, self.now, lambda: f"id{next(self._ids)}")
        for action in decision.actions:
            if isinstance(action, WriteRound):
                self.all([(KEYS.round, action.round)])
            elif isinstance(action, WriteProposal):
                self.all([(KEYS.proposal, action.proposal)])
        return decision

    @property
    def round(self) -> Round:
        assert self.seen.round is not None
        return self.seen.round

    def get_ready(self, nodes: Iterable[Node], slots: tuple[Snapshot, ...] = ()) -> None:
        lead = self.round.members[0].node
        self.told(
            (
                KEYS.ack(one.id),
                replace(
                    answers.seen(one, self.round),
                    phase="ready",
                    snapshots=slots,
                    store="s:1" if one.id == lead else "",
                ),
            )
            for one in nodes
        )


def test_ten_thousand_nodes_join_save_one_step_and_go_on_without_two_of_them() -> None:
    """Others that do not match the run are left out, and survivors keep their ranks."""
    mine, others = [node(n) for n in range(MANY)], [node(MANY + n, "x") for n in range(5)]
    holder = Holder(Settings(MANY // 2, 2 * MANY), [*mine, *others])
    holder.decide()
    assert {member.node for member in holder.round.members} == {one.id for one in mine}
    holder.get_ready(mine[1:])
    assert not holder.decide().actions, "one is missing"
    holder.get_ready(mine[:1])
    holder.decide()
    first = holder.round
    assert first.phase == "started"
    leaver, lost = mine[77], mine[4321]
    notice = Notice(InterruptionKind.LEAVE, leaver.id, "signal", NOW, holder.now, holder.now + 9.0)
    holder.told([(KEYS.drain(leaver.id), Drain(leaver.id, notice))])
    holder.decide()
    target = 0
    for has_target in (False, True):
        asked = holder.seen.proposal
        assert asked is not None
        target = asked.target
        assert (target > 0) is has_target
        votes = [
            (KEYS.vote(one.id), Vote(one.id, asked.id, 10, 0.1, target, target, target))
            for one in mine
        ]
        holder.told(votes[1:])
        assert not holder.decide().actions, "one is missing"
        holder.told(votes[:1])
        holder.decide()
    second = holder.round
    assert (second.number, second.cause, second.nodes) == (2, "drain", (leaver.id,))
    ranks = {member.node: member.slot for member in second.members}
    moved = {one.node for one in first.members if ranks.get(one.node) != one.slot}
    assert moved == {leaver.id, first.members[-1].node}, "who had the highest rank fills the hole"
    slot = Snapshot(first.incarnation, target, "layout", (0,), MANY, whole=True)
    holder.get_ready((one for one in mine if one is not leaver), (slot,))
    holder.decide()
    resume = holder.round.resume
    assert (resume.kind, resume.step, len(resume.holders)) == ("memory", target, MANY - 1)
    holder.told([(KEYS.live(lost.id), None)])
    holder.decide()
    third = holder.round
    assert (third.number, third.cause, third.nodes) == (3, "loss", (lost.id,))
    assert len(third.members) == MANY - 2
