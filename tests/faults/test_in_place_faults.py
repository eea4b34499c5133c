"""Real nodes whose workers outlive their round: no step is lost, and no process of the others."""

import contextlib
import os
import signal
import uuid
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from support.processes.run_launcher import Run, comm, descendants, running, vanish
from support.store.etcd_members import wait_until

from spotelastic.rendezvous.view import RunState
from spotelastic.store.etcd_server.process import EtcdMember, standalone

pytestmark = pytest.mark.faults

SCRIPT = Path(__file__).parent.parent / "support/scripts/train_in_place.py"
ALL = ("a", "b", "c")


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdMember]:
    with standalone(tmp_path / "etcd") as member:
        yield member


@pytest.fixture
def three(etcd: EtcdMember, tmp_path: Path) -> Iterator[Run]:
    """Three nodes that train, of which all but one may be lost."""
    script = (str(SCRIPT), str(tmp_path), "100000", "0.02")
    name = uuid.uuid4().hex
    with running(etcd.endpoint, name, tmp_path, nnodes="1:4", script=script) as run:
        for node in ALL:
            run.add(node)
        # Some may have come a moment later, and entered in place already.
        begun = run.trains(*ALL)
        run.trains(*ALL, beyond=begun.resume.step + 20)
        yield run


def made(run: Run, node: str) -> list[tuple[int, int, str]]:
    """(step, pid, sum of the parameters) of each step that counts on the node."""
    rows = (run.folder / f"{node}.steps").read_text().splitlines(keepends=True)
    words = [row.split() for row in rows if row.endswith("\n")]
    return [(int(step), int(pid), total) for _, step, _, pid, total in words]


def none_was_lost(run: Run, untold: int = 0) -> None:
    """No node has made a step twice or left one out, and all had the same parameters at each. Those
    that came have prepared beside the others. An `untold` step is one in whose end all were ended.
    """
    sums: dict[int, set[str]] = {}
    for node in run.nodes:
        steps = made(run, node)
        for (before, *_), (after, *_) in pairwise(steps):
            assert after > before, f"{node} has made step {after} after step {before}"
        for step, _, total in steps:
            sums.setdefault(step, set()).add(f"{float(total):.9g}")
    assert sorted({*sums, untold} - {0}) == list(range(min(sums), max(sums) + 1))
    assert not {step: found for step, found in sums.items() if len(found) > 1}
    assert not [file.read_text() for file in run.folder.glob("logs/*/logs/0000/error-*.json")]


def kept_its_process(run: Run, node: str, pid: int) -> None:
    assert run.nodes[node].workers() == [pid]
    steps = [step for step, *_ in made(run, node)]
    assert steps == list(range(steps[0], steps[0] + len(steps)))


def test_a_worker_that_is_killed_costs_no_step_and_no_process_of_its_peers(three: Run) -> None:
    pids = {node: three.nodes[node].workers()[0] for node in ALL}
    before = three.trains(*ALL)
    os.kill(pids["c"], signal.SIGKILL)
    three.wait(lambda s: s.round and s.round.number > before.number + 1, "c has come back")
    again = three.trains(*ALL)
    assert again.in_place == "keep", "it restores alone"
    two = three.record(again.number - 1).round  # it may be over before anybody tells a step
    assert {member.node for member in two.members} == {"a", "b"}
    assert (two.cause, two.in_place) == ("worker", "keep")
    three.trains(*ALL, beyond=again.resume.step + 20)
    for node in "a", "b":
        kept_its_process(three, node, pids[node])
    none_was_lost(three)


@pytest.mark.soak
def test_a_zygote_that_is_killed_delays_nobody(three: Run) -> None:
    """Not even that of the node which opens the store of the next round."""
    first = three.trains(*ALL).members[0].node
    others = [node for node in ALL if node != first]
    pids = {node: three.nodes[node].workers()[0] for node in others}
    (killed,) = _zygotes(three, first)
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: _zygotes(three, first) not in ([], [killed]), "another zygote")
    anew = _zygotes(three, first)[-1]
    os.kill(anew, signal.SIGSTOP)  # it is not warm before the others have gone on
    two = three.trains(*others)
    assert (two.in_place, two.missed) == ("keep", ()), "nobody was waited for in vain"
    three.trains(*others, beyond=two.resume.step + 20)
    os.kill(anew, signal.SIGCONT)
    again = three.trains(*ALL)
    three.trains(*ALL, beyond=again.resume.step + 20)
    for node in others:
        kept_its_process(three, node, pids[node])
    none_was_lost(three)


def _zygotes(run: Run, node: str) -> list[int]:
    below = descendants(run.nodes[node].process.pid)
    return [pid for pid in below if comm(pid).startswith("se-zygote")]


def _vanish(run: Run) -> None:
    vanish(run.nodes.pop("c"))


def _freeze(run: Run) -> None:
    agent = run.nodes["c"].process.pid
    for pid in (agent, *descendants(agent)):
        os.kill(pid, signal.SIGSTOP)


def _freeze_worker(run: Run) -> None:
    os.kill(run.nodes["c"].workers()[0], signal.SIGSTOP)
    os.kill(run.nodes["c"].process.pid, signal.SIGSTOP)


def _kill_agent(run: Run) -> None:
    run.nodes["c"].kill()


def _leave(run: Run) -> None:
    run.nodes["c"].signal(signal.SIGTERM)


@pytest.mark.soak
@pytest.mark.parametrize("strike", [_vanish, _freeze, _freeze_worker, _kill_agent, _leave])
def test_a_node_that_goes_costs_no_step_and_no_process(
    three: Run, strike: Callable[[Run], None]
) -> None:
    pids = {node: three.nodes[node].workers()[0] for node in ("a", "b")}
    strike(three)
    two = three.trains("a", "b")
    assert two.in_place == "keep"
    three.trains("a", "b", beyond=two.resume.step + 20)
    for node, pid in pids.items():
        kept_its_process(three, node, pid)
    if "c" in three.nodes:
        _end(three, "c")
    none_was_lost(three)


@pytest.mark.soak
def test_a_holder_that_goes_is_replaced_before_its_lease_ends(three: Run) -> None:
    holder = three.wait(lambda seen: seen.holder, "a holder").holder
    left = [node for node in ALL if node != holder]
    pids = {node: three.nodes[node].workers()[0] for node in left}
    vanish(three.nodes.pop(holder))
    two = three.trains(*left)
    assert (two.cause, two.nodes, two.in_place) == ("loss", (holder,), "keep")
    three.trains(*left, beyond=two.resume.step + 20)
    three.wait(lambda seen: holder not in seen.nodes, "its lease ends")
    for node, pid in pids.items():
        kept_its_process(three, node, pid)
    none_was_lost(three)
    live, formed = three.keys.live(holder), f'"number":{two.number}'.encode()
    changes = [
        (entry.key, entry.data is None)
        for entry in three.history.entries
        if entry.key == live or (entry.key == three.keys.round and formed in (entry.data or b""))
    ]
    begun = changes.index((three.keys.round, False))
    assert (live, True) in changes[begun:] and (live, True) not in changes[:begun]


def _prepares(seen: RunState, node: str) -> bool | None:
    return seen.nodes[node].node.prepares if node in seen.nodes else None


def _end(run: Run, node: str) -> None:
    """Ends what a test has left frozen."""
    pid = run.nodes[node].process.pid
    for each in (*descendants(pid), pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(each, signal.SIGCONT)
    run.nodes[node].process.kill()
    run.nodes[node].process.wait()


@pytest.mark.soak
def test_a_worker_that_freezes_while_it_rests_is_replaced_and_holds_up_nobody(three: Run) -> None:
    """It rests before it counts as arrived, and does not hear of its round."""
    pids = {node: three.nodes[node].workers()[0] for node in ALL}
    three.add("d")
    three.wait(lambda seen: _prepares(seen, "d"), "d prepares")
    three.wait(lambda seen: _prepares(seen, "d") is False, "d has prepared")
    frozen = three.nodes["d"].workers()[0]
    os.kill(frozen, signal.SIGSTOP)
    four = three.trains(*ALL, "d")
    assert (four.in_place, four.charged) == ("keep", ())
    three.trains(*ALL, "d", beyond=four.resume.step + 20)
    for node, pid in pids.items():
        kept_its_process(three, node, pid)
    assert frozen not in three.nodes["d"].workers()
    told = three.history.entries
    assert any(b"did not answer" in (entry.data or b"") for entry in told)
    none_was_lost(three)


@pytest.mark.soak
def test_a_worker_that_a_driver_holds_while_it_leaves_its_group_is_replaced(
    etcd: EtcdMember, tmp_path: Path
) -> None:
    """It has rested, was told of a round, and never enters it. The thread that answers lives."""
    script = (str(SCRIPT), str(tmp_path), "100000", "0.02")
    with running(etcd.endpoint, uuid.uuid4().hex, tmp_path, nnodes="1:4", script=script) as run:
        for node in ALL:
            run.add(node)
        run.trains(*ALL, beyond=run.trains(*ALL).resume.step + 20)
        pids = {node: run.nodes[node].workers()[0] for node in ("a", "b")}
        (tmp_path / "b.hangs").touch()
        vanish(run.nodes.pop("c"))
        run.trains("a", "b", beyond=made(run, "a")[-1][0] + 40)
        kept_its_process(run, "a", pids["a"])
        assert pids["b"] not in run.nodes["b"].workers()
        told = [entry.data or b"" for entry in run.history.entries]
        assert any(b"did not answer" in data for data in told)
        none_was_lost(run)


@pytest.mark.soak
@pytest.mark.parametrize("event", ["node", "worker"])
def test_a_run_of_fixed_size_loses_no_step_when_a_node_or_a_worker_is_replaced(
    etcd: EtcdMember, tmp_path: Path, event: str
) -> None:
    """Who is left waits, and saves what it has. Who comes restores just that."""
    script = (str(SCRIPT), str(tmp_path), "100000", "0.02")
    name = uuid.uuid4().hex
    with running(etcd.endpoint, name, tmp_path, nnodes="2:2", script=script) as run:
        for node in "a", "b":
            run.add(node)
        begun = run.trains("a", "b")
        # No step at which a snapshot is due anyway.
        run.trains("a", "b", beyond=begun.resume.step + 25)
        pid = run.nodes["a"].workers()[0]
        if event == "node":
            vanish(run.nodes.pop("b"))
            run.add("c")
        else:
            os.kill(run.nodes["b"].workers()[0], signal.SIGKILL)
        pair = ("a", "c") if event == "node" else ("a", "b")
        second = run.wait(
            lambda seen: (
                seen.round and seen.round.number > begun.number and seen.round.phase == "started"
            ),
            "another round",
        ).round
        assert second is not None and second.in_place == "keep"
        run.trains(*pair, beyond=second.resume.step + 20)
        kept_its_process(run, "a", pid)
        none_was_lost(run)


@pytest.mark.soak
def test_a_group_that_the_script_makes_later_takes_new_processes_and_costs_no_step(
    etcd: EtcdMember, tmp_path: Path
) -> None:
    """A node leaves with notice: the others save at the agreed step, and are replaced at once."""
    script = (str(SCRIPT), str(tmp_path), "100000", "0.02", "40")
    with running(etcd.endpoint, uuid.uuid4().hex, tmp_path, nnodes="1:4", script=script) as run:
        for node in ALL:
            run.add(node)
        run.trains(*ALL, beyond=run.trains(*ALL).resume.step + 60)
        pids = {node: run.nodes[node].workers() for node in ("a", "b")}
        _leave(run)
        two = run.trains("a", "b")
        run.trains("a", "b", beyond=two.resume.step + 20)
        _end(run, "c")
        for node, before in pids.items():
            assert run.nodes[node].workers() != before
        none_was_lost(run, untold=two.resume.step)


@pytest.mark.soak
def test_a_run_shrinks_and_grows_in_the_same_processes(three: Run) -> None:
    """4, 2, 3, 1, 4 nodes; node a lives through all of it."""
    pid = three.nodes["a"].workers()[0]

    def settle(*names: str) -> None:
        begun = three.trains(*names)
        assert begun.in_place == "keep", begun.reason
        three.trains(*names, beyond=begun.resume.step + 10)

    three.add("d")
    settle("a", "b", "c", "d")
    vanish(three.nodes.pop("c"), three.nodes.pop("d"))
    settle("a", "b")
    three.add("e")
    settle("a", "b", "e")
    vanish(three.nodes.pop("b"), three.nodes.pop("e"))
    settle("a")
    for name in ("f", "g", "h"):
        three.add(name)
    settle("a", "f", "g", "h")
    kept_its_process(three, "a", pid)
    none_was_lost(three)
