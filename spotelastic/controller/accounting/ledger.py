"""Works out what every interruption cost, from what the product itself observed (pure).

The controller hands over the round history, its events, the executed steps and the bill. The result
is the report that people and `--json` see. Nothing here knows what a drill injected.

Rounds that executed steps are *runs*. Between two runs lies a *transition*, which may take several
rounds: a worker fails because its peer's instance is gone, the first proposal still names the lost
node, the second does not. All rounds of one transition explain one pause, so they are read
together: `causes.py` says what happened. Each node that went, or each worker that failed, is one
row. So is a node that was taken before it ever trained.

Must never happen: that a row changes once it is final. It is put on record then, and is read from
there (`ledger_events.with_recorded`).
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence, Set
from dataclasses import replace
from itertools import pairwise
from typing import Any

from spotelastic.controller.accounting import rehearsals, restores
from spotelastic.controller.accounting.causes import (
    accounts_of,
    happened,
    kind_told,
    observed,
    troubles,
)
from spotelastic.controller.accounting.ledger_events import with_recorded
from spotelastic.controller.accounting.run_segments import (
    Run,
    Transition,
    lives,
    moment,
    ordinary_step,
    runs_of,
    step_before,
    transitions,
)
from spotelastic.controller.accounting.usage import Usage, expenses
from spotelastic.model.counting import HOUR
from spotelastic.model.interruption_kind import InterruptionKind
from spotelastic.model.job import ENDED, Job
from spotelastic.model.progress import (
    Event,
    Interruption,
    Point,
    Report,
    ReportJob,
)
from spotelastic.model.round import Round, RoundRecord

SAME_OUTAGE = 10.0
"""Seconds within which reports of an etcd member are of one failure whose end is not known."""


def report(
    history: Sequence[RoundRecord],
    current: Round | None,
    job: Job,
    events: Sequence[Event],
    points: Sequence[Point],
    usage: Sequence[Usage],
    now: float,
    prices_of: str = "",
) -> Report:
    """Return the report of a job up to `now`, finished or not.

    `prices_of` is the date of its on-demand prices.
    """
    points = sorted(points, key=moment)
    workers = [item for item in usage if item.role == "worker"]
    runs = runs_of(history, current, job, points)
    ordinary = ordinary_step(points, runs)
    rounds = [run.round for run in runs]
    rows = [
        row
        for transition in transitions(runs)
        for row in _priced(
            transition,
            troubles(transition, rounds, events),
            events,
            step_before(transition.before.last_at, points, ordinary),
            workers,
            job,
        )
    ]
    rows = _with_restores(rows, events)
    outages = _outages(events, points, ordinary)
    known = {row.node for row in rows} | _trained(runs) | _about_to_train(current, job)
    idle = _idle(events, known, job.at if job.state in ENDED else float("inf"))
    if current is not None and current.plain:  # what its nodes did is not known
        own = {member.node for each in rounds for member in each.members}
        idle = [
            replace(row, pause_s=None, steps_lost=None, usd=None) if row.node in own else row
            for row in idle
        ]
    rows = with_recorded([*rows, *idle, *outages], events)
    final_step = job.final_step or _reached(runs)
    return Report(
        job=ReportJob(
            state=job.state,
            final_step=final_step,
            steps_run=sum(run.steps for run in runs),
        ),
        interruptions=tuple(sorted(rows, key=lambda row: (row.at, row.node))),
        goodput=_goodput(runs, outages, ordinary),
        node_hours=sum(item.hours(now) for item in workers),
        prices_of=prices_of,
        **expenses(usage, now),
        rehearsal=rehearsals.telling(events),
        proof=rehearsals.proof(events),
        fingerprint=rehearsals.fingerprint(events, final_step),
        skipped=rehearsals.skipped(events),
        audit=rehearsals.audit(events),
    )


# -- rows ----------------------------------------------------------------------------------------


def _priced(
    transition: Transition,
    found: Sequence[Interruption],
    events: Sequence[Event],
    ordinary: float,
    usage: Sequence[Usage],
    job: Job,
) -> list[Interruption]:
    """Return the rows with their price.

    It is that of all workers billed during the pause, and of the nodes that repeat the lost steps.
    Steps are lost once: the most severe interruption accounts for them.
    """
    saved = transition.saved_step
    lost = None if saved is None else max(0, transition.before.last - saved)
    blamed = max(found, key=lambda row: row.kind.traits.severity, default=None)
    pause = None
    if transition.after is not None and transition.after.first_at and transition.before.last_at:
        gap = transition.after.first_at - transition.before.last_at
        pause = max(0.0, gap - ordinary)
    usd = None
    is_priced = any(item.rate for item in usage)
    if is_priced and pause is not None and lost is not None:
        began, went_on = transition.before.last_at, transition.before.last_at + pause
        group = {member.node for member in transition.rounds[-1].members}
        per_hour = sum(item.rate_at(went_on) for item in usage if item.instance in group)
        repeated = lost * ordinary * per_hour / HOUR
        billed = sum(item.usd(began, went_on) for item in usage)
        usd = round(billed + repeated, 6)
    after = transition.after
    return [
        replace(
            row,
            first_step_at=(after.first_at or None) if after is not None else None,
            usd=usd if row is blamed or usd is None else 0.0,
            saved_step=saved,
            committed=_is_committed(transition, events, job),
            pause_s=_rounded(pause),
            steps_lost=lost if row is blamed or lost is None else 0,
            round=None if after is None else after.round.number,
            source=_source(transition),
            step_s=None if pause is None else _rounded(ordinary),
        )
        for row in found
    ]


def _with_restores(rows: Iterable[Interruption], events: Iterable[Event]) -> list[Interruption]:
    """Return the rows with what the nodes have measured of their restores."""
    measured = restores.by_round(events)
    return [
        replace(row, restore_s=max(found.values()), restores=found)
        if row.round is not None and (found := measured.get(row.round))
        else row
        for row in rows
    ]


def _source(transition: Transition) -> str:
    """Return where the state came from that training resumed from."""
    resume = transition.resume
    if resume is None or resume.kind == "fresh":
        return ""
    return "replica" if any(holder.replica for holder in resume.holders) else resume.kind


def _is_committed(transition: Transition, events: Sequence[Event], job: Job) -> bool | None:
    """Whether the step that training resumed from is in the object store.

    None: not yet. It comes there with a commit, unless that is of a later step, or the job is over.
    """
    resume, after = transition.resume, transition.after
    if resume is None:
        return None
    if resume.kind == "store" or (after is not None and after.sent_back):
        return True  # nobody is sent back but to a commit
    commits = {event.data.get("step", 0): event.at for event in events if event.kind == "committed"}
    if resume.step in commits:
        return True
    resumed_at = transition.before.last_at
    passed = any(step > resume.step and at > resumed_at for step, at in commits.items())
    return False if passed or job.state in ENDED or resume.kind == "fresh" else None


def _reached(runs: Sequence[Run]) -> int:
    """Return the step that training is at.

    The last run may not have come as far as those before it.
    """
    furthest = max((run.last for run in runs), default=0)
    return next((run.last for run in reversed(runs) if run.steps), furthest)


def _trained(runs: Sequence[Run]) -> set[str]:
    return {member.node for run in runs if run.steps for member in run.round.members}


def _about_to_train(current: Round | None, job: Job) -> set[str]:
    """Return the members of a round that still restores.

    What befalls them is a row once it has executed a step.
    """
    if current is None or job.state in ENDED:
        return set()
    return {member.node for member in current.members}


def _idle(events: Sequence[Event], known: Set[str], until: float) -> list[Interruption]:
    """Return one row for each node that was taken while it booted or waited, without a pause.

    A node that was given up then was not interrupted.
    """
    told = defaultdict[str, list[Event]](list)
    for event in events:
        if event.node not in known and event.at <= until:
            told[event.node].append(event)
    rows = []
    for node, mine in told.items():
        kind = kind_told(mine)
        if kind is None or kind is InterruptionKind.PLANNED:
            continue
        row = observed(kind, node, accounts_of(mine, kind.traits.event))
        rows.append(replace(row, pause_s=0.0, steps_lost=0, usd=0.0))
    return rows


def _outages(
    events: Sequence[Event], points: Sequence[Point], ordinary: float
) -> list[Interruption]:
    """Return one row for each time that an etcd member was away.

    It moves no round and loses no step.
    """
    rows = []
    for data, at, node in _distinct_outages(events):
        seen, back_at = data.get("seen_at"), float(data.get("back_at") or at)
        after = None if seen is None else round(max(0.0, float(seen) - at), 3)
        pause = _gap_around(at, back_at, points, step_before(at, points, ordinary))
        row = Interruption(InterruptionKind.ETCD, node, at, after)
        rows.append(replace(row, pause_s=_rounded(pause), steps_lost=0))
    return rows


def _distinct_outages(events: Sequence[Event]) -> list[tuple[dict[str, Any], float, str]]:
    """Merge reports of one outage: two controllers', or its start and its end."""
    outages: list[tuple[dict[str, Any], float, str]] = []
    for event in sorted((e for e in events if e.kind == "etcd"), key=happened):
        at = happened(event)
        node = event.node or str(event.data.get("member", ""))
        for index, (data, start, who) in enumerate(outages):
            end = float(data.get("back_at") or start + SAME_OUTAGE)
            if who == node and at <= end:
                outages[index] = (event.data | data | _later(data, event.data), start, who)
                break
        else:
            outages.append((event.data, at, node))
    return outages


def _later(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    back = max(float(one.get("back_at") or 0), float(other.get("back_at") or 0))
    return {"back_at": back} if back else {}


def _gap_around(start: float, end: float, points: Sequence[Point], ordinary: float) -> float | None:
    """Return the longest gap between steps that touches [start, end], less an ordinary step."""
    gaps = [
        b.at - a.at
        for a, b in pairwise(points)
        if b.step == a.step + 1 and b.at >= start and a.at <= end
    ]
    return max(0.0, max(gaps) - ordinary) if gaps else None


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


# -- goodput -------------------------------------------------------------------------------------


def _goodput(runs: Sequence[Run], outages: Sequence[Interruption], ordinary: float) -> float:
    """Return the time in steps that count, divided by the time from the first step to the last.

    A step counts if no later run executed it again. Each run gets one ordinary step on top of the
    time between its first and its last step, because the first one took time too.
    """
    lived = [[run for run in life if _is_timed(run)] for life in lives(runs)]
    ran = [run for life in lived for run in life]
    if not ran:
        return 0.0
    useful = 0.0
    for index, run in enumerate(ran):
        kept = min([run.last, *(later.start for later in ran[index + 1 :])])
        stalled = sum(
            row.pause_s or 0.0 for row in outages if run.first_at <= row.at <= run.last_at
        )
        busy = max(0.0, run.last_at - run.first_at - stalled) + ordinary
        useful += busy * max(0, kept - run.start) / run.steps
    # Between its end and its restart the job had no time that could have been used.
    elapsed = sum(life[-1].last_at - life[0].first_at + ordinary for life in lived if life)
    return round(min(1.0, useful / elapsed), 4) if elapsed > 0 else 1.0


def _is_timed(run: Run) -> bool:
    return run.steps > 0 and run.first_at > 0 and run.last_at > 0
