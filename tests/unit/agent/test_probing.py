"""Whether a peer is gone is asked of its machine, not of its lease alone."""

import socket
from collections.abc import Iterator
from dataclasses import replace

import pytest
from spotelastic_checkpoints import addresses
from support.processes.patience import PATIENT
from support.processes.ports import HOST, held_ports
from support.simulation.node_state import changed
from test_agent_decide import NOW, ROUND, decided, local, seen

from spotelastic.agent import actions as do
from spotelastic.agent.in_place.probing import refusing
from spotelastic.agent.observe import observe
from spotelastic.agent.state.events import HolderDeposed, PeersProbed
from spotelastic.model.job import Failure
from spotelastic.store.port import Compare

HELD = Compare("holder", "created", 7)
BROKEN = (0, "RuntimeError: a peer has closed its connection", "")


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0), backlog=1) as made:
        yield made


def of(listener: socket.socket) -> str:
    return addresses.join(*listener.getsockname()[:2])


def test_who_listens_is_there_and_whose_port_is_closed_is_gone(listener: socket.socket) -> None:
    here = of(listener)
    with held_ports(1) as (port,):  # else it may be another program's by then
        gone = addresses.join(HOST, port)
        assert refusing([here, gone], within=PATIENT) == {gone}
    assert refusing([]) == frozenset()


def test_of_what_does_not_answer_in_time_nothing_is_known(listener: socket.socket) -> None:
    """As with a machine that vanished: its answer, if any, comes too late."""
    here = of(listener)
    with socket.create_connection(listener.getsockname()), socket.socket() as more:
        more.setblocking(False)
        more.connect_ex(listener.getsockname())  # its queue is full: it answers nobody
        assert refusing([here], within=0.1) == frozenset()
    assert refusing(["a-name:1", "10.0.0.1:0"], within=0.0) == frozenset()


# -- what follows ---------------------------------------------------------------------------------


def failure(node: str, *, broken: bool = True, round_: str = "r1") -> Failure:
    return Failure(node, node, round_, 0, 0, NOW, 1, rests=True, broken=broken)


def test_a_holder_looks_at_members_that_have_told_nothing_once() -> None:
    node = changed(local(), leadership=HELD, nodes_seen=True)
    told = replace(seen(timeout=0, failures={"b": failure("b")}), holder="b", revision=9)
    probes = do.ProbePeers(ROUND, ("a",))
    assert probes in decided(node, told, NOW).actions
    probed = observe(node, PeersProbed("r1", frozenset("a"), frozenset()), NOW)
    assert probes not in decided(probed, told, NOW).actions
    for other in (failure("b", broken=False), failure("b", round_="r0")):
        unlike = replace(told, failures={"b": other})
        assert probes not in decided(node, unlike, NOW).actions
    heard = replace(told, failures={"b": failure("b"), "a": failure("a")})
    assert probes not in decided(node, heard, NOW).actions


def test_a_holder_is_deposed_only_by_a_member_whose_collective_has_failed() -> None:
    probes, deposes = do.ProbePeers(ROUND, ("a",)), do.Depose("a")
    broken, whole = local(broken=BROKEN, can_rest=True), local(can_rest=True)
    assert probes in decided(broken, seen(timeout=0), NOW).actions
    assert probes not in decided(whole, seen(timeout=0), NOW).actions
    answers = PeersProbed("r1", frozenset("a"), frozenset())
    assert deposes not in decided(observe(broken, answers, NOW), seen(timeout=0), NOW).actions
    gone = PeersProbed("r1", frozenset("a"), frozenset("a"))
    assert deposes in decided(observe(broken, gone, NOW), seen(timeout=0), NOW).actions
    assert deposes not in decided(observe(whole, gone, NOW), seen(timeout=0), NOW).actions
    late = PeersProbed("r0", gone.nodes, gone.refusing)
    assert deposes not in decided(observe(broken, late, NOW), seen(timeout=0), NOW).actions


def test_a_node_tells_where_its_new_daemon_is() -> None:
    """Where the old one was, nobody listens: the node would be taken for gone."""
    assert do.Register() not in decided(local(), seen(timeout=0), NOW).actions
    again = changed(local(), daemon="10.0.0.2:2")
    assert do.Register() in decided(again, seen(timeout=0), NOW).actions
    without = changed(local(), daemon="")
    assert do.Register() not in decided(without, seen(timeout=0), NOW).actions


def test_a_holder_steps_down_as_soon_as_it_sees_that_another_one_is() -> None:
    node = changed(local(), leadership=HELD, nodes_seen=True)
    before = replace(seen(timeout=0), revision=HELD.revision - 1)
    assert do.StepDown() not in decided(node, before, NOW).actions, "its own key comes yet"
    after = replace(before, revision=HELD.revision)
    assert do.StepDown() in decided(node, after, NOW).actions
    assert do.StepDown() not in decided(node, replace(after, holder="b"), NOW).actions
    assert observe(node, HolderDeposed(), NOW).membership.leadership is None
