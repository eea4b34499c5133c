"""States of every sharding, resumed by other numbers of ranks: from the store and from memory."""

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from msgspec.json import encode
from spotelastic_checkpoints.types import Branch, Holder, Resume, Schedule, Ward
from support.draws import soaked
from support.processes.patience import PATIENT
from support.processes.warm_python import WarmPython
from support.saving.daemons_and_workers import Node, cluster, round_info
from support.saving.faulty_s3 import FaultyS3
from support.saving.replica_daemons import all_have, resume_from, ring
from support.saving.s3_servers import s3_server, use_s3
from support.scripts.large_parts import REPLICATED, SHARDED

TESTS = Path(__file__).parent.parent


Run = Callable[..., object]


@pytest.fixture
def run(warm_torch: WarmPython) -> Run:
    """Runs one of the scripts in tests/support with these arguments."""

    def run(script: str, *arguments: object) -> None:
        warm_torch.run("-W", "ignore", "-m", f"support.scripts.{script}", *arguments, check=True)

    return run


def begin(
    folder: Path,
    members: Sequence[Node],
    incarnation: str,
    resume: Resume,
    schedule: Schedule,
    lineage: Sequence[Branch] = (),
    *,
    replicate: bool = False,
) -> int:
    """A round over these nodes, and what their workers find in their environment; its epoch."""
    names = [member.name for member in members]
    epoch = members[0].agent.claim("test", timeout=PATIENT).epoch
    keeps = ring(members)
    for slot, node in enumerate(members):
        of = keeps[node.name]
        info = round_info(
            incarnation, slot, names, 1, epoch, schedule=schedule, lineage=lineage,
            ward=Ward(of.name, of.agent.status().listen, 1e9) if replicate else None,
        )  # fmt: skip
        node.begin(info)
        environment = {
            "SPOTELASTIC_DAEMON": str(node.socket),
            "SPOTELASTIC_ROUND": incarnation,
            "SPOTELASTIC_RESUME": encode(resume).decode(),
            "SPOTELASTIC_NODE": node.name,
        }
        (folder / f"environment-{slot}.json").write_text(json.dumps(environment))
    return epoch


@pytest.mark.parametrize("worlds", [(4, 3), *soaked([(4, 2, 3, 1)])], ids=str)
def test_every_sharding_goes_from_four_ranks_to_others_and_to_and_from_stock_dcp(
    tmp_path: Path, run: Run, worlds: tuple[int, ...]
) -> None:
    run("shardings", tmp_path, "store", *worlds)


@pytest.mark.soak
def test_every_sharding_is_resumed_from_the_memory_of_other_nodes(tmp_path: Path, run: Run) -> None:
    """Three nodes, then two of them while the third still lives, then three again."""
    with cluster(tmp_path, 3) as nodes:
        lineage: list[Branch] = []
        resume = Resume()
        for step, world in enumerate((3, 2, 3)):
            members, incarnation = nodes[:world], f"r{step}"
            begin(tmp_path, members, incarnation, resume, Schedule(1, 0), lineage)
            run("shardings", tmp_path, "memory", step, world)
            holders, layouts = [], set()
            for node in members:
                node.agent.end()
                status = node.agent.status()
                newest = status.snapshots[-1]
                assert newest.step == step + 1
                holders.append(Holder(node.name, status.listen, newest.ranks))
                layouts.add(newest.layout)
            lineage = [*lineage, Branch(incarnation, step + 1)]
            [layout] = layouts
            resume = Resume("memory", step + 1, incarnation, layout, tuple(holders))


@pytest.mark.soak
def test_every_sharding_is_resumed_without_a_node_of_which_the_others_have_a_replica(
    tmp_path: Path, run: Run
) -> None:
    """Of FSDP, HSDP, tensor and two-dimensional parallelism: what only the lost one held is on its
    partner, what another shard group held as well is there."""
    with cluster(tmp_path, 4, storage=str(tmp_path / "never")) as nodes:
        begin(tmp_path, nodes, "r0", Resume(), Schedule(1, 0), replicate=True)
        run("shardings", tmp_path, "memory", 0, 4)
        all_have(nodes, 1)
        own, kept = (
            sum(each.nbytes for each in nodes[0].agent.status().snapshots if each.replica is of)
            for of in (False, True)
        )
        assert 0 < kept < own, "what the others have is not copied"
        lost, *left = nodes
        for node in nodes:
            node.agent.end()
        lost.kill()
        shutil.rmtree(lost.arena)
        resume = resume_from(left, 1, "r0")
        begin(tmp_path, left, "r1", resume, Schedule(1, 0), [Branch("r0", 1)])
        run("shardings", tmp_path, "memory", 1, 3)


@pytest.mark.soak
def test_what_is_each_rank_s_own_comes_from_the_memory_of_other_nodes(
    tmp_path: Path, run: Run
) -> None:
    """Two of three nodes merge what all had. Before the next round one of them is lost: what only
    it had is in no memory, but in the store."""
    with cluster(tmp_path, 3) as (a, b, c):
        lineage: list[Branch] = []
        resume = Resume()
        for turn, (members, expected) in enumerate(
            (
                ([a, b, c], [[-1], [-1], [-1]]),
                ([a, c], [[10, 11, 12]] * 2),
                ([a, b], [[20], [21]]),
            )
        ):
            epoch = begin(tmp_path, members, f"r{turn}", resume, Schedule(1, 1), lineage)
            run("per_rank_memory", tmp_path, turn, len(members))
            for rank, own in enumerate(expected):
                told = json.loads((tmp_path / f"restored-{rank}.json").read_text())
                assert told == [turn, own], f"turn {turn}, rank {rank}"
            lineage = [*lineage, Branch(f"r{turn}", turn + 1)]
            for node in members:
                node.agent.end()
            if turn == 1:
                c.kill()
                members.remove(c)
            resume = memory_of(members, f"r{turn}", turn + 1, epoch)


def memory_of(members: Sequence[Node], incarnation: str, step: int, epoch: int) -> Resume:
    holders, layouts = [], set()
    for node in members:
        status = node.agent.status()
        newest = status.snapshots[-1]
        assert newest.step == step
        holders.append(Holder(node.name, status.listen, newest.ranks))
        layouts.add(newest.layout)
    [layout] = layouts
    return Resume("memory", step, incarnation, layout, tuple(holders), epoch=epoch)


@pytest.mark.soak
def test_a_node_reads_from_s3_what_its_ranks_need_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    """Its part of what is sharded, all of what is replicated, whatever the sharding was before."""
    with s3_server() as endpoint:
        bucket = use_s3(monkeypatch, endpoint)
        with FaultyS3(endpoint, f"s3://{bucket}/run") as s3:
            monkeypatch.setenv("AWS_ENDPOINT_URL", s3.endpoint)
            with cluster(tmp_path, 3, storage=s3.url) as nodes:
                resume = Resume()
                for step, world in enumerate((2, 2, 1, 3)):
                    members = nodes[:world]
                    epoch = begin(tmp_path, members, f"r{step}", resume, Schedule(1, 1))
                    s3.given.clear()
                    run("large_parts", tmp_path, step, world)
                    if step:
                        needed = SHARDED + world * REPLICATED
                        # Blocks that two nodes share, and values. What is saved is read back, too.
                        assert needed <= s3.given_of_shards(step) < 1.15 * needed
                    for node in members:
                        node.agent.end()
                    resume = Resume("store", step + 1, epoch=epoch)
