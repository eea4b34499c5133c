"""The event log of an agent: what is written is read back, bounded, without secrets, at no risk."""

import math
import os
import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
import pytest
from support.event_files import LogFile, load, parse
from support.event_replay import EVENTS, replay
from support.event_values import build

from spotelastic.agent import actions
from spotelastic.agent.decide import AgentDecision, decide
from spotelastic.agent.event_log.codec import decode, encode
from spotelastic.agent.event_log.log import EventLog, Origin, log_file
from spotelastic.agent.observe import observe
from spotelastic.agent.state.events import (
    Claimed,
    DaemonStarted,
    Exited,
    LocalEvent,
    Said,
    SessionLost,
    Signalled,
    StoreOpened,
    WorkersStarted,
    ZygoteGone,
    ZygoteStarted,
)
from spotelastic.agent.state.values import NEW, NodeState, RoundStore
from spotelastic.agent.watches import StoreChanged
from spotelastic.errors import UsageError
from spotelastic.model.job import Failure, Settings
from spotelastic.rendezvous.view import RunState, fold
from spotelastic.store.codec import encode as stored
from spotelastic.store.keys import Keys
from spotelastic.store.port import Change, Health, Reset, StoredValue

SECRET = 'tell "nobody"\nof it'
ORIGIN = Origin("run", "i-0a")
KEYS = Keys("run")


def sample(kind: Any) -> Any:
    """A value of this type, in which no field has its default."""
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return sample(next(each for each in args if each is not type(None)))
    if origin is tuple:
        return tuple(map(sample, args[:1] if args[1:] == (...,) else args))
    if origin is frozenset:
        return frozenset({sample(args[0])})
    if origin is Literal:
        return args[0]
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {sample(args[0]): sample(args[1])}
    if is_dataclass(kind) or (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
        return kind(**{name: sample(each) for name, each in get_type_hints(kind).items()})
    if isinstance(kind, type) and issubclass(kind, tuple):
        return kind(*map(sample, get_type_hints(kind).values()))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return next(iter(kind))
    return {str: "word", int: 7, float: math.inf, bool: True, bytes: b"bytes"}.get(kind, "any")


def test_each_event_and_each_state_is_read_back_as_it_was() -> None:
    assert len(EVENTS) == len(get_args(LocalEvent))
    for name, kind in EVENTS.items():
        event = sample(kind)
        assert build(kind, decode(encode(event))) == event, name
    seen, state = sample(RunState), sample(NodeState)
    assert build(RunState, decode(encode(seen))) == seen
    assert build(NodeState, decode(encode(state))) == state


def test_each_action_can_be_written() -> None:
    for action in get_args(actions.Action):
        told = decode(encode(sample(action)))
        assert told.keys() == {each.name for each in fields(action)}, action


# -- a log ----------------------------------------------------------------------------------------


class Agent:
    """What the loop of an agent does, without its effects."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.path = log_file(folder, ORIGIN.node)
        self.local, self.seen, self.now = NEW, RunState(), 1000.0
        self.log = EventLog(
            self.path, ORIGIN, self.local, self.seen, clock=lambda: self.now, **options
        )

    def tell(self, *told: LocalEvent) -> None:
        for event in told:
            before, self.local = self.local, observe(self.local, event, self.now)
            self.log.observed(event, self.now, before, self.local)

    def deliver(self, *items: Change | Reset | Health, prefix: str = KEYS.all) -> None:
        before, changed = self.seen, StoreChanged(prefix, items)
        self.seen = fold(before, items, KEYS, self.now, prefix)
        self.log.read(changed, self.now, before, self.seen)

    def decides(self) -> AgentDecision:
        self.now += 1.0
        decision = decide(self.local, self.seen, self.now, self.log.new_id)
        self.log.decided(self.local, self.seen, self.now, decision)
        return decision

    def trains(self) -> None:
        """Takes a while of its life, in which a worker is killed."""
        self.deliver(Reset((), 1), Health(True, 0.0))
        self.decides()
        self.tell(ZygoteStarted(), DaemonStarted("here:1"))
        self.decides()
        settings = StoredValue(KEYS.settings, stored(Settings(1, 2)), 2, 2)
        self.deliver(Change(KEYS.settings, settings, 2))
        alive = frozenset({"r/0", "r/1"})
        self.tell(WorkersStarted("r", 1, 0, 1, alive, 0), StoreOpened(RoundStore("r", "s", "a:1")))
        self.decides()
        self.tell(Exited("r/0", -9))
        self.decides()

    def written(self) -> tuple[LogFile, ...]:
        return load(self.path)


def differences(files: tuple[LogFile, ...]) -> list[str]:
    return [each.difference for each in replay(files) if each.difference]


def test_decisions_are_the_same_when_they_are_replayed(tmp_path: Path) -> None:
    agent = Agent(tmp_path)
    agent.trains()
    agent.tell(Signalled(15))
    agent.decides()
    with agent.log:
        pass
    told = list(replay(agent.written()))
    assert [each.difference for each in told if each.difference] == []
    assert told[0].actions == ("StartZygote", "StartDaemon")
    assert any("Exited id=r/0 code=-9" in line for line in told[3].because)
    assert told[-1].closed == ""


def test_the_first_other_decision_is_told_and_ends_the_replay(tmp_path: Path) -> None:
    agent = Agent(tmp_path)
    agent.trains()
    agent.tell(ZygoteGone())
    agent.decides()
    agent.decides()
    file = agent.written()[-1]
    records = [
        replace(each, told=("DaemonGone", {"type": "DaemonGone"}))
        if "ZygoteGone" in each.told
        else each
        for each in file.records
    ]
    told = list(replay((replace(file, records=tuple(records)),)))
    assert told[-1].because == ("DaemonGone",)
    assert told[-1].difference == ("recorded was StartZygote, and this version decides StartDaemon")


def test_two_files_are_kept_of_bounded_size_and_replay_as_one(tmp_path: Path) -> None:
    agent = Agent(tmp_path, limit=4000)
    for number in range(300):
        agent.tell(Claimed("r", number, None, "an error of some length, so that the file grows"))
        agent.decides()
    sizes = [path.stat().st_size for path in tmp_path.iterdir()]
    assert len(sizes) == 2 and max(sizes) < 6000
    files = agent.written()
    assert files[1].follows(files[0])
    assert differences(files) == []
    opened, *rest = files[1].records
    header, state, seen = opened.told
    reports = {**state["reports"], "step": 99}
    moved = replace(opened, told=(header, {**state, "reports": reports}, seen))
    found = differences((files[0], replace(files[1], records=(moved, *rest))))
    assert found == ["reports.step was 99, and is 0 here"]


def test_an_agent_that_starts_again_keeps_the_log_of_the_one_before(tmp_path: Path) -> None:
    Agent(tmp_path).trains()
    again = Agent(tmp_path)
    again.trains()
    before, now = again.written()
    assert not now.follows(before)
    assert differences((before, now)) == []
    assert sum(each.closed is None for each in replay((before, now))) == 8


def test_the_last_record_may_be_incomplete(tmp_path: Path) -> None:
    agent = Agent(tmp_path)
    agent.trains()
    data = agent.path.read_bytes()
    whole = parse(data, "it").records
    for size in range(len(data) - 40, len(data)):
        assert parse(data[:size], "it").records == whole[: len(parse(data[:size], "it").records)]
    with pytest.raises(UsageError, match="it is not the event log of an agent"):
        parse(b"something else", "it")
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        load(tmp_path / "none")


def test_how_an_agent_crashed_is_its_last_record(tmp_path: Path) -> None:
    agent = Agent(tmp_path)
    with pytest.raises(RuntimeError), agent.log:
        agent.trains()
        raise RuntimeError("what nobody foresaw")
    last = list(replay(agent.written()))[-1]
    assert last.closed is not None and "RuntimeError: what nobody foresaw" in last.closed


def test_no_secret_gets_into_the_file(tmp_path: Path) -> None:
    for secret in (SECRET, "hunter2-hunter2", "ünïcödé"):
        no_trace_of(secret, Agent(tmp_path, secrets=(secret,)))


def no_trace_of(secret: str, agent: Agent) -> None:
    agent.tell(SessionLost(f"etcd said: {secret}"))
    failure = Failure("f", "i-0a", "r", 0, 0, 1.0, 1, secret, f"Traceback\n{secret}\n")
    value = StoredValue(KEYS.failure("i-0a"), msgspec.json.encode(failure), 3, 3)
    agent.deliver(Change(value.key, value, 3), prefix=KEYS.nodes)
    agent.decides()
    agent.tell(Said(secret))
    agent.decides()
    data = agent.path.read_bytes()
    for part in (secret, *secret.splitlines()):
        assert part.encode() not in data
        assert msgspec.json.encode(part)[1:-1] not in data
    assert differences(agent.written()) == []


def test_a_full_disk_ends_the_log_and_not_the_agent(tmp_path: Path, said: list[str]) -> None:
    agent = Agent(tmp_path)
    open_files = Path("/proc/self/fd").iterdir()
    [written] = [int(each.name) for each in open_files if each.resolve() == agent.path]
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, written)
    os.close(full)
    agent.trains()
    with agent.log:
        agent.trains()
    assert [line.partition(": ")[2] for line in said] == [
        "No space left on device: this node keeps no event log"
    ]


def test_a_folder_that_takes_no_file_ends_the_log_and_not_the_agent(
    tmp_path: Path, said: list[str]
) -> None:
    (tmp_path / "file").touch()
    agent = Agent(tmp_path / "file")
    agent.trains()
    assert said == [f"{agent.path}: File exists: this node keeps no event log"]


def test_an_event_that_cannot_be_written_is_told_of(tmp_path: Path) -> None:
    agent = Agent(tmp_path)
    agent.tell(SessionLost("a lone surrogate: \udcff"))
    agent.decides()
    assert "was not recorded" in differences(agent.written())[0]
