"""Decides what a node's agent does next (pure).

It compares what should be with what is, each time anew. So the order of events does not matter, nor
whether one was missed. The duties of a node in a round are in `round_duties.py`, its end in
`shutdown.py`; here is the order of these, and what a node needs before it may belong to a run.

Must never happen: a node is admitted while it is not able to start at once. It registers only when
its zygote is warm and its daemon answers.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from spotelastic.agent import actions as do
from spotelastic.agent import round_duties, shutdown
from spotelastic.agent.health import illness
from spotelastic.agent.in_place import duties as in_place_duties
from spotelastic.agent.in_place import peers
from spotelastic.agent.state.values import BLIND, NodeState
from spotelastic.model.job import ENDED
from spotelastic.model.protocol import PROTOCOL
from spotelastic.model.round import CAUSES
from spotelastic.rendezvous import rounds
from spotelastic.rendezvous.duties import answers
from spotelastic.rendezvous.slowness import slow_nodes
from spotelastic.rendezvous.view import RunState

TELL_EVERY = 1.0
"""Seconds between two progress reports in rounds of up to `TELLERS` nodes. They grow with larger
rounds, so that etcd has no more to do.
"""
TELLERS = 64
ASK_EVERY = 5.0
"""Seconds without progress after which a daemon is asked for its status: a frozen one is noticed
so.
"""
UNREADABLE, NEWER = "unreadable", "newer"
"""Topics, as `BLIND` is: other nodes have written what this version cannot read, or words that it
does not know.
"""
RESTARTED = "restart"
"""Topic of the line that reports a restart of the agent."""
RESTART = 75
"""Exit code of an agent that is to be started again, because the job has changed (EX_TEMPFAIL)."""


@dataclass(frozen=True, slots=True)
class AgentDecision:
    actions: tuple[do.Action, ...] = ()
    wake_at: float = math.inf
    """When to look again if nothing happens."""


def decide(
    local: NodeState, seen: RunState, now: float, new_id: Callable[[], str]
) -> AgentDecision:
    """Return the next actions of this node, in order. Actions that need no etcd come first."""
    actions, wake_at = list[do.Action](), math.inf
    can_write = now >= local.retries.write_at and seen.healthy
    for step in _steps(local, seen, now, new_id):
        if isinstance(step, do.Wake):
            wake_at = min(wake_at, step.at)
        elif now < local.retries.ask_at and isinstance(step, do.DaemonAction):
            wake_at = min(wake_at, local.retries.ask_at)
        elif can_write or isinstance(step, do.LocalAction):
            actions.append(step)
            if isinstance(step, do.Exit):
                break
        elif seen.healthy:
            wake_at = min(wake_at, local.retries.write_at)
    return AgentDecision(tuple(actions), wake_at)


def _steps(local: NodeState, seen: RunState, now: float, new_id: Callable[[], str]) -> do.Steps:
    yield from shutdown.grace(local, now)
    yield from shutdown.stuck(local, now)
    job = seen.job
    if job is not None and job.state in ENDED:
        yield from shutdown.end(local, 0 if job.state == "succeeded" else 1)
        return
    yield from illness.check(local)
    if local.health.fault is not None:
        yield from illness.fall_ill(local, seen, now)
    elif local.departure.leaving:
        yield from shutdown.leave(local, seen, now)
    if not local.membership.zygote:
        yield do.StartZygote()
    if not local.store.daemon:
        yield do.StartDaemon()
    yield from round_duties.end_others(local, seen, now)
    yield from in_place_duties.end_rest(local, seen)
    if _is_outdated(local, seen) and local.workers is None:
        yield from _restart(local)
        return
    yield from _belong(local, seen)
    yield from in_place_duties.prepare(local, seen)
    yield from _hold(local, seen, now, new_id)
    yield from _schedule(local, now)
    departure = local.departure
    if departure.notice is not None and not departure.drained and local.membership.registered:
        yield do.WriteDrain()
    yield from round_duties.hurry(local, seen)
    round_ = seen.round
    if round_ is not None and local.node is not None and local.store.daemon:
        member = answers.place(local.node, round_)
        if member is None:
            yield from round_duties.left_out(local, round_)
        elif local.health.fault is not None:
            pass  # it leaves, whatever round it is in
        elif round_.phase == "proposed":
            yield from round_duties.get_ready(local, seen, round_, member, now)
        else:
            yield from round_duties.train(local, seen, round_, member, now)
    yield from _tell_versions(local, seen)
    yield from illness.tell(local)
    yield from _tell(local, now, len(round_.members) if round_ is not None else 0)


def _schedule(local: NodeState, now: float) -> do.Steps:
    """Record what is announced, and have the node leave for it when its time has come."""
    departure = local.departure
    if local.membership.registered:
        for notice in departure.untold:
            yield do.TellNotice(notice)
    for notice in departure.scheduled:
        if not notice.is_ahead(now):
            yield do.BeginDeparture(replace(notice, seen_at=now))
        elif notice.deadline is not None:
            yield do.Wake(notice.deadline - notice.kind.traits.ahead)


def _is_outdated(local: NodeState, seen: RunState) -> bool:
    """Whether the job's code is other than this agent was started with."""
    fingerprint = local.membership.fingerprint
    mine = fingerprint.code if fingerprint is not None else ""
    wanted = seen.settings.code if seen.settings is not None else ""
    return bool(mine and wanted) and mine != wanted


def _restart(local: NodeState) -> do.Steps:
    """End the agent, which is started again.

    Its state is sealed, and its daemon goes on serving it.
    """
    if RESTARTED not in local.reports.said:
        yield do.TellRestart()
    else:
        yield do.Exit(RESTART, "the code has changed: this node starts again with it")


# -- being part of the run ------------------------------------------------------------------------


def _belong(local: NodeState, seen: RunState) -> do.Steps:
    """Register the node where that is due.

    A new lease takes the node back where it was. A missed proposal makes it a newcomer. A node that
    was asked to leave, or is sick, does not register again; one whose check is due waits for it.
    """
    if local.health.unchecked or local.health.fault is not None:
        return
    if not local.membership.zygote or not local.store.daemon:
        return
    prepares = in_place_duties.prepares(local, seen)
    if local.node is None or answers.missed(local.node, seen.round):
        if seen.blind or BLIND in local.reports.said:  # it would come and go with every round
            return
        if local.membership.fingerprint is not None and not local.departure.leaving:
            yield do.Register(anew=True, prepares=prepares)
    elif not local.membership.registered or _is_told_wrong(local, prepares=prepares):
        yield do.Register(prepares=prepares)


def _is_told_wrong(local: NodeState, *, prepares: bool) -> bool:
    """Whether others see of this node what is so no longer.

    A daemon that was started again has another port, and a node whose daemon cannot be reached is
    taken for gone.
    """
    node = local.node
    return node is not None and (node.prepares, node.daemon) != (prepares, local.store.daemon)


def _hold(local: NodeState, seen: RunState, now: float, new_id: Callable[[], str]) -> do.Steps:
    """Campaigns for the election, and decides about rounds while this node holds it."""
    mine, retries = local.membership, local.retries
    if not mine.registered or mine.node is None:
        return
    if (sooner := peers.due(local, seen)) is not None:
        yield sooner
        return
    if seen.settings is None or seen.blind:
        return
    if mine.leadership is None:
        # The key may be this node's own: of a history that the store has gone back to.
        if seen.holder in ("", mine.node.id):
            yield do.Campaign()
    elif mine.nodes_seen and seen.revision < retries.lead_after and now < retries.lead_at:
        yield do.Wake(retries.lead_at)
    elif mine.nodes_seen:
        seen = replace(seen, refusing=peers.refusing(local, seen))
        decision = rounds.decide(seen, now, new_id)
        if decision.wake_at is not None:
            yield do.Wake(decision.wake_at)
        if led := decision.actions or slow_nodes.decide(seen, now):
            yield do.Lead(led)


# -- telling --------------------------------------------------------------------------------------


def _tell_versions(local: NodeState, seen: RunState) -> do.Steps:
    """Report nodes of different versions.

    The cluster works as one of equals does, but people should know.
    """
    round_, found = seen.round, dict[str, str]()
    same = "install the same version of spotelastic on all nodes"
    if seen.blind:
        what = f"cannot read what another node has written ({seen.blind})"
        found[BLIND] = f"{what}: it joins no further round; {same}"
    for key, why in seen.unreadable.items():
        if not key.startswith("all/"):
            what = f"cannot read what a node has written ({key}: {why})"
            found.setdefault(UNREADABLE, f"{what}: it decides about rounds without that; {same}")
    if round_ is not None and round_.cause not in CAUSES:
        what = f"does not know why round {round_.number} was formed (“{round_.cause}”)"
        found[NEWER] = f"{what}: another node runs a newer spotelastic; it goes on"
    for topic, line in found.items():
        if topic not in local.reports.said:
            yield do.TellVersions(topic, f"(protocol {PROTOCOL}) {line}")


def _tell(local: NodeState, now: float, nodes: int) -> do.Steps:
    """Publish progress when there is some. Without any, asks the daemon whether it is alive."""
    if not local.membership.registered:
        return
    share = max(1.0, nodes / TELLERS)
    workers, reports = local.workers, local.reports
    told = reports.told_step, reports.told_commit
    if reports.points or (reports.step, local.store.commit) != told:
        due = reports.told_at + TELL_EVERY * share
    elif workers is not None and workers.attached:
        due = max(reports.told_at, workers.started_at) + ASK_EVERY * share
    else:
        return
    yield do.TellProgress() if now >= due else do.Wake(due)
