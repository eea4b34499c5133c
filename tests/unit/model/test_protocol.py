"""What is said when two versions of spotelastic meet, and what an older one leaves as it is."""

import json
from dataclasses import replace

import msgspec
import pytest
from support.store.memory_store import MemoryStore

from spotelastic.model.interval import Interval
from spotelastic.model.job import Capacity, JobSpec, Reference, Settings
from spotelastic.model.node import Fingerprint, Node
from spotelastic.model.notice import Notice
from spotelastic.model.protocol import PROTOCOL, ProtocolVersion, keeping_unknown, unfit
from spotelastic.model.requests.command import Command
from spotelastic.model.round import Round
from spotelastic.rendezvous import membership
from spotelastic.rendezvous.rules import describe
from spotelastic.rendezvous.view import RunState, fold
from spotelastic.store.codec import decode, encode
from spotelastic.store.keys import Keys
from spotelastic.store.port import Change, Reset, StoredValue

KEYS = Keys("r")
NEXT = ProtocolVersion(PROTOCOL.major + 1, 0)
LATER = ProtocolVersion(PROTOCOL.major, PROTOCOL.minor + 3)
SETTINGS = Settings(1, 2, snapshot_every=Interval(5))
SPEC = JobSpec("demo", "run", "train.py", (), "c0de", SETTINGS, "s3://b/demo", ("h:2379",))


def node(name: str, protocol: ProtocolVersion = PROTOCOL) -> Node:
    return Node(name, f"{name}-1", "10.0.0.1", "z", Fingerprint("3.11", "2.13", protocol=protocol))


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(lambda: 0.0)


def join(store: MemoryStore, who: Node) -> str:
    refused = membership.join(store, KEYS, who, SETTINGS, store.grant(5.0))
    assert refused is None or not refused.passing
    return refused.reason if refused else ""


def test_a_node_of_another_major_is_refused_by_a_line_that_names_both(store: MemoryStore) -> None:
    assert join(store, node("a")) == ""
    assert join(store, node("b", NEXT)) == (
        f"node b does not match node a of this run: protocol {NEXT} here, {PROTOCOL} there: "
        "install the same version of spotelastic on both"
    )
    assert store.get(KEYS.live("b")) is None


def test_a_node_of_another_minor_takes_part(store: MemoryStore) -> None:
    assert join(store, node("a", LATER)) == ""
    assert join(store, node("b")) == ""


@pytest.mark.parametrize("live", [True, False])
def test_a_run_that_this_version_cannot_read_is_refused_and_left_as_it_is(
    store: MemoryStore, live: bool
) -> None:
    """Also where none of its nodes lives: what it left is not overwritten."""
    written = msgspec.json.encode({"protocol": NEXT, "node": "?", "settings": []})
    store.put(KEYS.reference, written)
    if live:
        store.put(KEYS.live("a"), b"{}")
    reason = join(store, node("b"))
    assert f"the run r speaks protocol {NEXT}, and node b speaks {PROTOCOL}" in reason
    assert "--rdzv-id" in reason
    found = store.get(KEYS.reference)
    assert found is not None and found.data == written


def test_a_run_of_another_major_is_not_taken_over_when_its_nodes_are_gone(
    store: MemoryStore,
) -> None:
    settings = replace(SETTINGS, protocol=NEXT)
    store.put(KEYS.reference, encode(Reference(node("a", NEXT), settings, NEXT)))
    assert f"the run r speaks protocol {NEXT}" in join(store, node("b"))


@pytest.mark.parametrize(
    ("data", "fits"),
    [
        (b'{"protocol":[1,99],"more":{}}', True),
        (b'{"protocol":[2,0]}', False),
        (b'{"protocol":[0,9]}', False),
        (b"{}", True),
        (b"[1,2]", True),
        (b'{"protocol":"one"}', True),
        (b"\xff\xfe", True),
        (b"", True),
    ],
)
def test_whether_a_value_is_of_another_major_is_seen_without_reading_it(
    data: bytes, fits: bool
) -> None:
    """What is no value of ours at all has an error of its own."""
    assert (unfit(data, "the cluster demo") is None) is fits


WORD = "of tomorrow"


@pytest.mark.parametrize(
    "value",
    [
        Round(1, "i", "started", (), WORD, ""),  # type: ignore[arg-type]
        Command("c", WORD),  # type: ignore[arg-type]
        Capacity(WORD, zones=WORD),  # type: ignore[arg-type]
        Notice("rebalance", "n", WORD, 1.0, 2.0),  # type: ignore[arg-type]
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_word_that_is_not_known_is_kept(value: object) -> None:
    again = decode(encode(value), type(value))
    assert again == value
    assert encode(again) == encode(value)


def test_a_cause_that_is_not_known_can_be_described() -> None:
    assert describe(WORD, ("a",), 2) == f"{WORD}: 2 nodes"  # type: ignore[arg-type]


def test_a_phase_that_is_not_known_is_not_guessed() -> None:
    """An older node that took it for one of its own could start workers."""
    data = encode(Round(1, "i", "started", (), "start", "")).replace(b"started", b"frozen")
    with pytest.raises(msgspec.ValidationError, match="phase"):
        decode(data, Round)


def stored(key: str, data: bytes, revision: int = 1) -> StoredValue:
    return StoredValue(key, data, revision, revision)


def test_what_cannot_be_read_is_named_until_it_can_be_or_is_gone() -> None:
    good, bad = encode(SETTINGS), b'{"min_nodes":"few"}'
    seen = fold(RunState(), [Reset((stored(KEYS.settings, good),), 1)], KEYS, 1.0, KEYS.all)
    assert not seen.blind and not seen.unreadable
    change = Change(KEYS.settings, stored(KEYS.settings, bad, 2), 2)
    seen = fold(seen, [change], KEYS, 1.0, KEYS.all)
    assert seen.settings == SETTINGS, "what was read before still stands"
    assert seen.blind.startswith("all/settings: ") and "min_nodes" in seen.blind
    again = fold(
        seen, [Change(KEYS.settings, stored(KEYS.settings, good, 3), 3)], KEYS, 1.0, KEYS.all
    )
    assert not again.unreadable
    gone = fold(seen, [Change(KEYS.settings, None, 3)], KEYS, 1.0, KEYS.all)
    assert not gone.unreadable
    reset = fold(seen, [Reset((), 4)], KEYS, 1.0, KEYS.all)
    assert not reset.unreadable


def test_another_nodes_value_that_cannot_be_read_blinds_nobody() -> None:
    change = Change(KEYS.ack("n"), stored(KEYS.ack("n"), b"\xff{"), 1)
    seen = fold(RunState(), [change], KEYS, 1.0, KEYS.nodes)
    assert list(seen.unreadable) == ["nodes/ack/n"]
    assert not seen.blind


def test_a_job_that_an_older_version_changes_keeps_what_a_newer_one_has_written() -> None:
    before = json.loads(msgspec.json.encode(replace(SPEC, env={"A": "1", "B": "2"})))
    before["new"] = {"x": 1}
    before["settings"]["new"] = [1]
    before["capacity"]["on_demand"] = WORD
    changed = replace(
        msgspec.json.decode(json.dumps(before), type=JobSpec),
        env={"B": "2"},
        settings=replace(SETTINGS, max_nodes=7),
    )
    after = json.loads(keeping_unknown(json.dumps(before).encode(), changed))
    assert after["new"] == {"x": 1} and after["settings"]["new"] == [1]
    assert after["settings"]["max_nodes"] == 7
    assert after["env"] == {"B": "2"}, "what this version knows is as it says"
    assert after["capacity"]["on_demand"] == WORD
