"""Turns what a cluster publishes of its job into samples (pure).

Everything is made of objects that lie in the bucket, so that the leading controller and a dashboard
on somebody's laptop say the same. Counters are made of events, which nobody takes back: a new
leader goes on where the one before was.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

from spotelastic.clock import wall
from spotelastic.metrics.catalogue import Metric, Sample
from spotelastic.model.estimate import progress_of
from spotelastic.model.headline import HeadlineKind, headlines
from spotelastic.model.in_place import OUTCOMES, REHEARSED
from spotelastic.model.interruption_kind import InterruptionKind
from spotelastic.model.job import JobSpec, JobState
from spotelastic.model.progress import Event, Interruption, Report, Status, row_of
from spotelastic.model.round import CAUSES

NOTICES = frozenset({"notice", "rebalance", "leave", "unhealthy"})
"""Kinds of events that warn of a node's end."""
KINDS = tuple(str(kind.value) for kind in InterruptionKind)
SOURCES = ("memory", "store")
"""What a round goes on from. These labels begin at 0: without, a first increase has no rate."""
OTHER = "other"
"""The label of what another version has a word of its own for: one label more, not many."""


@dataclass(frozen=True, slots=True)
class PublishedFacts:
    """What is known of one cluster. Whatever is missing has no samples."""

    cluster: str
    status: Status | None = None
    report: Report | None = None
    events: Sequence[Event] = ()
    spec: JobSpec | None = None
    now: float = field(default_factory=wall)
    """When they are looked at: a status may be old."""


def _job(name: str, help: str, *labels: str, kind: Any = "gauge") -> Metric:
    return Metric(name, kind, help, "job", labels)


def _count(name: str, help: str, *labels: str) -> Metric:
    return _job(f"{name}_total", help, *labels, kind="counter")


STATE = _job("job_state", "1 for the state that the job is in, 0 for the others.", "state")
STATUS_AT = _job("status_timestamp_seconds", "When the status was published; a leader renews it.")
STEP = _job("job_step", "The newest step that is known.")
TOTAL = _job("job_steps", "The step that the run ends with, where the script says.")
ENDS_AT = _job("job_end_timestamp_seconds", "About when it will be there, at the present pace.")
END_COST = _job("job_end_cost_dollars", "About what the cluster will have cost by then.")
BEGAN_AT = _job("job_start_timestamp_seconds", "When the run's first step was done.")
SAMPLES = _job("job_samples_per_second", "Samples per second of all workers, if the script says.")
NOT_FINITE = _job(
    "job_loss_not_finite_step", "The step since which the loss is NaN or infinite; 0: it is not."
)
HEADLINE = _job("job_headline", "1 for what is wrong with the job now, 0 for the rest.", "kind")
LOSS = _job("job_loss_value", "The loss of the newest step, as the script reports it.")
LOGGED = _job("job_logged_value", "The newest of each value that the script logs.", "name")
WORLD_SIZE = _job("job_world_size_workers", "Workers of the current round.")
ROUND = _job("job_round_number", "The number of the current round.")
STEP_SECONDS = _job("job_step_seconds", "Seconds per step, as the median of the last ones.")
COMMITTED = _job("job_committed_step", "The newest step that is committed in the object store.")
COMMIT_AT = _job("job_commit_timestamp_seconds", "When the newest commit was made.")
UPLOAD_DONE = _job("upload_done_bytes", "Bytes of the checkpoint on its way that are sent.")
UPLOAD_TOTAL = _job("upload_size_bytes", "Bytes of the checkpoint on its way.")
UPLOAD_RATE = _job("upload_rate_bytes_per_second", "Speed of the upload, over all nodes.")
NODES = _job("nodes", "Nodes that are there, by role and state.", "role", "state")
NODES_LEAST = _job("nodes_min", "Fewest nodes that the job trains with (--min).")
NODES_MOST = _job("nodes_max", "Most nodes that the job trains with (--max).")
SHORT_SINCE = _job(
    "nodes_short_timestamp_seconds",
    "Since when there are fewer nodes than --min; 0: there are not.",
)
SLOW = _job("slow_nodes", "Nodes that keep the others waiting.")
WARNINGS = _job("warnings", "Warnings that `spotelastic status` shows now.")
ROUNDS = _count("rounds", "Rounds that have started, by cause.", "cause")
INTERRUPTIONS = _count("interruptions", "Interruptions whose cost is known, by kind.", "kind")
PAUSES = _count("pause_seconds", "Seconds for which interruptions kept training waiting.", "kind")
REPEATED = _count("steps_repeated", "Steps that were executed again, by the cause.", "kind")
LOST_MONEY = _count("interruption_cost_dollars", "What interruptions cost, by kind.", "kind")
RESUMES = _count("resumes", "Rounds that went on after an interruption, by source.", "source")
RESUME_SECONDS = _count(
    "resume_seconds",
    "Seconds from the start of such a round to its first step: restoring, by source.",
    "source",
)
NOTICED = _count("notices", "Nodes that were told that they will go, by kind.", "kind")
FAILURES = _count("worker_failures", "Workers that have failed.")
LAUNCH_FAILURES = _count("launch_failures", "Launches that the cloud refused.")
BOOT_FAILURES = _count("boot_failures", "Instances that could not become a node.")
SICK = _count("sick_nodes", "Nodes that left, or did not join, because a GPU of them was sick.")
REHEARSALS = _count(
    "rehearsals",
    "Steps that were made again, by what came of it: equal, noise or different.",
    "outcome",
)
COMMITS = _count("commits", "Checkpoints that were committed.")
STEPS = _count("steps", "Steps that were executed, repeats included.")
GOODPUT = _job("job_goodput_ratio", "Share of the time that went into steps that count.")
NODE_SECONDS = _count("node_seconds", "Time of worker nodes that was paid for.")
COST = _count("cost_dollars", "What the cluster has cost: workers, control, traffic.", "part")
ON_DEMAND_COST = _count("on_demand_cost_dollars", "What the workers had cost on demand.")
PRICE = _job("price_dollars_per_hour", "What runs now costs an hour, by part.", "part")
COST_LIMIT = _job("cost_limit_dollars", "The limit of the total cost (--max-cost).")
DEADLINE = _job("job_deadline_timestamp_seconds", "When the job ends, finished or not.")
CERTIFICATES = _job("certificate_expiry_timestamp_seconds", "When the first certificate expires.")
MESSAGES = _count("cloud_events", "Events of the cloud since this leader leads, by fate.", "fate")


def samples(facts: PublishedFacts) -> Iterator[Sample]:
    """Yield what is known of the job."""
    if facts.status is not None:
        yield from _of_status(facts.status, facts.now)
    if facts.report is not None:
        yield from _of_report(facts.report)
    yield from _of_events(facts.events)
    if facts.spec is not None:
        yield from _of_spec(facts.spec)


def _of_status(status: Status, now: float) -> Iterator[Sample]:
    for state in get_args(JobState):
        yield STATE.sample(status.state == state, state)
    yield STATUS_AT.sample(status.at)
    yield STEP.sample(status.step)
    if status.loss is not None:
        yield LOSS.sample(status.loss)
    known = {name: value for name, value in status.logged.items() if value is not None}
    yield from LOGGED.each(_by_word(known))
    yield NOT_FINITE.sample(status.not_finite)
    yield from _of_the_end(status, now)
    wrong = {each.kind for each in headlines(status, now)}
    yield from HEADLINE.each(((kind,), kind in wrong) for kind in get_args(HeadlineKind))
    yield WORLD_SIZE.sample(status.world_size)
    yield ROUND.sample(status.round)
    if status.step_time:
        yield STEP_SECONDS.sample(status.step_time)
    yield COMMITTED.sample(status.committed)
    upload = status.upload
    yield UPLOAD_DONE.sample(upload.done if upload else 0)
    yield UPLOAD_TOTAL.sample(upload.total if upload else 0)
    yield UPLOAD_RATE.sample(upload.rate if upload else 0)
    states = Counter((str(node.role), node.state) for node in status.nodes)
    yield from NODES.each(sorted(states.items()))
    yield SHORT_SINCE.sample(status.short_since or 0.0)
    yield SLOW.sample(len(status.slow))
    yield WARNINGS.sample(len(status.warnings))
    yield from MESSAGES.each(_by_word(status.messages))


def _of_the_end(status: Status, now: float) -> Iterator[Sample]:
    """Yield how far the job is: of what is not known there is no sample."""
    estimate = progress_of(status, now)
    known = (
        (TOTAL, status.total or None),
        (ENDS_AT, estimate.ends_at),
        (END_COST, estimate.usd_at_end),
        (BEGAN_AT, status.began_at or None),
        (SAMPLES, status.samples_per_second or None),
    )
    yield from (metric.sample(value) for metric, value in known if value is not None)


def _of_report(report: Report) -> Iterator[Sample]:
    yield STEPS.sample(report.job.steps_run)
    if report.job.steps_run:  # else nothing is known of its time
        yield GOODPUT.sample(report.goodput)
    yield NODE_SECONDS.sample(report.node_hours * 3600)
    yield COST.sample(report.cost_usd, "workers")
    yield COST.sample(report.control_usd, "control")
    yield COST.sample(report.traffic_usd, "traffic")
    yield ON_DEMAND_COST.sample(report.on_demand_usd)
    yield PRICE.sample(report.usd_per_hour, "workers")
    yield PRICE.sample(report.control_usd_per_hour, "control")
    yield PRICE.sample(report.traffic_usd_per_hour, "traffic")


def _of_spec(spec: JobSpec) -> Iterator[Sample]:
    yield NODES_LEAST.sample(spec.settings.min_nodes)
    yield NODES_MOST.sample(spec.settings.max_nodes)
    if spec.capacity.max_cost is not None:
        yield COST_LIMIT.sample(spec.capacity.max_cost)
    if spec.capacity.deadline is not None:
        yield DEADLINE.sample(spec.capacity.deadline)
    known = [at for at in (spec.validity.certificates, spec.validity.authority) if at]
    if known:
        yield CERTIFICATES.sample(min(known))


def _of_events(events: Sequence[Event]) -> Iterator[Sample]:
    started = [each for each in events if each.starts_round]
    causes = _zeros(CAUSES)
    for each in started:
        cause = str(each.data.get("cause", ""))
        causes[cause if cause in CAUSES else OTHER] += 1
    yield from ROUNDS.each(_by_word(causes))
    yield from _of_ledger([row for each in events if (row := row_of(each)) is not None], started)
    told = {(each.node, _notice(each)) for each in events if each.kind in NOTICES and each.node}
    yield from NOTICED.each(_by_word(Counter(kind for _, kind in told)))
    yield FAILURES.sample(sum(each.kind == "failure" for each in events))
    yield LAUNCH_FAILURES.sample(
        sum(each.kind == "launch" and bool(each.data.get("failed")) for each in events)
    )
    yield BOOT_FAILURES.sample(sum(each.kind == "boot" for each in events))
    yield SICK.sample(len({each.node for each in events if each.kind == "unhealthy"}))
    yield from REHEARSALS.each(_by_word(_rehearsals(events)))
    commits = {
        (each.data.get("epoch"), each.data.get("step")): float(each.data.get("at", each.at))
        for each in events
        if each.kind == "committed"
    }
    yield COMMITS.sample(len(commits))
    if commits:
        yield COMMIT_AT.sample(max(commits.values()))


def _rehearsals(events: Iterable[Event]) -> dict[str, float]:
    counts = _zeros(OUTCOMES)
    for each in events:
        if each.kind == REHEARSED:
            outcome = str(each.data.get("outcome", ""))
            counts[outcome if outcome in OUTCOMES else OTHER] += 1
    return counts


def _of_ledger(rows: Sequence[Interruption], started: Iterable[Event]) -> Iterator[Sample]:
    counts, pauses, steps, money = (_zeros(KINDS) for _ in range(4))
    paused = set[tuple[int | None, float | None]]()
    for row in sorted(rows, key=lambda row: (row.at, -(row.usd or 0.0))):
        kind = str(row.kind.value) if row.kind.is_known else OTHER
        counts[kind] += 1
        steps[kind] += row.steps_lost or 0
        money[kind] += row.usd or 0.0
        # Several nodes that went at once share one pause, which counts once.
        shared = row.round, row.first_step_at
        if row.round is None or shared not in paused:
            pauses[kind] += row.pause_s or 0.0
        paused.add(shared)
    yield from INTERRUPTIONS.each(_by_word(counts))
    yield from PAUSES.each(_by_word(pauses))
    yield from REPEATED.each(_by_word(steps))
    yield from LOST_MONEY.each(_by_word(money))
    yield from _of_resumes(rows, started)


def _of_resumes(rows: Iterable[Interruption], started: Iterable[Event]) -> Iterator[Sample]:
    first_steps = {row.round: row.first_step_at for row in rows if row.round and row.first_step_at}
    counts, times = _zeros(SOURCES), _zeros(SOURCES)
    for each in started:
        first = first_steps.pop(int(each.data.get("number", 0)), None)
        if first is not None:
            source = str(each.data.get("from", OTHER))
            counts[source] += 1
            times[source] += max(0.0, first - each.at)
    yield from RESUMES.each(_by_word(counts))
    yield from RESUME_SECONDS.each(_by_word(times))


def _notice(event: Event) -> str:
    """Return the kind of interruption that an event warns of, as a label."""
    kind = InterruptionKind(str(event.data.get("kind") or event.kind))
    return str(kind.value) if kind.is_known else OTHER


def _zeros(words: Iterable[str]) -> defaultdict[str, float]:
    return defaultdict(float, dict.fromkeys(words, 0.0))


def _by_word(found: Mapping[Any, float]) -> list[tuple[tuple[str], float]]:
    return [((str(word),), value) for word, value in sorted(found.items())]
