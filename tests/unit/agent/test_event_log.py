"""The event log of an agent: a line for all that happens, bounded, without secrets, at no risk."""

import math
import os
import types
from collections.abc import Mapping
from dataclasses import is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
import pytest

from spotelastic.agent import actions
from spotelastic.agent.actions import TellProgress
from spotelastic.agent.decide import AgentDecision, decide
from spotelastic.agent.event_log.log import ORDINARY, EventLog, earlier, log_file, was_killed
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
    ZygoteStarted,
)
from spotelastic.agent.state.values import NEW, RoundStore
from spotelastic.agent.watches import StoreChanged
from spotelastic.model.job import Failure, Settings
from spotelastic.rendezvous.view import RunState, fold
from spotelastic.store.codec import encode as stored
from spotelastic.store.keys import Keys
from spotelastic.store.port import Change, Health, Reset, StoredValue

SECRET = 'tell "nobody"\nof it'
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
    if (isinstance(kind, type) and is_dataclass(kind)) or (
        isinstance(kind, type) and issubclass(kind, msgspec.Struct)
    ):
        return kind(**{name: sample(each) for name, each in get_type_hints(kind).items()})
    if isinstance(kind, type) and issubclass(kind, tuple):
        return kind(*map(sample, get_type_hints(kind).values()))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return next(iter(kind))
    return {str: "word", int: 7, float: math.inf, bool: True, bytes: b"bytes"}.get(kind, "any")


# -- a log ----------------------------------------------------------------------------------------


class Agent:
    """What the loop of an agent does, without its effects."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.path = log_file(folder, "i-0a")
        self.local, self.seen, self.now = NEW, RunState(), 1000.0
        self.log = EventLog(self.path, KEYS, "i-0a", clock=lambda: self.now, **options)

    def tell(self, *told: LocalEvent) -> None:
        for event in told:
            self.local = observe(self.local, event, self.now)
            self.log.observed(event, self.now, self.local)

    def deliver(self, *items: Change | Reset | Health, prefix: str = KEYS.all) -> None:
        self.seen = fold(self.seen, items, KEYS, self.now, prefix)
        self.log.read(StoreChanged(prefix, items), self.now, self.seen)

    def decides(self) -> AgentDecision:
        self.now += 1.0
        decision = decide(self.local, self.seen, self.now, lambda: "id")
        self.log.decided(self.now, decision)
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


def lines(path: Path) -> list[dict[str, Any]]:
    return [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]


def told(path: Path) -> list[object]:
    """What each line tells, without its time: an event or action by its type's name."""
    found: list[object] = []
    for line in lines(path):
        match line:
            case {"event": event}:
                found.append(event["type"])
            case {"decided": actions}:
                found.append([name for action in actions for name in action])
            case {"store": values}:
                found.append(values)
            case _:
                found.append(next(key for key in line if key != "at"))
    return found


def test_each_event_and_each_action_can_be_written(tmp_path: Path) -> None:
    agent, kinds = Agent(tmp_path), (*get_args(LocalEvent), *get_args(actions.Action))
    every = {kind: sample(kind) for kind in kinds if kind not in ORDINARY}
    events = [every[kind] for kind in get_args(LocalEvent) if kind in every]
    wanted = [every[kind] for kind in get_args(actions.Action) if kind in every]
    for event in events:
        agent.log.observed(event, 1.0, NEW)
    agent.log.decided(2.0, AgentDecision(tuple(wanted), math.inf))
    opened, *rest, decided = told(agent.path)
    assert opened == "opened"
    assert rest == [type(event).__name__ for event in events]
    assert decided == [type(action).__name__ for action in wanted]


def test_a_line_tells_each_thing_that_happened_and_what_was_decided(tmp_path: Path) -> None:
    agent = Agent(tmp_path)
    agent.trains()
    agent.tell(Signalled(15))
    agent.decides()
    with agent.log:
        pass
    opened, etcd, started, *rest = told(agent.path)
    assert (opened, etcd, started) == (
        "opened",
        {"answers": True},
        ["StartZygote", "StartDaemon"],
    )
    assert rest[:2] == ["ZygoteStarted", "DaemonStarted"]
    [settings] = [each for each in rest if isinstance(each, dict)]
    assert settings["all/settings"]["min_nodes"] == 1
    names = [each for each in rest if isinstance(each, str)]
    assert names[-3:] == ["Exited", "Signalled", "ended"]
    [exited] = [line["event"] for line in lines(agent.path) if "Exited" in str(line)]
    assert (exited["id"], exited["code"]) == ("r/0", -9)


def test_two_files_are_kept_of_bounded_size(tmp_path: Path) -> None:
    agent = Agent(tmp_path, limit=4000)
    for number in range(300):
        agent.tell(Claimed("r", number, None, "an error of some length, so that the file grows"))
        agent.decides()
    sizes = [path.stat().st_size for path in tmp_path.iterdir()]
    assert len(sizes) == 2 and max(sizes) < 6000
    newest = [
        line["event"]
        for path in (earlier(agent.path), agent.path)
        for line in lines(path)
        if "event" in line
    ]
    assert newest == [
        msgspec.to_builtins(
            Claimed("r", number, None, "an error of some length, so that the file grows")
        )
        for number in range(300 - len(newest), 300)
    ]


def test_what_changes_all_the_time_does_not_fill_the_log(tmp_path: Path) -> None:
    agent = Agent(tmp_path)
    for kind in ORDINARY[:2]:
        agent.log.observed(sample(kind), 1.0, NEW)
    agent.log.decided(1.0, AgentDecision((TellProgress(),), math.inf))
    for key in (KEYS.progress("n"), KEYS.snapshots("n"), KEYS.live("n")):
        agent.deliver(Change(key, None, 1), prefix=KEYS.nodes)
    agent.deliver(Change(KEYS.job, StoredValue(KEYS.job, b"{", 2, 2), 2))
    agent.decides()
    assert told(agent.path)[1:3] == [
        {"nodes/live/n": None},
        {"all/job": "not a value of spotelastic"},
    ]


def test_an_agent_that_starts_again_keeps_the_log_of_the_one_before(tmp_path: Path) -> None:
    killed = Agent(tmp_path)
    killed.trains()
    before = killed.path.read_bytes()
    Agent(tmp_path).trains()
    assert earlier(killed.path).read_bytes() == before


def test_a_log_tells_whether_its_agent_was_killed_also_while_it_wrote(tmp_path: Path) -> None:
    agent = Agent(tmp_path)
    assert not was_killed(tmp_path / "none")
    agent.trains()
    assert was_killed(agent.path)
    with agent.log:
        pass
    assert not was_killed(agent.path)
    data = agent.path.read_bytes()
    for size in range(len(data) - 40, len(data) - 1):
        agent.path.write_bytes(data[:size])
        assert was_killed(agent.path), data[:size]


def test_how_an_agent_crashed_is_its_last_line(tmp_path: Path) -> None:
    agent = Agent(tmp_path)
    with pytest.raises(RuntimeError), agent.log:
        agent.trains()
        raise RuntimeError("what nobody foresaw")
    assert "RuntimeError: what nobody foresaw" in lines(agent.path)[-1]["ended"]


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
    assert len(lines(agent.path)) == 6, "each is JSON still"


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
    assert "UnicodeEncodeError" in lines(agent.path)[1]["unwritten"]
