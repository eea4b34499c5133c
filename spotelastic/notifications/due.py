"""Decides which notifications are due (pure).

`true_now` says what there is to tell of a job. `due` leaves out what was told before. What is told
is on record in etcd, as an event, before it is sent: so no controller tells again what another one
has told. Must never happen: that two controllers send one notification, or that a job which starts
again and again floods somebody. Rather is one lost: with the controller that dies between the
record and the sending.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from spotelastic.model.counting import DAY, HOUR, MINUTE, counted, dollars, duration, span
from spotelastic.model.estimate import roughly
from spotelastic.model.headline import SHORT
from spotelastic.model.in_place import Rehearsal
from spotelastic.model.job import ENDED, Capacity, Job
from spotelastic.model.progress import Event, row_of
from spotelastic.model.round import Round
from spotelastic.model.validity import Validity
from spotelastic.notifications.notification import Notification, NotificationType, shortened
from spotelastic.redaction import without_known_formats

TOLD = "notify"
"""Kind of the events by which what was told is on record."""


SHORT_FOR = 900.0
"""Seconds with fewer nodes than --min after which that is told."""
BUDGET = 0.8
"""Share of --max-cost from which on it is told."""
NEAR, NEAREST = HOUR, 300.0
"""Seconds before the deadline at most, and at least; else a tenth of the time given."""
LATE = HOUR
"""Seconds after which a digest that nobody could send in time is left out."""
AGAIN = HOUR
"""Seconds until the next shortage is told."""
PER_HOUR = 20
"""Most notifications in an hour. The end of a job is always told."""


@dataclass(frozen=True, slots=True)
class NotificationFacts:
    """What notifications are made of."""

    cluster: str
    job: Job | None = None
    round: Round | None = None
    trained: bool = False
    """Whether training has begun in this life of the job."""
    step: int = 0
    """The newest step that is known; of a job that has ended, its last."""
    total: int = 0
    nodes: int = 0
    least: int = 0
    short_since: float | None = None
    spent: float = 0.0
    per_hour: float = 0.0
    capacity: Capacity = Capacity()
    rehearsal: Rehearsal | None = None
    proof: Rehearsal | None = None
    validity: Validity = Validity()
    troubles: Sequence[Event] = ()
    """What is on record as wrong, and not as over."""
    linger: float | None = None
    digest: str = ""
    """The time of day (UTC) of the digest, as HH:MM; empty: there is none."""
    pace: float = 0.0
    """Seconds per step that counts; 0: not known."""
    ledger: Sequence[Event] = ()
    """The interruptions, as they are on record."""


def due(
    facts: NotificationFacts, told: Mapping[str, float], now: float
) -> tuple[Notification, ...]:
    """Return what is to be told now. `told` has when each notification was told, by its id."""
    recent = sum(now - at < HOUR for at in told.values())
    short = any(id.startswith("short ") and now - at < AGAIN for id, at in told.items())
    found: list[Notification] = []
    for each in true_now(facts, now):
        if each.id in told or (each.kind == "short" and short):
            continue
        if each.kind == "ended" or recent + len(found) < PER_HOUR:
            found.append(each)
    return tuple(found)


def told_before(events: Iterable[Event]) -> dict[str, float]:
    """Return when each notification was told, by its id, as it is on record."""
    return {str(e.data.get("id", "")): e.at for e in events if e.kind == TOLD}


def record(notification: Notification, now: float) -> Event:
    """Return the event that puts on record that a notification is told."""
    line = f"notification: {notification.title}"
    return Event(now, TOLD, line, data={"id": notification.id})


ENDS: Mapping[str, NotificationType] = {
    "succeeded": "success",
    "failed": "failure",
    "timed out": "warning",
}


def true_now(facts: NotificationFacts, now: float) -> Iterator[Notification]:
    """Yield what there is to tell, whether it was told before or not."""
    job = facts.job
    if job is not None and job.state in ENDED:
        yield _ended(facts, job)
        return
    life = "" if job is None else f"{job.at:.0f}"
    if facts.trained and facts.round is not None:
        yield _begun(facts, facts.round, life)
    if facts.rehearsal is not None and facts.rehearsal.differs:
        yield _differs(facts, facts.rehearsal, "a repeated step gives another result", life)
    if facts.proof is not None and facts.proof.differs:
        yield _differs(facts, facts.proof, "a checkpoint cannot be restored as it was saved", life)
    if facts.short_since is not None and now - facts.short_since >= SHORT_FOR:
        yield _short(facts, facts.short_since, now)
    limit = facts.capacity.max_cost
    if limit is not None and facts.spent >= BUDGET * limit:
        yield _budget(facts, limit)
    yield from (_trouble(facts, each) for each in facts.troubles if each.data["what"] != SHORT)
    if facts.digest and facts.trained and now - _newest(facts.digest, now) < LATE:
        yield _digest(facts, _newest(facts.digest, now))
    deadline = facts.capacity.deadline
    if deadline is not None and now >= deadline - _near(facts.capacity.within):
        yield _deadline(facts, deadline, now)
    if warning := facts.validity.warning(facts.cluster, now):
        expires = min(at for at in (facts.validity.certificates, facts.validity.authority) if at)
        id, title = f"certificates {expires:.0f}", f"{facts.cluster}: certificates expire soon"
        yield Notification(id, title, f"{warning[:1].upper()}{warning[1:]}.", "warning")


def _near(within: float | None) -> float:
    return NEAR if within is None else max(NEAREST, min(NEAR, within / 10))


def _begun(facts: NotificationFacts, round_: Round, life: str) -> Notification:
    step = round_.resume.step
    where = f"at step {step}" if step else "from the start"
    workers = counted(round_.world_size, "worker")
    nodes = counted(len(round_.members), "node")
    text = (
        f"The job of {facts.cluster} trains {where}, with {workers} on "
        f"{nodes}.\n\nSee it: spotelastic status {facts.cluster}"
    )
    return Notification(f"begun {life}", f"{facts.cluster} started training", text)


def _differs(facts: NotificationFacts, found: Rehearsal, what: str, life: str) -> Notification:
    cluster = facts.cluster
    title = f"{cluster}: {what}"
    text = without_known_formats(
        f"{found.text}\n\nTraining continues. What else was found: spotelastic events {cluster}"
    )
    id = f"differs {life}" if found is facts.rehearsal else f"differs proof {life}"
    return Notification(id, title, shortened(text), "failure")


def _trouble(facts: NotificationFacts, found: Event) -> Notification:
    cluster, what = facts.cluster, str(found.data["what"]).replace("-", " ")
    more = f"See it: spotelastic status {cluster}"
    text = without_known_formats(
        "\n\n".join((found.message, str(found.data.get("todo", "")), more))
    )
    kind: NotificationType = "failure" if found.data.get("colour") == "red" else "warning"
    id = f"trouble {found.data['id']}"
    return Notification(id, f"{cluster}: {what}", shortened(text), kind)


def _newest(clock: str, now: float) -> float:
    """Return when it was this time of day (UTC) last."""
    hours, minutes = clock.split(":")
    into = int(hours) * HOUR + int(minutes) * MINUTE
    return (now - into) // DAY * DAY + into


def _digest(facts: NotificationFacts, at: float) -> Notification:
    """Tell of the day before `at`.

    Each interruption counts on the day on which it was recorded, so that none counts twice, or
    never.
    """
    recorded = [row_of(event) for event in facts.ledger if at - DAY < event.at <= at]
    rows = [row for row in recorded if row is not None]
    what = counted(len(rows), "interruption")
    pauses = {row.round: row.pause_s or 0.0 for row in rows}  # several nodes may go in one pause
    cost = dollars(sum(row.usd or 0.0 for row in rows))
    took = f": {span(sum(pauses.values()))} of pauses, {cost}" if rows else ""
    where = f"step {facts.step:,}" + (f" of {facts.total:,}" if facts.total else "")
    left = max(0, facts.total - facts.step) * facts.pace
    text = (
        f"{what} since yesterday {facts.digest} UTC{took}.\n"
        f"The job is at {where}{f', about {roughly(left)} left' if left else ''}. It has cost "
        f"{dollars(facts.spent)} so far, and costs {dollars(facts.per_hour)} an hour now.\n\n"
        f"More: spotelastic report {facts.cluster}"
    )
    return Notification(f"digest {at:.0f}", f"{facts.cluster}: {what}, {where}", text)


def _ended(facts: NotificationFacts, job: Job) -> Notification:
    cluster = facts.cluster
    title = f"{cluster} has {job.state}" if job.state != "stopped" else f"{cluster} was stopped"
    of = f" of {facts.total:,}" if facts.total else ""
    where = f"at step {facts.step:,}{of}" if facts.step else "before its first step"
    lines = [f"The job of {cluster} has ended: {job.state}, {where}."]
    failure = job.failure
    if job.reason:
        lines.append(job.reason)
    if failure is not None:
        lines.append(f"First failure: rank {failure.rank} on {failure.node}.")
        told = shortened(failure.traceback or failure.message, 1200)
        lines += [] if told.strip() in job.reason else [told]
    cost = f" It has cost {dollars(facts.spent)} so far." if facts.spent else ""
    if job.state != "succeeded" and facts.linger is not None:
        cost += f" The cluster ends by itself {duration(facts.linger)} after its job."
    lines.append(f"\n{_after(cluster, job, has_trained=bool(facts.step))}{cost}")
    text = without_known_formats("\n".join(lines))
    return Notification(f"ended {job.at:.0f}", title, shortened(text), ENDS.get(job.state, "info"))


def _after(cluster: str, job: Job, *, has_trained: bool) -> str:
    again = (
        f"`spotelastic restart {cluster}`, or `spotelastic up` with the same name, continues "
        f"from the last checkpoint{'' if has_trained else ', if there is one'}."
    )
    if job.state == "succeeded":
        return f"See what it took: spotelastic report {cluster}"
    if job.state == "failed":
        return f"More: spotelastic logs {cluster}. Once the script is fixed, {again}"
    return again


def _short(facts: NotificationFacts, since: float, now: float) -> Notification:
    text = (
        f"For {_hours((now - since) / HOUR)} {facts.cluster} has had "
        f"{counted(facts.nodes, 'node')}, and needs {facts.least}.\n\n"
        f"To see why no node comes: spotelastic events {facts.cluster}. Other --instance-types, "
        "--zones spread, a smaller --min or --on-demand fallback let it continue."
    )
    title = f"{facts.cluster} is waiting for nodes"
    return Notification(f"short {since:.0f}", title, text, "warning")


def _budget(facts: NotificationFacts, limit: float) -> Notification:
    left = max(0.0, limit - facts.spent)
    lasts = f", which lasts {_hours(left / facts.per_hour)}" if facts.per_hour > 0 else ""
    text = (
        f"{facts.cluster} has cost {dollars(facts.spent)} of the {dollars(limit)} of --max-cost, "
        f"at {dollars(facts.per_hour)} an hour now. {dollars(left)} is left{lasts}. Before the "
        "limit is reached, the job saves and is stopped.\n\n"
        "To let it continue: spotelastic up with a larger --max-cost."
    )
    title = f"{facts.cluster} has used {facts.spent / limit:.0%} of its budget"
    return Notification(f"budget {limit:g}", title, text, "warning")


def _deadline(facts: NotificationFacts, deadline: float, now: float) -> Notification:
    left = _hours(max(0.0, deadline - now) / HOUR)
    text = (
        f"The job of {facts.cluster} saves and is stopped in {left}, finished or not.\n\n"
        "To let it continue: spotelastic up with another --deadline."
    )
    title = f"{facts.cluster} reaches its deadline in {left}"
    return Notification(f"deadline {deadline:.0f}", title, text, "warning")


def _hours(hours: float) -> str:
    return f"{hours:.1f} hours" if hours >= 2 else counted(round(hours * 60), "minute")
