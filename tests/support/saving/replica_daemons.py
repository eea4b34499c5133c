"""Daemons whose nodes keep each other's replicas, and workers with shards of a state."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from spotelastic_checkpoints.format import encoding, layout
from spotelastic_checkpoints.memory.arena import Arena
from spotelastic_checkpoints.restore.contents import Contents
from spotelastic_checkpoints.types import Branch, Holder, Resume, RoundInfo, Snapshot, Ward
from support.processes.patience import eventually
from support.saving.daemons_and_workers import (
    Node,
    Worker,
    cluster,
    content,
    round_info,
    sharded_plan_of,
)

RATE = 1e9


def ring(nodes: Sequence[Node]) -> dict[str, Node]:
    """For each node the one whose replica it keeps; of two, each other's."""
    return {node.name: nodes[(number + 1) % len(nodes)] for number, node in enumerate(nodes)}


def with_wards(
    nodes: Sequence[Node], round_: str, lineage: Sequence[Branch] = (), rate: float = RATE
) -> dict[str, RoundInfo]:
    names = [node.name for node in nodes]
    keeps = ring(nodes)
    return {
        node.name: round_info(
            round_, slot, names, node.workers, 0, lineage=lineage,
            ward=Ward(keeps[node.name].name, keeps[node.name].agent.status().listen, rate),
        )
        for slot, node in enumerate(nodes)
    }  # fmt: skip


@contextmanager
def replicating(
    folder: Path, count: int = 2, workers: int = 1
) -> Iterator[tuple[list[Node], list[Worker]]]:
    """A round of nodes with partners, and its workers, which have saved nothing yet."""
    with cluster(folder, count, workers, storage=str(folder / "never")) as nodes:
        for node, info in zip(nodes, with_wards(nodes, "r1").values(), strict=True):
            node.begin(info)
        yield nodes, workers_of(nodes, "r1")


def workers_of(nodes: Sequence[Node], round_: str) -> list[Worker]:
    per_node = nodes[0].workers
    plan = sharded_plan_of(len(nodes) * per_node, per_node)
    return [
        Worker(str(node.socket), round_, slot * per_node + local, local, plan)
        for slot, node in enumerate(nodes)
        for local in range(per_node)
    ]


def saved(workers: Sequence[Worker], step: int) -> None:
    for worker in workers:
        worker.save(step)


def replicas(node: Node) -> list[Snapshot]:
    return [found for found in node.agent.status().snapshots if found.replica]


def has_replica(node: Node, step: int) -> bool:
    return step in {found.step for found in replicas(node)}


def all_have(nodes: Sequence[Node], step: int) -> None:
    for node in nodes:
        eventually(partial(has_replica, node, step))


def resume_from(nodes: Sequence[Node], step: int, incarnation: str = "r1") -> Resume:
    """A source that these nodes hold, replicas among them."""
    holders, hashes = [], set()
    for node in nodes:
        status = node.agent.status()
        for found in status.snapshots:
            if (found.incarnation, found.step) == (incarnation, step):
                hashes.add(found.layout)
                holders.append(Holder(node.name, status.listen, found.ranks))
    [layout_hash] = hashes
    return Resume("memory", step, incarnation, layout_hash, tuple(holders))


def is_sharded_content(restored: Contents, step: int, world_size: int) -> bool:
    """Whether it is exactly all shards of that step."""
    found = set()
    for piece in restored.pieces():
        item = piece.item
        if item.rank != layout.SHARED:
            continue
        data = Path(piece.file).read_bytes()[item.offset : item.offset + item.length]
        expected = (
            encoding.tensor_prefix(item.dtype, item.sizes) + content(item.fqn, step)
            if item.is_tensor
            else encoding.plain_value((item.fqn, step))
        )
        if data != expected:
            return False
        found.add(item.key)
    return len(found) == 6 * world_size + 1


def states(node: Node) -> Mapping[str, int]:
    """The state of each file of a replica."""
    return {slot.path.name: int(slot.state) for slot in Arena(node.arena, 1).replicas()}
