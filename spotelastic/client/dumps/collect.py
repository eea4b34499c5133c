"""Collects a dump: what a cluster has published, and what its nodes have written, in one archive.

What cannot be had is named in the index, and the rest is kept: a bug report is often about just
that.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from spotelastic.aws.compute import autoscaling
from spotelastic.client.dumps.archive import DumpArchive, DumpIndex
from spotelastic.client.dumps.dump_source import DumpSource, job_without_secrets, known_secrets
from spotelastic.client.dumps.versions import versions
from spotelastic.client.dumps.worker_output import newest_lines
from spotelastic.clock import Clock, wall
from spotelastic.cloud.bucket import CURVE, EVENTS, MEASURED, REPORT, STATUS, USAGE
from spotelastic.errors import SpotelasticError, UsageError
from spotelastic.model.progress import NodeStatus, Status
from spotelastic.model.requests.dump import file_name

AT_ONCE = 8
"""Consoles that are read at once."""
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


def collect(
    source: DumpSource,
    node: str | None,
    output: Path | None,
    say: Say,
    *,
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
    _output(collection, its)
    _consoles(collection, its)
    index = DumpIndex(source.name, at, versions(), archive.listing(), tuple(archive.missing))
    file = output or Path(file_name(source.name, node, at))
    archive.write(file, index)
    return Dump(str(file.absolute()), index)


def _meant(source: DumpSource, status: Status | None, node: str | None) -> Sequence[NodeStatus]:
    """Return the rows of the nodes that are meant. Raises `UsageError` for an unknown node."""
    rows = status.nodes if status is not None else ()
    if node is None:
        return rows
    found = tuple(row for row in rows if row.id == node)
    if not found:
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


def _output(collection: _Collection, rows: Sequence[NodeStatus]) -> None:
    """Add the output of the nodes' workers, as the log group has it."""
    cluster, archive = collection.source.cluster, collection.archive
    for row in rows:
        if cluster is not None and row.role == "worker":
            try:
                archive.text(f"nodes/{row.id}/output.log", newest_lines(cluster, row.id))
            except SpotelasticError as error:
                archive.lack(f"the output of {row.id}", error)
    collection.say(f"output of {', '.join(row.id for row in rows) or 'no node'}")


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
