"""The holder names a slow node from what etcd has shown it, so that its event log tells why."""

from pathlib import Path

from test_event_log import KEYS, Agent, differences

from spotelastic.agent.actions import Lead
from spotelastic.agent.state.events import (
    BecameHolder,
    DaemonStarted,
    NodesRead,
    Registered,
    ZygoteStarted,
    ZygoteWarm,
)
from spotelastic.model.interval import Interval
from spotelastic.model.job import Settings
from spotelastic.model.node import Fingerprint, Node
from spotelastic.model.progress import Progress
from spotelastic.model.round import Member, Round
from spotelastic.rendezvous.decision import NameSlow
from spotelastic.rendezvous.slowness.paces import WINDOW
from spotelastic.store.codec import encode
from spotelastic.store.port import Change, Compare, StoredValue

NAMES = ("n0", "n1", "n2")


def change(key: str, value: object, revision: int) -> Change:
    return Change(key, StoredValue(key, encode(value), revision, revision), revision)


def holder(folder: Path) -> Agent:
    """The agent of n0, which decides for a round of three nodes that trains."""
    agent = Agent(folder)
    nodes = [Node(name, f"{name}-1", "10.0.0.1", "z", Fingerprint("3.11")) for name in NAMES]
    agent.tell(
        ZygoteStarted(),
        DaemonStarted("here:1"),
        ZygoteWarm(Fingerprint("3.11")),
        Registered(nodes[0]),
        BecameHolder(Compare("holder", "created", 4)),
        NodesRead(),
    )
    fixed = Settings(1, 3, snapshot_every=Interval(10), checkpoint_every=Interval(50))
    members = tuple(Member(n, f"{n}-1", at, "10.0.0.1", "z", 1) for at, n in enumerate(NAMES))
    round_ = Round(3, "r", "started", members, "start", "")
    agent.deliver(change(KEYS.settings, fixed, 1), change(KEYS.round, round_, 2))
    live = [change(KEYS.live(node.id), node, 3) for node in nodes]
    agent.deliver(*live, prefix=KEYS.nodes)
    return agent


def test_a_replay_names_the_node_that_was_named(tmp_path: Path) -> None:
    agent = holder(tmp_path)
    named = []
    for number in range(1, WINDOW + 2):
        for name in NAMES:
            own = 0.4 if name == "n1" else 0.2
            told = Progress(
                name, 3, 8 * number, 0.0, measured=number, own_time=own, waiting_time=0.42 - own
            )
            key = KEYS.progress(name)
            agent.deliver(change(key, told, 10 + number), prefix=KEYS.nodes)
        leads = [action for action in agent.decides().actions if isinstance(action, Lead)]
        named += [(number, each) for lead in leads for each in lead.actions]
    assert [number for number, _ in named] == [WINDOW, WINDOW + 1], "until it is on record"
    (_, first), *_ = named
    assert isinstance(first, NameSlow) and first.slow.node == "n1"
    assert differences(agent.written()) == []
