"""Collects a dump: what a cluster has published, and what its nodes know, in one archive.

Nodes are asked through the controller, and answer into the cluster's bucket. What cannot be had,
or not in time, is named in the index, and the rest is kept: a bug report is often about just that.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

from spotelastic.agent.event_log.versions import versions
from spotelastic.aws.compute import autoscaling
from spotelastic.client import commands
from spotelastic.client.dumps.archive import DumpArchive, DumpedNode, DumpIndex
from spotelastic.client.dumps.dump_source import DumpSource, job_without_secrets, known_secrets
from spotelastic.client.dumps.worker_output import newest_lines
from spotelastic.clock import Clock, steady, wall
from spotelastic.cloud.bucket import CURVE, EVENTS, MEASURED, REPORT, STATUS, USAGE
from spotelastic.errors import SpotelasticError, UsageError
from spotelastic.model.counting import size
from spotelastic.model.job import ENDED
from spotelastic.model.progress import NodeStatus, Status
from spotelastic.model.requests.dump import LAST, file_name, folder, object_name

LOOK_EVERY = 0.25
WITHIN = 20.0
"""Seconds that nodes have to answer."""
AT_ONCE = 8
"""Consoles that are read at once."""
ENDED_NODES = 32
"""Most archives of nodes that have ended."""
PUBLISHED = (STATUS, REPORT, EVENTS, CURVE, MEASURED, USAGE)

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Dump:
    """A dump that was written."""

    file: str
    """Path of the archive."""
    index: DumpIndex
    """What it has, and what is missing."""


@dataclass(slots=True)
class _Collection:
    """A dump on its way."""

    source: DumpSource
    archive: DumpArchive
    say: Say
    nodes: list[DumpedNode] = field(default_factory=list)


def collect(
    source: DumpSource,
    node: str | None,
    output: Path | None,
    say: Say,
    *,
    within: float = WITHIN,
    clock: Clock = wall,
) -> Dump:
    """Collect what there is of one node, or of all, and write it to `output`.

    Without `output`, to a file in this folder. Raises `UsageError` for a node that the cluster
    never had.
    """
    at = clock()
    status, job = source.status(), source.job()
    its = _meant(source, status, node)
    secrets = known_secrets(source, job)
    archive = DumpArchive(secrets.redaction(job))
    collection = _Collection(source, archive, say)
    if job is None:
        archive.lack("the job", "it is missing, or of another version")
    else:
        archive.json("cluster/job.json", job_without_secrets(job, known=secrets.complete))
    _published(collection)
    _nodes(collection, its, status, node, within)
    _consoles(collection, its)
    _ended_nodes(collection, node)
    index = DumpIndex(
        source.name,
        at,
        versions(),
        tuple(collection.nodes),
        archive.listing(),
        tuple(archive.missing),
    )
    file = output or Path(file_name(source.name, node, at))
    archive.write(file, index)
    return Dump(str(file.absolute()), index)


def _meant(source: DumpSource, status: Status | None, node: str | None) -> Sequence[NodeStatus]:
    """Return the rows of the nodes that are meant. Raises `UsageError` for an unknown node."""
    rows = status.nodes if status is not None else ()
    if node is None:
        return rows
    found = tuple(row for row in rows if row.id == node)
    if not found and object_name(LAST, node) not in source.objects.names(folder(LAST)):
        known = ", ".join(row.id for row in rows)
        raise UsageError(
            f"{source.name} has no node {node}; "
            + (f"it has {known}" if known else "no node of it is known; take --all")
        )
    return found


# -- parts ----------------------------------------------------------------------------------------


def _published(collection: _Collection) -> None:
    archive, objects = collection.archive, collection.source.objects
    for name in PUBLISHED:
        try:
            data = objects.get(name)
        except SpotelasticError as error:
            archive.lack(name, error)
            continue
        if data is None:
            archive.lack(name, "it was never written")
        else:
            archive.text(f"cluster/{name}", data.decode(errors="replace"))
    collection.say(f"{collection.source.name}: status, events and report")


def _nodes(
    collection: _Collection,
    rows: Sequence[NodeStatus],
    status: Status | None,
    node: str | None,
    within: float,
) -> None:
    workers = [row for row in rows if row.role == "worker" and row.state not in ("gone", "pending")]
    answered: set[str] = set()
    if workers and collection.source.cluster is not None and not _has_ended(status):
        answered = _asked(collection, [row.id for row in workers], node, within)
    for row in rows:
        why = "it has answered" if row.id in answered else _without_answer(collection, row)
        collection.nodes.append(DumpedNode(row.id, row.role, row.state, row.id in answered, why))


def _has_ended(status: Status | None) -> bool:
    """Whether the job has ended, so that no agent runs that could answer."""
    return status is not None and status.state in ENDED


def _asked(
    collection: _Collection, wanted: Sequence[str], node: str | None, within: float
) -> set[str]:
    """Ask the nodes, and add what they answer in time. Returns who did."""
    source, say = collection.source, collection.say
    assert source.cluster is not None
    give_up = steady() + within
    try:
        request = commands.dump(source.cluster, node)
    except SpotelasticError as error:
        say(f"the nodes cannot be asked: {error}")
        collection.archive.lack("what the nodes know", error)
        return set()
    say(f"asked {', '.join(wanted)}: waiting for at most {within:g} s")
    answered: set[str] = set()
    while True:
        try:
            there = set(source.objects.names(folder(request)))
            for each in sorted(set(wanted) - answered):
                if object_name(request, each) in there:
                    answered.add(each)
                    _add_node(collection, each, object_name(request, each))
        except SpotelasticError as error:
            collection.archive.lack("the answers of the nodes", error)
            break
        if answered >= set(wanted) or steady() >= give_up:
            break
        threading.Event().wait(LOOK_EVERY)
    for each in sorted(set(wanted) - answered):
        say(f"{each} has not answered within {within:g} s")
    return answered


def _add_node(collection: _Collection, node: str, name: str) -> None:
    data = collection.source.objects.get(name)
    if data is not None:
        collection.archive.node(node, data)
        collection.say(f"{node}: {size(len(data))}")


def _without_answer(collection: _Collection, row: NodeStatus) -> str:
    """Add the output of a node's workers, as the log group has it. Returns why it is needed."""
    cluster, archive = collection.source.cluster, collection.archive
    if cluster is None:
        return "the cluster is gone"
    why = "it has not answered in time" if row.role == "worker" else "control nodes are not asked"
    if row.role == "worker":
        try:
            archive.text(f"nodes/{row.id}/output.log", newest_lines(cluster, row.id))
        except SpotelasticError as error:
            archive.lack(f"the output of {row.id}", error)
    return why


def _consoles(collection: _Collection, rows: Sequence[NodeStatus]) -> None:
    """Add what each node has written to its console: the lines of its agent, or controller."""
    cluster = collection.source.cluster
    if cluster is None or not rows:
        return

    def read(node: str) -> str | SpotelasticError:
        try:
            return autoscaling.console(cluster.aws, node)
        except SpotelasticError as error:
            return error

    first, *others = [row.id for row in rows]
    found = {first: read(first)}  # which makes boto3's client: not on several threads at once
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found |= zip(others, pool.map(read, others), strict=True)
    for node, told in found.items():
        if isinstance(told, SpotelasticError):
            collection.archive.lack(f"the console of {node}", told)
        else:
            collection.archive.text(f"nodes/{node}/console.log", told)


def _ended_nodes(collection: _Collection, node: str | None) -> None:
    """Add what nodes have left behind as they ended, if they have not answered themselves."""
    objects, rows = collection.source.objects, {each.node: each for each in collection.nodes}
    try:
        names = objects.names(folder(LAST))
        left = [name.removeprefix(folder(LAST)).removesuffix(".tar.gz") for name in names]
        left = [each for each in left if "/" not in each]  # it names a folder in the archive
        meant = [
            each
            for each in left
            if node in (None, each) and not (each in rows and rows[each].answered)
        ]
        for each in meant[:ENDED_NODES]:
            _add_node(collection, each, object_name(LAST, each))
            row = rows.get(each, DumpedNode(each, "worker", "gone", False, ""))
            rows[each] = replace(row, why="its agent left this behind as it ended")
    except SpotelasticError as error:
        collection.archive.lack("what nodes have left behind", error)
        return
    for each in meant[ENDED_NODES:]:
        collection.archive.lack(each, f"has ended, as {ENDED_NODES} others: name it to have it")
    collection.nodes = list(rows.values())
