"""States of every sharding, resumed by other numbers of ranks: from the store and from memory."""

import json
import os
import subprocess
import sys
from pathlib import Path

from msgspec.json import encode
from spotelastic_checkpoints.wire import Branch, Holder, Resume, Schedule
from support.checkpoints import cluster, round_info

TESTS = Path(__file__).parent.parent


def run(folder: Path, *arguments: object) -> None:
    subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "support.shardings", folder, *map(str, arguments)],
        cwd=TESTS,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=True,
        timeout=110,
    )


def test_every_sharding_goes_from_four_ranks_to_two_three_and_one_and_to_and_from_stock_dcp(
    tmp_path: Path,
) -> None:
    run(tmp_path, "store", 4, 2, 3, 1)


def test_every_sharding_is_resumed_from_the_memory_of_other_nodes(tmp_path: Path) -> None:
    """Three nodes, then two of them while the third still lives, then three again."""
    with cluster(tmp_path, 3) as nodes:
        lineage: list[Branch] = []
        resume = Resume()
        schedule = Schedule(1, 0)
        for step, world in enumerate((3, 2, 3)):
            members, incarnation = nodes[:world], f"r{step}"
            epoch = nodes[0].agent.claim("test", timeout=10).epoch
            for slot, node in enumerate(members):
                names = [member.name for member in members]
                node.begin(
                    round_info(
                        incarnation, slot, names, 1, epoch, schedule=schedule, lineage=lineage
                    )
                )
                environment = {
                    "SPOTELASTIC_DAEMON": str(node.socket),
                    "SPOTELASTIC_ROUND": incarnation,
                    "SPOTELASTIC_RESUME": encode(resume).decode(),
                    "SPOTELASTIC_NODE": node.name,
                }
                (tmp_path / f"environment-{slot}.json").write_text(json.dumps(environment))
            run(tmp_path, "memory", step, world)
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
