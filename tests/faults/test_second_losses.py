"""A second node is lost before the next snapshot: the run goes on from the step that the first loss
left, and ends as one that was not interrupted.

Training stands still meanwhile, so that nothing but the restore itself can have put the state where
it outlives the second loss.
"""

import uuid
from pathlib import Path

import pytest
from spotelastic_checkpoints.memory import slots
from spotelastic_checkpoints.memory.arena import Arena
from support.etcd import wait_until
from support.launcher import Run, arena_of, replicated, running, vanish

from spotelastic.model.round import Round
from spotelastic.store.etcd_server.process import standalone

pytestmark = [pytest.mark.faults, pytest.mark.soak, pytest.mark.timeout(600)]

SUPPORT = Path(__file__).parent.parent / "support"
EVERY, STEPS, STEP_TIME = 8, 20, 0.05


@pytest.mark.parametrize(("kind", "count"), [("fsdp", 3), ("hybrid", 4)])
def test_a_second_loss_before_the_next_snapshot_costs_no_further_step(
    tmp_path: Path, kind: str, count: int
) -> None:
    names = ("a", "b", "c", "d")[:count]
    sums = []
    with standalone(tmp_path / "etcd") as etcd:
        for losses in (0, count - 1):
            folder = tmp_path / str(losses)
            folder.mkdir()
            script = (str(SUPPORT / "train_replicated.py"), str(folder), str(STEPS))
            flags = (
                "--replicate",
                "1GB",
                "--snapshot-every",
                str(EVERY),
                "--checkpoint-every",
                "0",
            )
            with running(
                etcd.endpoint,
                uuid.uuid4().hex,
                folder,
                nnodes=f"{count}:{count}",
                script=(*script, str(STEP_TIME), kind),
                flags=flags,
            ) as run:
                for node in names:
                    run.add(node, env={"PYTHONPATH": str(SUPPORT.parent)})
                if losses:
                    loses(run, names, losses, kind)
                assert {node: run.nodes[node].wait() for node in names} == dict.fromkeys(names, 0)
            sums.append(sums_of(folder, names))
    assert sums[0] == sums[1]
    assert all(len(each) == 1 for each in sums[0].values())


def loses(run: Run, names: tuple[str, ...], losses: int, kind: str) -> None:
    """One node after the other, each when the round has what it needs to outlive that."""
    round_ = run.trains(*names, beyond=EVERY)
    (run.folder / "stands").touch()
    wait_until(lambda: is_safe(run, round_, kind), "each node's shards are with another one")
    reached = run.stands_still()
    for lost in names[1 : losses + 1]:
        vanish(run.nodes.pop(lost))
        run.add(lost, env={"PYTHONPATH": str(SUPPORT.parent)})
        number = round_.number
        found = run.wait(
            lambda seen, number=number: (
                seen.round is not None
                and seen.round.number > number
                and seen.round.phase == "started"
                and {member.node for member in seen.round.members} == {*names}
            ),
            f"a round after the loss of {lost}",
        ).round
        assert found is not None
        round_ = found
        assert round_.resume.kind == "memory", round_.resume
        assert reached - EVERY < round_.resume.step <= reached
        wait_until(lambda: is_safe(run, round_, kind), "each node's shards are with another one")
    (run.folder / "stands").unlink()


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
