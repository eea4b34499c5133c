"""Real nodes in networks of their own, whose links are cut and healed again."""

import contextlib
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.processes.network_namespaces import Network, network, sweep, why_not
from support.processes.run_launcher import SCRIPT, Run, running
from support.processes.tcp_proxy import Proxy
from support.store.etcd_members import wait_until

from spotelastic.store.etcd_server.process import EtcdMember, MemberConfig

pytestmark = pytest.mark.faults

STEPS, SLOW_STEPS = (0.02,), (0.05,)


@pytest.fixture(scope="module")
def networks_work() -> None:
    sweep()
    if reason := why_not():
        pytest.skip(reason)


@dataclass
class Site:
    """A network with an etcd on a host of its own, and a run of nodes on further hosts."""

    network: Network
    run: Run

    def add(self, *names: str) -> None:
        for name in names:
            self.run.add(name, host=self.network.host(name))


@pytest.fixture
def site(networks_work: None, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Site]:
    """The fixture's parameter is the step time in seconds, and further flags of the nodes."""
    step_time, *flags = request.param
    with contextlib.ExitStack() as stack:
        net = stack.enter_context(network())
        host = net.host("etcd")
        endpoint = f"{host.address}:2379"
        config = MemberConfig(
            "etcd", tmp_path / "etcd", endpoint, f"{host.address}:2380", fsync=False
        )
        member = EtcdMember(config, log=tmp_path / "etcd.log")
        stack.callback(member.stop)
        with host.entered():
            member.start()
        view = stack.enter_context(contextlib.closing(Proxy(endpoint, host.entered)))
        run = stack.enter_context(
            running(
                endpoint,
                uuid.uuid4().hex,
                tmp_path,
                nnodes="1:4",
                view=view.endpoint,
                flags=flags,
                script=(str(SCRIPT), "100000", str(step_time)),
            )
        )
        yield Site(net, run)


@pytest.mark.soak
@pytest.mark.parametrize("site", [STEPS], indirect=True)
def test_the_holder_cut_off_from_etcd_is_replaced_and_comes_back_as_a_newcomer(site: Site) -> None:
    """Its peers still reach it. Yet it is out of the run when its lease has run out, because
    nobody can tell it apart from a dead one; and it does not know that until it is back."""
    site.add("a", "b", "c")
    begun = site.run.trains("a", "b", "c")
    site.run.commits(beyond=begun.resume.step)
    before = site.run.trains("a", "b", "c")
    seen = site.run.wait(lambda s: s.holder, "a holder")
    away = seen.holder
    others = sorted({"a", "b", "c"} - {away})
    site.network.cut([away], ["etcd"])
    after = site.run.trains(*others, beyond=site.run.step() + 20)
    assert after.number == before.number + 1 and not after.charged
    stale = site.run.nodes[away]
    wait_until(lambda: not stale.workers(), "it trains no more")
    newest = site.run.newest()
    assert newest.epoch in (before.epoch, after.epoch)
    site.network.heal()
    again = site.run.trains("a", "b", "c", beyond=site.run.step() + 20)
    assert [member.node for member in again.members][-1] == away, "as a newcomer"
    assert again.cause == "arrival" and again.number == after.number + 1
    assert again.resume.step >= newest.step
    assert (site.run.newest().epoch, site.run.newest().step) >= (newest.epoch, newest.step)


@pytest.mark.soak
@pytest.mark.parametrize("site", [STEPS], indirect=True)
def test_nodes_that_lose_each_other_but_not_etcd_go_on_when_the_link_is_back(site: Site) -> None:
    """Nobody's lease runs out and nothing fails: the collectives wait, and so does the run."""
    site.add("a", "b")
    before = site.run.trains("a", "b", beyond=55)
    workers = {name: node.workers() for name, node in site.run.nodes.items()}
    site.network.cut(["a"], ["b"])
    stuck = site.run.stands_still()
    site.network.heal()
    assert site.run.trains("a", "b", beyond=stuck + 20) == before
    assert {name: node.workers() for name, node in site.run.nodes.items()} == workers


@pytest.mark.soak
@pytest.mark.parametrize("site", [(*STEPS, "--stall-timeout", "2")], indirect=True)
def test_a_link_that_stays_cut_is_a_stall_and_training_goes_on_once_it_is_back(site: Site) -> None:
    """The detector restarts what hangs, in vain while the link is cut; nothing is lost by that."""
    site.add("a", "b")
    before = site.run.trains("a", "b", beyond=55)
    site.network.cut(["a"], ["b"])
    newest = site.run.newest()
    seen = site.run.wait(lambda s: s.round and s.round.number > before.number, "a new round")
    assert seen.round is not None and seen.round.cause == "stall"
    site.network.heal()
    after = site.run.trains("a", "b")
    assert after.resume.kind == "memory" and after.resume.step >= newest.step
    site.run.commits(beyond=after.resume.step)


NAMES = "abcd"
"""Two on each side, which could train."""


@pytest.mark.soak
@pytest.mark.parametrize("site", [SLOW_STEPS], indirect=True)
def test_of_a_split_only_the_side_with_etcd_trains(site: Site) -> None:
    site.add(*NAMES)
    before = site.run.trains(*NAMES, beyond=15)
    seen = site.run.wait(lambda s: s.holder, "a holder")
    other = next(name for name in NAMES if name != seen.holder)
    few = [seen.holder, other]
    many = sorted(set(NAMES) - set(few))
    stale = {name: site.run.nodes[name].workers() for name in few}
    site.network.cut(few, [*many, "etcd"])
    after = site.run.trains(*many, beyond=site.run.step() + 20)
    newest = site.run.newest()
    assert {name: site.run.nodes[name].workers() for name in few} == stale, "no round of their own"
    assert after.parent == before.incarnation and not after.charged
    site.network.heal()
    again = site.run.trains(*NAMES, beyond=site.run.step() + 20)
    assert not any(pid in site.run.nodes[n].workers() for n in few for pid in stale[n])
    assert [m.node for m in again.members][:2] == [m.node for m in after.members]
    assert again.resume.step >= newest.step and not again.charged
    assert again.lineage[-1].incarnation == again.parent
    site.run.commits(beyond=again.resume.step)
