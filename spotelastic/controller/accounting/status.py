"""Builds the status that people see, from one observation (pure)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

from spotelastic.cloud.model import ALIVE, Instance
from spotelastic.controller.accounting import rehearsals, training_pace
from spotelastic.controller.accounting.usage import Bill, money
from spotelastic.controller.model.observation import Fate, Records
from spotelastic.model.counting import counted
from spotelastic.model.gpu import UNHEALTHY
from spotelastic.model.interruption_kind import InterruptionKind
from spotelastic.model.job import ENDED, Job, JobSpec
from spotelastic.model.measured import GPU_MEMORY, GPU_USE
from spotelastic.model.progress import (
    NodeRole,
    NodeStatus,
    Point,
    Progress,
    Status,
    Upload,
    newest_committed,
)
from spotelastic.model.protocol import PROTOCOL, ProtocolVersion
from spotelastic.model.round import Round

RECENT = 20
"""Number of steps from which the seconds per step are taken."""
QUIET_NODES = 4
"""Most nodes whose silence is shown."""
UNREAD_SHOWN, NAMES_SHOWN = 4, 4
"""Most unreadable keys, and most nodes of one version, that a warning names."""
ILL_SHOWN, ILL_SHOWN_FOR = 4, 3600.0
"""Most lines about sick nodes, and the seconds for which they are shown."""
EFA = "efa"
"""Kind of the event of a node's network devices."""


@dataclass(frozen=True, slots=True)
class Account:
    """All that is published, as of one moment."""

    records: Records = Records()
    machines: Mapping[str, Instance] = field(default_factory=dict)
    bill: Bill = field(default_factory=dict)
    prices_of: str = ""
    fates: Mapping[Fate, int] = field(default_factory=dict)
    """Number of the cloud's messages that this leader has deleted, by what was done about them."""
    short_since: float | None = None
    held: tuple[str, ...] = ()
    """Further warnings: what somebody has suspended, zones that are avoided, deaf receivers."""
    spec: JobSpec | None = None
    """The job's description as it was read last; None: not yet."""
    total: int = 0
    """The step that the run ends with, as nodes told last; 0: the script does not say."""


def status(cluster: str, account: Account, etcd_leader: str, now: float) -> Status:
    """Return the status that `spotelastic status` shows.

    `etcd_leader` is the name of the etcd member that leads, empty for none.
    """
    records, spec = account.records, account.spec
    job, round_ = records.job, records.round
    linger = spec.linger if spec is not None else None
    state = job.state if job else "pending"
    if state == "pending" and round_ is not None and _has_trained(round_):
        state = "running"
    last = records.points[-1] if records.points else None
    committed = newest_committed(records.progress.values())
    told, spent = _newest_reports(records), money(account.bill.values(), now)
    ended = job if job is not None and job.state in ENDED else None
    seconds = step_time(records.points)
    machines = account.machines.values()
    leads = (m.id for m in machines if m.member == etcd_leader and m.state in ALIVE)
    slow = [each for each in records.slow.values() if each.node in records.nodes]
    return Status(
        name=cluster,
        state=state,
        at=now,
        round=round_.number if round_ else 0,
        step=reached(records),
        loss=last.loss if last else None,
        world_size=round_.world_size if round_ else 0,
        committed=committed,
        upload=upload(records, committed),
        step_time=seconds,
        leader=records.leader,
        etcd_leader=next(leads, ""),
        reason=_reason(records),
        nodes=tuple(_nodes(records, account.machines)),
        messages={str(fate): count for fate, count in sorted(account.fates.items())},
        quiet=_quiet(records),
        short_since=account.short_since,
        slow=tuple(sorted(slow, key=lambda slow: -slow.factor)),
        warnings=(*account.held, *_warnings(records), *_of_health(records, now)),
        network=_network(records),
        replica=_replica(records),
        rehearsal=rehearsals.telling(records.events),
        proof=rehearsals.proof(records.events),
        skipped=rehearsals.skipped(records.events),
        audit=rehearsals.audit(records.events),
        total=account.total,
        samples_per_second=sum(each.samples for each in told) / seconds if seconds else 0.0,
        pace=training_pace.pace(records.points, _newest(records, "restart")),
        began_at=records.points[0].at if records.points else 0.0,
        stepped_at=last.at if last is not None else 0.0,
        not_finite=training_pace.not_finite_since(told, records.points),
        usual_loss=training_pace.usual_loss(records.points),
        unsaved=next((each.unsaved for each in told if each.unsaved and ended is None), ""),
        committed_at=_newest(records, "committed"),
        error=_error(ended),
        ends_at=ended.at + linger if ended is not None and linger is not None else None,
        usd=spent.spent,
        usd_per_hour=spent.per_hour,
        logged=_logged(records),
    )


def _newest(records: Records, kind: str) -> float:
    """Return the time of the newest event of a kind; 0: there is none."""
    return max((each.at for each in records.events if each.kind == kind), default=0.0)


def _logged(records: Records) -> dict[str, float | None]:
    """Return the newest value of each name that the script logs."""
    return {
        name: series[-1].value
        for name, series in records.measured.items()
        if series and name not in (GPU_USE, GPU_MEMORY)
    }


def _newest_reports(records: Records) -> Sequence[Progress]:
    """Return the nodes' reports of the newest round of which there are any.

    When a round has just begun, they are those of the round before.
    """
    newest = max((each.round for each in records.progress.values()), default=0)
    return [each for each in records.progress.values() if each.round == newest]


def run_total(records: Records, known: int) -> int:
    """Return the step that the run ends with, which was `known` before; 0: the script does not say.

    Nodes tell it with their first step of a round. Until then it is what it was, but for a job that
    was restarted: its arguments may be others.
    """
    told = _newest_reports(records)
    if any(each.total or each.step_time for each in told):
        return max(each.total for each in told)
    stepped_at = records.points[-1].at if records.points else 0.0
    return known if stepped_at >= _newest(records, "restart") else 0


def _error(ended: Job | None) -> str:
    """Return the error of a job that has failed, in one line.

    It is the first line of a message, or the last line of a traceback.
    """
    failure = ended.failure if ended is not None else None
    if failure is None:
        return ""
    message = failure.message.strip().partition("\n")[0]
    return message or failure.traceback.strip().rpartition("\n")[2]


def _warnings(records: Records) -> Iterable[str]:
    """Yield what is announced for nodes, and versions that do not understand each other.

    Of many, only the first ones are yielded.
    """
    yield from (
        notice.line
        for node, notice in sorted(records.scheduled.items())
        if node in records.nodes and node not in records.drains
    )
    if records.round is not None and records.round.plain:
        yield (
            "the script has entered no Checkpointer: its steps are not known, nothing of it is "
            "saved, and each round starts it again from what it has saved itself"
        )
    unread = sorted(records.unreadable.items())
    for key, why in unread[:UNREAD_SHOWN]:
        yield f"the controller (protocol {PROTOCOL}) cannot read {key} in etcd: {why}"
    if len(unread) > UNREAD_SHOWN:
        yield f"and {counted(len(unread) - UNREAD_SHOWN, 'other key')} in etcd"
    spoken: dict[ProtocolVersion, list[str]] = {PROTOCOL: ["the controller"]}
    for node in sorted(records.nodes.values(), key=lambda node: node.id):
        spoken.setdefault(node.fingerprint.protocol, []).append(node.id)
    if len(spoken) > 1:
        each = (f"{version} ({_named(who)})" for version, who in sorted(spoken.items()))
        yield (
            f"several versions of spotelastic are at work: protocol {', '.join(each)}; they work "
            "together, and a node that starts after another `spotelastic up` has its version"
        )
    yield from (
        event.message
        for event in records.events
        if event.kind == "version" and event.node in records.nodes
    )
    told = [e for e in records.events if e.kind == "files" and e.at > _newest(records, "restart")]
    for event in told[-1:]:
        lost = event.message.replace("on this node alone", f"lost with {event.node}")
        yield f"{event.node}: {event.message}" if event.node in records.nodes else lost
    yield from _slow_replicas(records)


def _slow_replicas(records: Records) -> Iterable[str]:
    """Of replicas that cannot follow the snapshots, so that nodes have replicas of other steps."""
    round_ = records.round
    if round_ is None or not round_.partners:
        return
    took = max((each.replica_time for each in records.of_round.values()), default=0.0)
    every = round_.schedule.snapshot_every * step_time(records.points)
    if 0 < every < took:
        yield (
            f"a replica takes {took:.1f} s, and snapshots come every {every:.1f} s: a node that is "
            "lost may lead back to a checkpoint. Make snapshots rarer (--snapshot-every auto), or "
            "replicas faster (--replicate)"
        )


def _of_health(records: Records, now: float) -> Iterable[str]:
    """Yield which nodes fell ill lately, and which GPUs and networks are at fault.

    The latter are not as they should be. Of many, only the last ones are yielded.
    """
    ill = [e for e in records.events if e.kind == UNHEALTHY and now - e.at < ILL_SHOWN_FOR]
    odd = [
        event
        for event in records.events
        if event.node in records.nodes
        and (event.kind == "gpu" or (event.kind == EFA and not event.data.get("plugin")))
    ]
    yield from dict.fromkeys(event.message for event in [*ill, *odd][-ILL_SHOWN:])


def _network(records: Records) -> str:
    """Return what EFA the nodes have: one text if all have the same."""
    told = {e.node: e.data for e in records.events if e.kind == EFA and e.node in records.nodes}
    kinds: dict[str, list[str]] = {}
    for node, data in sorted(told.items()):
        plugin = "yes" if data.get("plugin") else "no"
        text = f"EFA: {counted(int(data.get('devices', 0)), 'device')}, plugin {plugin}"
        kinds.setdefault(text, []).append(node)
    if len(kinds) == 1 and len(told) == len(records.nodes):
        return next(iter(kinds))
    return "; ".join(f"{text} ({_named(nodes)})" for text, nodes in kinds.items())


def _named(names: Sequence[str]) -> str:
    """Return the first ones of many."""
    more = len(names) - NAMES_SHOWN
    return ", ".join(names[:NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _has_trained(round_: Round) -> bool:
    """Whether training has begun in this life of the job."""
    return round_.phase != "over" and (bool(round_.parent) or round_.phase == "started")


def reached(records: Records) -> int:
    """Return the newest step that is known.

    A round that has just begun has reported none yet, and a job that has failed says none at its
    end.
    """
    job, round_ = records.job, records.round
    if job is not None and job.state in ENDED and job.final_step:
        return job.final_step
    told = [p.step for p in records.progress.values() if round_ and p.round == round_.number]
    if round_ is not None and round_.phase == "started":
        return max([round_.resume.step, *told])
    return records.points[-1].step if records.points else 0


def _quiet(records: Records) -> str:
    """Return what the nodes of the round report of their silence: the first ones of many.

    A job that has ended is silent.
    """
    if records.job is not None and records.job.state in ENDED:
        return ""
    lines = [each.quiet for each in records.of_round.values() if each.quiet]
    return "\n".join([*lines[:QUIET_NODES], *(["…"] if len(lines) > QUIET_NODES else [])])


def upload(records: Records, committed: int) -> Upload | None:
    """Return the newest checkpoint that is being uploaded.

    It is summed over the nodes that still upload a part of it.
    """
    told = (p.upload for node, p in records.progress.items() if node in records.nodes)
    parts = [part for part in told if part is not None and part.step > committed]
    newest = max((part.step for part in parts), default=0)
    parts = [part for part in parts if part.step == newest]
    if not parts:
        return None
    done, total = sum(part.done for part in parts), sum(part.total for part in parts)
    return Upload(newest, done, total, sum(part.rate for part in parts))


def _replica(records: Records) -> int:
    """Return the newest step of which each node of the round has kept its partner's shards."""
    partners, told = records.round.partners if records.round else (), records.of_round
    kept = (told[each.node].replica if each.node in told else 0 for each in partners)
    return min(kept, default=0)


def step_time(points: Sequence[Point]) -> float:
    """Return the median seconds between the last steps; 0: none were seen."""
    recent = points[-RECENT:]
    gaps = [b.at - a.at for a, b in pairwise(recent) if b.step == a.step + 1]
    return round(median(gaps), 4) if gaps else 0.0


def _reason(records: Records) -> str:
    job = records.job
    if job is None or job.state not in ENDED:
        if records.ending is not None:
            return f"{records.ending.reason}: ends once its last step is committed"
        if records.round is None or records.round.phase == "over":
            return job.reason if job is not None else ""
        return records.round.reason
    failure = job.failure
    if failure is None:
        return job.reason
    why = job.reason or f"rank {failure.rank} on {failure.node}"
    told = failure.traceback or failure.message
    return why if told.strip() in why else f"{why}\n{told}"


def _nodes(records: Records, machines: Mapping[str, Instance]) -> Iterable[NodeStatus]:
    """Yield one row per instance that is alive or still counts; workers first."""
    ordered = sorted(machines.values(), key=lambda m: (m.role == "control", m.launched_at, m.id))
    for machine in ordered:
        if machine.role == "control" and machine.state in ALIVE:
            yield _row(records, machine, "control", _control_state(records, machine))
        elif machine.role == "worker":
            if machine.state not in ALIVE and machine.id not in records.nodes:
                continue
            node_state = _worker_state(records, machine)
            member = records.round.member(machine.id) if records.round else None
            ranks: tuple[int, ...] = ()
            if records.round and member and node_state != "gone":
                ranks = records.round.ranks(member)
            yield _row(records, machine, "worker", node_state, ranks)


def _row(
    records: Records, machine: Instance, role: NodeRole, state: str, ranks: tuple[int, ...] = ()
) -> NodeStatus:
    told = records.progress.get(machine.id)
    return NodeStatus(
        machine.id,
        role,
        state,
        machine.zone,
        machine.address,
        ranks,
        type=machine.type,
        leaves_at=None if state == "gone" else _leaves_at(records, machine.id),
        gpu=told.gpu if told is not None and machine.id in records.nodes else None,
    )


def _leaves_at(records: Records, node: str) -> float | None:
    """Return when the node may be gone, by its notice, else by what is announced for it."""
    drain = records.drains.get(node)
    notice = drain.notice if drain is not None else records.scheduled.get(node)
    return notice.deadline if notice is not None else None


def _control_state(records: Records, machine: Instance) -> str:
    if machine.id == records.leader:
        return "leading"
    return "standing by" if machine.id in records.controllers else "joining"


def _worker_state(records: Records, machine: Instance) -> str:
    if machine.state == "pending":
        return "pending"
    if machine.state not in ALIVE:
        return "gone"
    job = records.job
    if job is not None and job.failure is not None and job.failure.node == machine.id:
        return "failed"
    if machine.id not in records.nodes:
        return _away(records, machine)
    if drain := records.drains.get(machine.id):
        return "sick" if drain.notice.kind is InterruptionKind.UNHEALTHY else "draining"
    member = records.round.member(machine.id) if records.round else None
    if records.round is None or member is None:
        return "waiting"
    return "training" if records.round.phase == "started" else "joining"


def _away(records: Records, machine: Instance) -> str:
    """Return the state of an instance that is alive but has no agent just now."""
    left = records.left.get(machine.id)
    if left is None:
        return "joining"
    restarts = ("restart", machine.id, f"::{left.incarnation}") in records.told
    return "restarting" if restarts else "gone"
