"""Reads the output of workers, for `spotelastic logs`.

It is in the cluster's log group. Of a local cluster it is in a folder, too, which stays when the
local cloud has ended.
"""

import math
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from spotelastic.aws.messaging import log_group
from spotelastic.aws.messaging.log_group import GroupLine, LogStream
from spotelastic.client.published import status_of
from spotelastic.client.targets.shown_cluster import OutputSource, ShownCluster
from spotelastic.clock import steady
from spotelastic.errors import UsageError
from spotelastic.model.counting import counted
from spotelastic.model.job import ENDED


@dataclass(frozen=True, slots=True)
class Polling:
    """How often what is followed is looked at, in seconds."""

    every: float = 1.0
    """Between two looks for new lines."""
    late: float = 5.0
    """Lines may arrive so much later than younger lines of another node, or than the job's end."""
    quiet: float = 15.0
    """Without a line for so long, it is asked whether the cluster is still there."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Selects lines by rank, node and time, each of them or none."""

    rank: int | None = None
    node: str | None = None
    since: float = 0.0
    """No lines that were written before; seconds since the epoch."""

    def takes(self, node: str, rank: int) -> bool:
        """Whether a worker's lines are selected."""
        return self.rank in (None, rank) and self.node in (None, node)

    def __str__(self) -> str:
        rank = "" if self.rank is None else f"rank {self.rank}"
        node = self.node or ""
        return " on ".join(filter(None, (rank, node))) or "the workers"


@dataclass(frozen=True, slots=True)
class OutputLine:
    """One line that a worker has written."""

    node: str
    rank: int
    at: float
    """When it was written, in seconds since the epoch."""
    text: str

    def __str__(self) -> str:
        return f"{self.node} rank {self.rank}: {self.text}"


SKEW = 86_400.0
"""Seconds by which the clock of the computer that ran `up` may be ahead of the nodes'."""
ALL, POLLING = Wanted(), Polling()


def tail(
    cluster: ShownCluster,
    wanted: Wanted = ALL,
    *,
    previous: int = 0,
    follow: bool = False,
    note: Callable[[str], None] | None = None,
    polling: Polling = POLLING,
) -> Iterator[OutputLine]:
    """Yield the lines of a cluster's workers in the order they were written.

    With `follow`, until the job has ended or the cluster was taken down. `note` is called if there
    is nothing to show; with `note`, an unknown node or rank raises `UsageError`. `previous`: of the
    cluster of this name that many before it.
    """
    output, its = cluster.output, log_group.born(cluster.spec.born_at)
    if previous:
        yield from earlier(output, cluster.name, its, previous, wanted)
        return
    begin = log_group.prefix(its, wanted.node or "")
    seen: dict[str, int] = {}
    # CloudWatch looks through all that is kept, of earlier clusters too, unless it is told a time.
    since = int(1000 * max(wanted.since, cluster.spec.born_at - SKEW))
    looked = any_shown = runs = False
    heard, until = steady(), math.inf if follow else steady()
    while True:
        # The status is read first, so that lines written before the end are still read.
        if until == math.inf:
            ended = status_of(cluster).state in ENDED
            if ended:
                until = steady() + (polling.late if runs else 0.0)
            elif not looked or steady() > heard + polling.quiet:
                heard = steady()
                # The last status of one that was taken down may still say "running".
                if not cluster.is_there():
                    until = steady()
            runs = not ended
        # Asked before the look, which whoever takes the lines may hold up: the last one begins when
        # all lines may be there.
        last = steady() >= until
        for line in output.lines(begin, since):
            if line.id in seen:
                continue
            seen[line.id] = line.at
            since, heard = max(since, line.at - int(polling.late * 1000)), steady()
            if line.stream.born == its and wanted.takes(line.stream.node, line.stream.rank):
                any_shown = True
                yield _shown(line)
        seen = {id: at for id, at in seen.items() if at >= since}
        if note is not None and not looked and not any_shown:
            _check(cluster, wanted, _writers(output, its), follow=follow, note=note)
        looked = True
        if last:
            return
        threading.Event().wait(polling.every)


def since(cluster: ShownCluster, wanted: Wanted, since: int) -> Iterator[tuple[str, OutputLine]]:
    """Yield the lines since then (in milliseconds), each with an id by which it is known again.

    For those who look again and again: lines arrive late, so they ask from a little earlier on.
    """
    its = log_group.born(cluster.spec.born_at)
    begin = log_group.prefix(its, wanted.node or "")
    for line in cluster.output.lines(begin, since):
        if line.stream.born == its and wanted.takes(line.stream.node, line.stream.rank):
            yield line.id, _shown(line)


def earlier(
    output: OutputSource, name: str, its: str, previous: int, wanted: Wanted = ALL
) -> Iterator[OutputLine]:
    """Yield the lines of the cluster that many before the one that was created at `its`.

    Raises `UsageError` if there are no lines of that many.
    """
    found = sorted({stream.born for stream in output.streams()} - {its}, reverse=True)
    if previous > len(found):
        times = ", ".join(each or "unknown time" for each in found)
        raise UsageError(
            f"--previous {previous}: there are logs of {counted(len(found), 'earlier cluster')} "
            f"named {name}" + (f", created {times} (UTC), the newest first" if found else "")
        )
    born, any_shown = found[previous - 1], False
    for line in output.lines(log_group.prefix(born, wanted.node or ""), int(wanted.since * 1000)):
        if line.stream.born == born and wanted.takes(line.stream.node, line.stream.rank):
            any_shown = True
            yield _shown(line)
    if not any_shown:
        writers = _writers(output, born)
        nodes, ranks = {each.node for each in writers}, {each.rank for each in writers}
        _refuse_unknown(name, wanted, nodes, ranks)


def _shown(line: GroupLine) -> OutputLine:
    return OutputLine(line.stream.node, line.stream.rank, line.at / 1000, line.text)


def _writers(output: OutputSource, born: str) -> list[LogStream]:
    return [stream for stream in output.streams() if stream.born == born]


def _check(
    cluster: ShownCluster,
    wanted: Wanted,
    writers: Sequence[LogStream],
    *,
    follow: bool,
    note: Callable[[str], None],
) -> None:
    """After the first look, explain why the selection has no lines."""
    status = status_of(cluster)
    workers = [row for row in status.nodes if row.role == "worker"]
    control = {row.id for row in status.nodes} - {row.id for row in workers}
    nodes = {stream.node for stream in writers} | {row.id for row in workers}
    ranks = {stream.rank for stream in writers} | {rank for row in workers for rank in row.ranks}
    _refuse_unknown(cluster.name, wanted, nodes, set() if follow else ranks, control)
    if status.state not in ENDED:
        note(f"{wanted}: no output yet")
    else:
        note(f"{wanted}: no output; lines are deleted {log_group.KEPT_DAYS} days after they came")


def _refuse_unknown(
    name: str,
    wanted: Wanted,
    nodes: Collection[str],
    ranks: Collection[int],
    control: Collection[str] = (),
) -> None:
    """Raise `UsageError` if the wanted node or rank is none of these. Without ranks any may be."""
    if wanted.node is not None and wanted.node not in nodes:
        what = "is a control node, without workers," if wanted.node in control else "is not a node"
        raise UsageError(
            f"--node {wanted.node} {what} of {name}; the nodes are: "
            f"{', '.join(sorted(nodes)) or 'none'}"
        )
    if wanted.rank is not None and ranks and wanted.rank not in ranks:
        raise UsageError(
            f"--rank {wanted.rank}: {name} has no such rank; the ranks are: {_span(sorted(ranks))}"
        )


def _span(ranks: Sequence[int]) -> str:
    """Return sorted ranks as text; there may be gaps if only some ranks have written."""
    if len(ranks) > 1 and ranks[-1] - ranks[0] == len(ranks) - 1:
        return f"{ranks[0]} to {ranks[-1]}"
    return ", ".join(map(str, ranks))
