"""What an agent's machine does when a process of it has gone just now, or refuses something."""

import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from spotelastic_checkpoints.errors import ArenaFull
from spotelastic_checkpoints.protocol.agent_client import DaemonClient
from spotelastic_checkpoints.types import DaemonStatus
from support.simulation.node_state import changed, node_state
from support.store.memory_store import MemoryStore
from test_worker_environment import CONFIG, MEMBERS, ROUND

from spotelastic.agent import actions
from spotelastic.agent.checkpoints import Checkpoints
from spotelastic.agent.config import AgentConfig
from spotelastic.agent.decide import decide
from spotelastic.agent.executor import AgentExecutor
from spotelastic.agent.node_processes import NodeProcesses
from spotelastic.agent.observe import observe
from spotelastic.agent.peer_traffic import Sent
from spotelastic.agent.round_stores import STORE_TRIES, RoundStores
from spotelastic.agent.state.events import Exited, LocalEvent, SpareStoreStarted, StoreOpened
from spotelastic.agent.state.values import NEW, NodeState, RoundStore, Workers
from spotelastic.agent.workers.pool import StartOrder, Warm, Zygote
from spotelastic.clock import unbroken
from spotelastic.errors import EnvironmentFailure
from spotelastic.model.ids import new_id
from spotelastic.model.node import Fingerprint, Node
from spotelastic.model.progress import Event, Progress
from spotelastic.model.round import Member, Round
from spotelastic.rendezvous.view import RunState
from spotelastic.store.codec import decode
from spotelastic.store.keys import Keys
from spotelastic.store.session import Session

CLAIMED = replace(ROUND, epoch=1)
STATUS = DaemonStatus("", (), None, ())


def after(local: NodeState, told: Sequence[Any]) -> NodeState:
    for event in told:
        local = observe(local, event, 1.0)
    return local


class Gone(Zygote):
    """A zygote that has been killed, which its reader has told already."""

    def __init__(self, *_: object, **__: object) -> None:
        self.warm = True

    def start(self, order: StartOrder, *output: int) -> None:
        raise BrokenPipeError

    def close(self) -> None:
        pass


class Idle(Checkpoints):
    """A checkpoint daemon that does as it is told."""

    def __init__(self) -> None:
        self.socket = Path("/daemon.sock")

    def begin(self, round_: Round, member: Member) -> None:
        pass

    def close(self) -> None:
        pass


class Answering(Idle):
    """A daemon that holds nothing, and says so."""

    @property
    def client(self) -> DaemonClient:
        client: DaemonClient = cast(Any, SimpleNamespace(status=lambda: STATUS))
        return client


def processes(
    config: AgentConfig,
    zygote: type[Zygote],
    daemon: Checkpoints,
    post: Callable[[LocalEvent | Warm], None] = lambda event: None,
) -> NodeProcesses:
    """Of a node whose zygote was started."""
    made = NodeProcesses(config, post, checkpoints=daemon, start_zygote=zygote)
    made.do(actions.StartZygote(), NEW, RunState(settings=config.settings))
    return made


def test_workers_that_no_zygote_was_there_to_start_have_ended(tmp_path: Path) -> None:
    posted: list[LocalEvent | Warm] = []
    config = replace(CONFIG, state=tmp_path, logs=tmp_path)
    machine = processes(config, Gone, Idle(), posted.append)
    try:
        start = actions.StartWorkers(ROUND, MEMBERS[1])
        told = machine.do(start, NEW, RunState(settings=config.settings))
    finally:
        machine.close()
    local = after(NEW, told)
    assert local.workers is not None and local.workers.alive == {"r3/0", "r3/1"}
    assert posted == [Exited(name, -signal.SIGKILL) for name in ("r3/0", "r3/1")]
    local = after(local, [*posted, *posted])  # the reader may tell of them as well
    assert local.workers is not None and not local.workers.alive
    assert [each.local_rank for each in local.workers.exits] == [0, 1]


class Poor(Idle):
    """One that lacks something, so many times."""

    def __init__(self, refusals: int) -> None:
        super().__init__()
        self.refusals = refusals

    def begin(self, round_: Round, member: Member) -> None:
        self.refusals -= 1
        if self.refusals >= 0:
            raise ArenaFull("no memory left to map slot-0-1")


@pytest.mark.parametrize(
    "action", [actions.StartWorkers(CLAIMED, MEMBERS[1]), actions.AdoptEpoch(CLAIMED, MEMBERS[1])]
)
def test_a_daemon_that_refuses_something_is_asked_again(
    tmp_path: Path, said: list[str], action: actions.Action
) -> None:
    store = MemoryStore(unbroken)
    session = Session(store, 2.0, lambda reason: None)
    config = replace(CONFIG, state=tmp_path, logs=tmp_path)
    actor = AgentExecutor(config, store, session, processes(config, Gone, Poor(2)))
    seen, workers = RunState(settings=config.settings, round=CLAIMED), None
    if isinstance(action, actions.AdoptEpoch):
        workers = Workers("r3", 3, 2, 0, 0.0, frozenset({"r3/0"}))
    node = Node(CONFIG.node, "b", "", "", Fingerprint())
    local = before = node_state(node=node, zygote=True, daemon="there:1", workers=workers)
    try:
        for _ in range(2):
            local = after(local, actor.perform(local, seen, action))
            assert changed(local, said=frozenset(), write_at=0.0, ask_at=0.0) == before
            ask_at = local.retries.ask_at
            waiting = decide(local, seen, ask_at - 0.01, new_id)
            assert action not in waiting.actions
            assert waiting.wake_at <= ask_at
            assert action in decide(local, seen, ask_at, new_id).actions
        assert said == ["checkpoints: no memory left to map slot-0-1"]
        local = after(local, actor.perform(local, seen, action))
    finally:
        actor.close()
        session.close()
    assert local.workers is not None and local.workers.epoch == 1


class Refusing(Gone):
    """A zygote whose stores tell why they cannot listen."""

    def start(self, order: StartOrder, *output: int) -> None:
        os.write(output[0], b"Resource temporarily unavailable\n")

    def end(self, ids: Sequence[str], sig: int = signal.SIGKILL) -> frozenset[str]:
        return frozenset()


def test_a_node_on_which_no_round_store_starts_gives_up_in_a_line(tmp_path: Path) -> None:
    config = replace(CONFIG, state=tmp_path, logs=tmp_path)
    machine = processes(config, Refusing, Idle())
    local, opens = NEW, actions.OpenStore(ROUND)
    try:
        for _ in range(STORE_TRIES - 1):
            local = after(local, machine.do(opens, local, RunState(settings=config.settings)))
            assert local.store.round_store is None
        with pytest.raises(EnvironmentFailure, match="cannot be started here: Resource temp"):
            machine.do(opens, local, RunState(settings=config.settings))
    finally:
        machine.close()


class Silent(Refusing):
    """A zygote whose first store never tells its port; the next one does."""

    def __init__(self, *_: object, **__: object) -> None:
        self.held: list[int] = []
        self.ended: list[str] = []

    def start(self, order: StartOrder, *output: int) -> None:
        if self.held:
            os.write(output[0], b"4711\n")
        else:
            self.held.append(os.dup(output[0]))

    def end(self, ids: Sequence[str], sig: int = signal.SIGKILL) -> frozenset[str]:
        self.ended += ids
        return frozenset()


def test_a_spare_store_that_tells_no_port_is_ended_and_another_one_is_taken(tmp_path: Path) -> None:
    config, zygote = replace(CONFIG, state=tmp_path), Silent()
    stores = RoundStores(config)
    (spare,) = stores.start_spare(zygote)
    assert isinstance(spare, SpareStoreStarted)
    (told,) = stores.open(zygote, ROUND, spare.id, ())
    assert told == StoreOpened(RoundStore("r3", "store/r3", "10.0.0.2:4711", number=3))
    assert zygote.ended == [spare.id]
    os.close(*zygote.held)
    stores.close()


def test_a_spare_store_on_a_node_without_a_zygote_is_tried_again_later(tmp_path: Path) -> None:
    stores = RoundStores(replace(CONFIG, state=tmp_path))
    assert list(stores.start_spare(None)) == [SpareStoreStarted("")]
    assert list(stores.start_spare(Gone())) == [SpareStoreStarted("")]
    stores.close()
    given = RoundStores(replace(CONFIG, state=tmp_path, master_port=4711))
    assert list(given.start_spare(Silent())) == [SpareStoreStarted("", never=True)]


def test_the_first_node_tells_of_a_round_that_cannot_use_efa(
    tmp_path: Path, said: list[str]
) -> None:
    config = replace(CONFIG, state=tmp_path, logs=tmp_path, efa=True)
    store = MemoryStore(unbroken)
    session = Session(store, 2.0, lambda reason: None)
    actor = AgentExecutor(config, store, session, processes(config, Gone, Idle()))
    seen = RunState(settings=config.settings)
    try:
        for zones in ("aa", "ab"):
            members = tuple(
                replace(each, zone=zone) for each, zone in zip(MEMBERS, zones, strict=True)
            )
            for member in members:
                start = actions.StartWorkers(replace(ROUND, members=members), member)
                actor.perform(NEW, seen, start)
        (line,) = [line for line in said if "zones" in line]
        assert line.startswith("round 3 spans a and b, and EFA does not reach other zones")
        keys = Keys(config.run)
        (stored,), _ = store.range(keys.event())
        assert decode(stored.data, Event).kind == "network"
    finally:
        actor.close()
        session.close()


def test_progress_tells_what_was_sent_to_the_nodes_of_the_round(tmp_path: Path) -> None:
    config = replace(CONFIG, state=tmp_path, logs=tmp_path)
    store, asked = MemoryStore(unbroken), list[Round | None]()
    session = Session(store, 2.0, lambda reason: None)

    def sent(round_: Round | None) -> Sent:
        asked.append(round_)
        return Sent(crossed=7, crossing=3.6, sending=9.4)

    actor = AgentExecutor(config, store, session, processes(config, Gone, Answering()), sent=sent)
    try:
        actor.perform(NEW, RunState(round=ROUND), actions.TellProgress())
        assert asked == [ROUND]
        (stored,), _ = store.range(Keys(config.run).progress())
        told = decode(stored.data, Progress)
        assert (told.crossed, told.crossing, told.sending) == (7, 4, 9)
    finally:
        actor.close()
        session.close()
