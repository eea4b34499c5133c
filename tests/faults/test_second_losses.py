"""A second node is lost before the next snapshot: the run goes on from the step that the first loss
left, and ends as one that was not interrupted.

Training stands still meanwhile, so that nothing but the restore itself can have put the state where
it outlives the second loss.
"""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from spotelastic_checkpoints.memory import slots
from spotelastic_checkpoints.memory.arena import Arena
from support.processes.ports import free_pair
from support.processes.run_launcher import Run, arena_of, replicated, running, vanish
from support.store.etcd_members import wait_until

from spotelastic.model.round import Round
from spotelastic.rendezvous.view import RunState
from spotelastic.store.etcd_server.process import standalone

pytestmark = [pytest.mark.faults, pytest.mark.soak, pytest.mark.timeout(600)]

SUPPORT = Path(__file__).parent.parent / "support"
EVERY, STEPS, STEP_TIME = 8, 20, 0.05
HOST = ("--rdzv-backend", "c10d", "--rdzv-conf", "protocol=http")
GUEST = ("--rdzv-backend", "c10d", "--rdzv-conf", "protocol=http,is_host=false")


@pytest.mark.parametrize(("kind", "count"), [("fsdp", 3), ("hybrid", 4)])
def test_a_second_loss_before_the_next_snapshot_costs_no_further_step(
    tmp_path: Path, kind: str, count: int
) -> None:
    names = ("a", "b", "c", "d")[:count]
    with standalone(tmp_path / "etcd") as etcd:
        with job(etcd.endpoint, tmp_path / "whole", kind, names) as run:
            ends_well(run, names)
        with job(etcd.endpoint, tmp_path / "interrupted", kind, names) as run:
            round_ = run.trains(*names, beyond=EVERY)
            (run.folder / "stands").touch()
            reached = run.stands_still()
            for lost in names[1:]:
                round_ = one_is_lost(run, round_, lost, kind)
                assert round_.resume.kind == "memory"
                assert reached - EVERY < round_.resume.step <= reached
            (run.folder / "stands").unlink()
            ends_well(run, names)
    whole, interrupted = (sums_of(tmp_path / each, names) for each in ("whole", "interrupted"))
    assert whole == interrupted
    assert all(len(each) == 1 for each in whole.values())


def test_the_loss_of_the_only_host_of_etcd_costs_no_more_than_that_of_any_node(
    tmp_path: Path,
) -> None:
    names = ("a", "b", "c")
    port = free_pair(["127.0.0.1"])
    options = {"served": False, "forgets": True}
    with job(f"127.0.0.1:{port}", tmp_path / "run", "fsdp", names, **options) as run:
        begun = run.trains(*names, beyond=EVERY)
        (run.folder / "stands").touch()
        wait_until(lambda: is_safe(run, begun, "fsdp"), "each node's shards are with another one")
        reached = run.stands_still()
        vanish(run.nodes.pop("a"))
        add(run, "a", *HOST)

        def so(seen: RunState) -> bool:
            round_ = seen.round
            is_new = round_ is not None and round_.incarnation != begun.incarnation
            return is_new and round_ is not None and round_.phase == "started"

        after = run.wait(so, "a round on the new etcd").round
        assert after is not None
        assert (after.number, after.resume.kind) == (1, "memory")
        assert reached - EVERY < after.resume.step <= reached
        (run.folder / "stands").unlink()
        ends_well(run, names)
        line = f"from step {after.resume.step} in memory"
        assert all(line in node.output for node in run.nodes.values())
    assert all(len(each) == 1 for each in sums_of(tmp_path / "run", names).values())


@contextmanager
def job(
    endpoint: str, folder: Path, kind: str, names: tuple[str, ...], **options: bool
) -> Iterator[Run]:
    """With the option `served`=False the first node is the only host of the job's etcd."""
    folder.mkdir()
    script = (
        str(SUPPORT / "scripts/train_replicated.py"),
        str(folder),
        str(STEPS),
        str(STEP_TIME),
        kind,
    )
    flags = ("--replicate", "1GB", "--snapshot-every", str(EVERY), "--checkpoint-every", "1000")
    name, nnodes = uuid.uuid4().hex, f"{len(names)}:{len(names)}"
    with running(
        endpoint, name, folder, nnodes=nnodes, script=script, flags=flags, **options
    ) as run:
        for number, node in enumerate(names):
            add(run, node, *(() if options.get("served", True) else GUEST if number else HOST))
        yield run


def add(run: Run, node: str, *args: str) -> None:
    run.add(node, args=args, env={"PYTHONPATH": str(SUPPORT.parent)})


def ends_well(run: Run, names: tuple[str, ...]) -> None:
    assert {node: run.nodes[node].wait() for node in names} == dict.fromkeys(names, 0)


def one_is_lost(run: Run, round_: Round, lost: str, kind: str) -> Round:
    """Lose a node when the round has what it needs to outlive that, and return the next round."""
    wait_until(lambda: is_safe(run, round_, kind), "each node's shards are with another one")
    vanish(run.nodes.pop(lost))
    add(run, lost)

    def so(seen: RunState) -> bool:
        found = seen.round
        return found is not None and found.number > round_.number and found.phase == "started"

    after = run.wait(so, f"a round after the loss of {lost}").round
    assert after is not None
    return after


def is_safe(run: Run, round_: Round, kind: str) -> bool:
    """Whether each node has a snapshot of this round, and another's shards where it needs them."""
    for node in run.nodes.values():
        sealed = Arena(arena_of(node), 1).sealed()
        own = slots.snapshots(header for _, header in sealed)
        if not any(each.incarnation == round_.incarnation for each in own):
            return False
        if kind == "fsdp" and not replicated(node, round_):
            return False
    return True


def sums_of(folder: Path, names: tuple[str, ...]) -> dict[int, set[str]]:
    """By step: the sums of the parameters before it, of all nodes, each time that it was made."""
    found: dict[int, set[str]] = {}
    for node in names:
        for row in (folder / f"{node}.steps").read_text().splitlines():
            step, total = row.split()
            found.setdefault(int(step), set()).add(total)
    assert sorted(found) == list(range(1, STEPS + 1))
    return found
