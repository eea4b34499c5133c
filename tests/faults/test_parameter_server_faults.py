"""Real nodes with a parameter server: whoever is lost, each batch is part of one update."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from support.etcd import EtcdCluster
from support.launcher import Run, descendants, running, vanish
from support.patience import PATIENT

from spotelastic.model.round import Round
from spotelastic.store.codec import decode
from spotelastic.store.etcd_server.process import EtcdMember, standalone

pytestmark = pytest.mark.faults

SCRIPT = Path(__file__).parent.parent / "support" / "train_parameter_server.py"
ALL = ("a", "b", "c", "d")
WINDOWS, UPDATES = 24, 40
EVERY = ("--snapshot-every", "1", "--checkpoint-every", "4")
MODES = ("synchronous", "bounded", "asynchronous")


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdMember]:
    with standalone(tmp_path / "etcd") as member:
        yield member


@contextlib.contextmanager
def training(
    endpoint: str, folder: Path, mode: str, windows: int = WINDOWS, **options: Any
) -> Iterator[Run]:
    """Four nodes, of which the first two serve and stand by. No round has fewer than three."""
    script = (str(SCRIPT), str(folder), mode, str(windows), str(UPDATES), "0.02")
    given: dict[str, Any] = {"nnodes": "3:5", "script": script, "flags": EVERY, **options}
    with running(endpoint, uuid.uuid4().hex, folder, **given) as run:
        for node in ALL:
            run.add(node)
        yield run


def ends_well(run: Run, windows: int = WINDOWS) -> list[dict[str, list[float]]]:
    """Each batch is part of the last parameters, once. Returns what each node has at the end."""
    for node in run.nodes.values():
        assert node.wait() == 0, node.output[-3000:]
    found = [json.loads((run.folder / f"{node}.end").read_text()) for node in run.nodes]
    for end in found:
        wrong = [(at, mark) for at, mark in enumerate(end["marks"]) if mark != 1.0]
        assert not wrong, f"batches that count otherwise than once: {wrong[:20]}"
        assert end["network"] == found[0]["network"]
    assert max(number for node in run.nodes for number, *_ in finished(run, node)) == windows
    return found


def none_was_lost(run: Run) -> None:
    """No batch was acknowledged twice: it would have been lost in between.

    On a machine that is busy, a standby may seem to be lost together with the server, or a node may
    come so late that all begin afresh with it, before anything was saved.
    """
    if any(
        after.resume.kind == "fresh" or not lives(before, 2) & lives(after, len(after.members))
        for before, after in pairwise(rounds(run))
    ):
        return
    told = [
        int(line)
        for file in run.folder.glob("*.acknowledged")
        for line in file.read_text().splitlines()
    ]
    assert told and len(told) == len({*told})


def lives(round_: Round, first: int) -> set[tuple[str, str]]:
    """The first members of a round, each with its incarnation."""
    return {(each.node, each.incarnation) for each in round_.members if each.slot < first}


def rounds(run: Run) -> list[Round]:
    """All rounds that trained, in their order."""
    key = run.keys.round
    written = [entry.data for entry in run.history.entries if entry.key == key and entry.data]
    found = {round_.number: round_ for data in written if (round_ := decode(data, Round))}
    return [round_ for _, round_ in sorted(found.items()) if round_.phase != "proposed"]


def finished(run: Run, node: str) -> list[tuple[int, int, int]]:
    """(window, rank, pid) of each window that the node has finished."""
    file = run.folder / f"{node}.windows"  # who came last may have finished none
    rows = file.read_text().splitlines() if file.exists() else []
    found = [tuple(map(int, row.split())) for row in rows]
    return [(window, rank, pid) for window, rank, pid in found]


def roles(round_: Round) -> list[str]:
    """The nodes of a round by rank: server, standby, and workers."""
    return [member.node for member in sorted(round_.members, key=lambda member: member.slot)]


def kept_their_processes(run: Run, *nodes: str) -> None:
    """As far as they were in all rounds: on a machine that is busy, others may seem to be lost."""
    all_rounds = [lives(round_, len(round_.members)) for round_ in rounds(run)]
    stayed = {node for node, _ in set.intersection(*all_rounds)}
    for node in stayed.intersection(nodes):
        assert len({pid for *_, pid in finished(run, node)}) == 1


@pytest.mark.soak
def test_the_standby_goes_on_when_the_server_dies(etcd: EtcdMember, tmp_path: Path) -> None:
    (tmp_path / "dies").write_text("after-apply 0 50")
    with training(etcd.endpoint, tmp_path, "asynchronous", 4) as run:
        ends_well(run, 4)
        none_was_lost(run)
        assert not (tmp_path / "dies").exists()
        told = [row for node in ALL for row in finished(run, node)]
        first, second = (
            {pid for number, rank, pid in told if (number, rank) == (window, 0)}
            for window in (1, 4)
        )
        assert first and second and first != second
        assert len({pid for *_, pid in told}) <= 5, "the others kept their processes"


@pytest.mark.soak
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("lost", [(0,), (1,), (2,), (2, 3)])
def test_no_acknowledged_update_is_lost_with_a_node(
    etcd: EtcdMember, tmp_path: Path, mode: str, lost: tuple[int, ...]
) -> None:
    """The server, the standby, a worker, and all workers."""
    least = len(ALL) - len(lost)
    with training(etcd.endpoint, tmp_path, mode, nnodes=f"{least}:5") as run:
        before = roles(run.trains(*ALL, beyond=2))
        gone = [before[rank] for rank in lost]
        left = [node for node in before if node not in gone]
        vanish(*(run.nodes.pop(node) for node in gone))
        after = run.trains(*left)
        assert after.in_place == "keep"
        if lost == (0,):
            assert roles(after)[0] == before[1], "the standby has rank 0"
        run.add("e")
        run.trains(*left, "e", beyond=after.resume.step)
        ends_well(run)
        none_was_lost(run)
        kept_their_processes(run, *left)


@pytest.mark.soak
@pytest.mark.parametrize("mode", MODES)
def test_when_server_and_standby_vanish_the_window_is_made_again(
    etcd: EtcdMember, tmp_path: Path, mode: str
) -> None:
    with training(etcd.endpoint, tmp_path, mode, nnodes="2:5") as run:
        before = roles(run.trains(*ALL, beyond=2))
        vanish(run.nodes.pop(before[0]), run.nodes.pop(before[1]))
        run.trains(*before[2:])
        ends_well(run)
        kept_their_processes(run, *before[2:])


@pytest.mark.soak
def test_the_store_may_be_lost_together_with_the_server(
    etcd_cluster: EtcdCluster, tmp_path: Path
) -> None:
    """No round forms before etcd is there again. Nothing is lost meanwhile."""
    with training(",".join(etcd_cluster.endpoints), tmp_path, "asynchronous") as run:
        before = roles(run.trains(*ALL, beyond=2))
        etcd_cluster.kill()
        vanish(run.nodes.pop(before[0]))
        run.lets_pass(2.0)
        etcd_cluster.start()
        run.trains(*before[1:])
        ends_well(run)
        none_was_lost(run)
        kept_their_processes(run, *before[1:])


@pytest.mark.soak
def test_a_server_that_was_frozen_reaches_nobody_and_takes_the_state_of_the_others(
    etcd: EtcdMember, tmp_path: Path
) -> None:
    with training(etcd.endpoint, tmp_path, "asynchronous", 60) as run:
        before = roles(run.trains(*ALL, beyond=2))
        agent = run.nodes[before[0]].process.pid
        frozen = (agent, *descendants(agent))
        for pid in frozen:
            os.kill(pid, signal.SIGSTOP)
        after = run.trains(*before[1:])
        run.trains(*before[1:], beyond=after.resume.step + 2)
        for pid in reversed(frozen):
            os.kill(pid, signal.SIGCONT)
        again = run.trains(*ALL, beyond=after.resume.step + 2)
        assert roles(again)[0] != before[0]
        ends_well(run, 60)
        none_was_lost(run)
        kept_their_processes(run, *before[1:])


PLACES = [
    *(("asynchronous", place, 0, 70) for place in ("head", "apply", "after-apply", "send")),
    ("bounded", "after-send", 0, 111),
    ("synchronous", "after-apply", 0, 55),
    ("synchronous", "head", 0, 131),
    ("asynchronous", "packed", 0, 3),
    ("asynchronous", "after-packed", 0, 4),
    ("asynchronous", "keep", 0, 2),
    ("asynchronous", "after-keep", 0, 3),
    *(("asynchronous", place, 1, 60) for place in ("head", "apply", "after-apply", "after-send")),
    ("synchronous", "send", 1, 60),
    ("asynchronous", "unpack", 1, 1),
    ("asynchronous", "keep", 1, 2),
    *(("asynchronous", place, 2, 40) for place in ("compute", "send", "after-send", "after-head")),
    ("bounded", "send", 2, 33),
    ("synchronous", "after-send", 2, 77),
    ("asynchronous", "unpack", 2, 3),
    ("asynchronous", "after-unpack", 2, 3),
    ("asynchronous", "after-keep", 2, 3),
]


@pytest.mark.soak
@pytest.mark.parametrize(("mode", "place", "rank", "count"), PLACES)
def test_a_process_dies_at_any_place(
    etcd: EtcdMember, tmp_path: Path, mode: str, place: str, rank: int, count: int
) -> None:
    (tmp_path / "dies").write_text(f"{place} {rank} {count}")
    with training(etcd.endpoint, tmp_path, mode, 8) as run:
        ends_well(run, 8)
        none_was_lost(run)
        assert not (tmp_path / "dies").exists(), "nobody came there"


@pytest.mark.soak
@pytest.mark.parametrize("lost", [0, 1, 2])
def test_synchronous_parameters_are_those_of_a_run_without_losses(
    etcd: EtcdMember, tmp_path: Path, lost: int
) -> None:
    """Bit for bit: with three workers, with two, and with one process that does everything."""
    alone = tmp_path / "alone"
    alone.mkdir()
    command = (sys.executable, str(SCRIPT), str(alone), "synchronous", str(WINDOWS), str(UPDATES))
    env = {**os.environ, "OMP_NUM_THREADS": "1", "SPOTELASTIC_STORAGE": str(alone / "kept")}
    subprocess.run([*command, "0"], cwd=alone, env=env, check=True, timeout=PATIENT)
    expected = json.loads((alone / "alone.end").read_text())
    with training(etcd.endpoint, tmp_path, "synchronous") as run:
        before = roles(run.trains(*ALL, beyond=2))
        vanish(run.nodes.pop(before[lost]))
        left = [node for node in before if node != before[lost]]
        run.add("e")
        run.trains(*left, "e")
        assert all(end == expected for end in ends_well(run))
        none_was_lost(run)
