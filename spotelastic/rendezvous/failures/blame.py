"""Decides which failure of a round caused the others (pure).

A worker that is gone is seen by its peers, whose collectives fail. They often tell of it first, and
are not to blame: another one was lost, or a worker there died. Not all that such a loss makes a
script raise is known as that, so that a worker which was killed counts before others. What was told
first counts only among failures of the same kind.
"""

import re
import signal
from collections.abc import Iterable
from dataclasses import replace

from spotelastic.model.job import Failure
from spotelastic.model.progress import Event
from spotelastic.model.round import Round
from spotelastic.rendezvous.failures import restarts
from spotelastic.rendezvous.rules import describe

SYMPTOM = re.compile(
    r"by peer|broken pipe|connection (refused|closed|reset|abort|was likely closed)"
    r"|remote process|network error|network is unreachable|host is (down|unreachable)"
    r"|endpoint is not connected"
    r"|read error|write error|timed ?out|timeout|heartbeat|no route|failed to recv"
    r"|process group was closed",
    re.I,
)
"""What a worker says whose peer, or the way to it, has gone."""
_BEHIND = re.compile(r"(closed|reset) by peer|remote process (exited|has)", re.I)
"""The same in a traceback, where what was raised from it follows. It holds lines of code, too."""


def is_symptom(failure: Failure) -> bool:
    """Whether the failure says no more than that a peer is gone."""
    return _tier(failure) > 1


def tells_of_peer(event: Event) -> bool:
    """Whether an event of a failure says no more than that a peer is gone.

    Nodes of an earlier version say so in the message alone.
    """
    said = event.data.get("lost_peer")
    return SYMPTOM.search(event.message) is not None if said is None else bool(said)


def tells_of_mistake(event: Event) -> bool:
    """Whether an event of a failure tells of a mistake in the script, which no node makes."""
    _, _, said = event.message.partition(": ")
    return said.partition(":")[0] in restarts.MISTAKES


def is_kill(exit_code: int) -> bool:
    """Whether a signal has ended a worker.

    One that aborts has raised an error, perhaps because of its peers.
    """
    return exit_code < 0 and exit_code != -signal.SIGABRT


def _tier(failure: Failure) -> int:
    if failure.broken or SYMPTOM.search(failure.message):
        return 3
    if _BEHIND.search(failure.traceback):
        return 2
    return 0 if is_kill(failure.exit_code) else 1


def first(failures: Iterable[Failure]) -> Failure | None:
    """Return the failure that caused the others; None if there is none."""
    return min(failures, key=lambda f: (_tier(f), f.at, f.node, f.local_rank), default=None)


def of_job(failures: Iterable[Failure], last: str) -> Failure | None:
    """Return the failure to show of a job that ends because its `last` round failed.

    If only peers have told of that, it is the newest one that says more.
    """
    of_workers = [failure for failure in failures if failure.rank >= 0]
    found = first(failure for failure in of_workers if failure.round == last)
    if found is not None and not is_symptom(found):
        return found
    more = [failure for failure in of_workers if not is_symptom(failure)]
    return max(more, key=lambda failure: failure.at, default=found)


def corrected(round_: Round, failures: Iterable[Failure]) -> Round:
    """Return a proposed round that names the worker that failed first.

    The worker is named if its failure was told after those of the workers that lost it as a peer.
    """
    if round_.cause != "worker" or round_.nodes:
        return round_
    found = first(f for f in failures if f.round == round_.parent and f.rank >= 0)
    if found is None or found.stalled or is_symptom(found):
        return round_
    reason = describe(round_.cause, (found.node,), len(round_.members))
    return replace(
        round_,
        nodes=(found.node,),
        reason="".join((reason, *round_.reason.partition("; ")[1:])),
        streak=restarts.learnt(round_.streak, found),
    )
