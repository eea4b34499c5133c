"""Decides what the operator does for one `ElasticJob`, and what it says of it (pure).

Must never happen: a cluster that belongs to somebody else is changed or taken down; a job that has
ended is begun again; something is made for a resource that would go without it; a resource goes
while something of its cluster is left; a job with a queue is made before it is admitted.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from spotelastic.client.kubernetes.cluster_mark import ClusterMark
from spotelastic.client.operator.kueue import QueuedJob
from spotelastic.client.operator.resource import JobResource
from spotelastic.client.operator.told import (
    HINDERED,
    JobEvent,
    SpecRefusal,
    changes,
    from_cluster,
    hindered,
    status,
)
from spotelastic.kubernetes.elastic_job import QUEUED, SUSPENDED
from spotelastic.kubernetes.provider import pod_reading
from spotelastic.model.job import ENDED
from spotelastic.model.progress import Event, Status

QueueStep = Literal["none", "ask", "ready", "suspend", "release", "finish"]
"""What is done with the Workload of a job that has a queue, or because of it."""
OperatorStep = Literal["none", "hold", "create", "change", "end", "take down", "let go"] | QueueStep
RootState = Literal["none", "ours", "other", "ending"]


BUSY_EVERY = 1.0
"""Seconds between two looks while a cluster is being made or taken down."""
LOOK_EVERY = 5.0
REST_EVERY = 30.0
"""Seconds between two looks once a job has ended: it may be restarted."""
MOST_EVENTS = 20
"""Events that are told in one look."""
LASTING = "Admitted", "Evicted"
"""Conditions of a Workload that change once each time that its job runs."""


@dataclass(frozen=True, slots=True)
class ResourceSeen:
    """An ElasticJob with what there is of its cluster."""

    resource: JobResource
    refusal: SpecRefusal | None = None
    """Why what it asks for cannot be; None: it can."""
    digest: str = ""
    """Of the job that it asks for."""
    drift: tuple[str, ...] = ()
    """In what the cluster's job differs from that, whoever has changed it."""
    root: RootState = "none"
    """The object that all of the cluster belongs to, and whose it is."""
    mark: ClusterMark | None = None
    has_job: bool = False
    """Whether the cluster has the description of a job."""
    is_whole: bool = True
    """Whether its control pod's Deployment and its groups are there: they go with the first object,
    and groups go by themselves if no controller has led for long."""
    hindrance: str = ""
    """Why the namespace refuses pods of these; empty: it does not."""
    has_pods: bool = False
    """Whether pods of a cluster whose first object is gone are there."""
    anything_left: bool = False
    """Whether anything of the cluster is there; looked for once the resource is deleted."""
    linger: float | None = None
    """Seconds for which the control pod stays after its job; None: as long as the resource."""
    published: Status | None = None
    events: Sequence[Event] = ()
    queue: QueuedJob | None = None
    """What Kueue says of it; None: it has no queue."""

    @property
    def is_ours(self) -> bool:
        """Whether what is there of the cluster was made for this resource."""
        return self.root != "other" and (
            self.root == "ours" or (self.mark is not None and self.mark.uid == self.resource.uid)
        )

    @property
    def is_ending(self) -> bool:
        """Whether a cluster of the name is just going; its pods may still publish something."""
        return self.root == "ending" or (self.root == "none" and self.has_pods)

    @property
    def is_stopped(self) -> bool:
        """Whether nothing of it runs."""
        return self.root == "none" and not self.has_pods

    @property
    def waits(self) -> tuple[str, str] | None:
        """The state and the message of a job that its queue keeps from running; None: it runs."""
        queue = self.queue
        if queue is None or queue.is_admitted or self.root == "other" or self.has_ended:
            return None
        is_queued = self.is_stopped and not queue.holds("Evicted")
        return QUEUED if is_queued else SUSPENDED, queue.message

    @property
    def state(self) -> Status | None:
        """What the cluster publishes; that of another one of its name does not count."""
        marked = self.mark is not None and self.mark.uid == self.resource.uid
        return self.published if self.is_ours and marked else None

    @property
    def has_ended(self) -> bool:
        """Whether the job has ended. A job that was restarted has not."""
        if self.state is not None:
            return self.state.state in ENDED
        said = map(self.resource.condition, ("Succeeded", "Failed"))
        return any(each.get("status") == "True" for each in said)


@dataclass(frozen=True, slots=True)
class OperatorDecision:
    """What is done now. First the events are told and the status is written, then comes the step.

    Each of them may be repeated.
    """

    step: OperatorStep
    status: Mapping[str, Any]
    events: tuple[JobEvent, ...]
    look_again: float
    """Seconds until the resource is looked at again, if it is not changed before."""


def decide(seen: ResourceSeen, now: float) -> OperatorDecision:
    """Return what is to be done. `now` is in seconds since the epoch."""
    resource = seen.resource
    refusal = _refusal(seen)
    step = _step(seen, refusal)
    told = from_cluster(resource, seen.events if seen.state else (), MOST_EVENTS)
    was_suspended = seen.queue is not None and seen.is_stopped and not seen.has_ended
    state = None if was_suspended else seen.state
    after = status(resource, state, refusal, now, is_over=seen.has_ended, waits=seen.waits)
    lingers = _lingers(seen, after["conditions"], now)
    if step == "none" and lingers <= 0.0:
        step = "end"
    after |= {"events": int(resource.status.get("events") or 0) + len(told)}
    if seen.state is None:
        after["events"] = 0
    said = changes(resource, after) + _announced(seen, step)
    if seen.hindrance:
        event = hindered(resource, seen.hindrance)
        said += (event,)
        if after["state"] == "pending":
            after |= {"reason": HINDERED, "message": event.message}
    look = min(REST_EVERY, lingers) if seen.has_ended else LOOK_EVERY
    more = len(told) == MOST_EVENTS
    if step != "none" or more or resource.is_deleted or seen.is_ending:
        look = BUSY_EVERY
    return OperatorDecision(step, after, (*told, *said), look)


def _step(seen: ResourceSeen, refusal: SpecRefusal | None) -> OperatorStep:
    resource = seen.resource
    if resource.is_deleted:
        if not resource.is_held:
            return "none"
        return "take down" if seen.is_ours and seen.anything_left else "let go"
    if not resource.is_held:
        return "hold"
    if seen.queue is not None and seen.root != "other":
        queued = _queue_step(seen, seen.queue, refusal)
        if queued != "none" or seen.waits is not None:
            return queued
    if refusal is not None or seen.has_ended or seen.is_ending:
        return "none"
    if seen.root == "none" or not seen.has_job:
        return "create"
    given = seen.mark.digest if seen.mark is not None else ""
    is_right = given == seen.digest and not seen.drift and seen.is_whole
    return "none" if is_right else "change"


def _queue_step(seen: ResourceSeen, queue: QueuedJob, refusal: SpecRefusal | None) -> QueueStep:
    if seen.has_ended:
        return "none" if queue.found is None or queue.holds("Finished") else "finish"
    if queue.is_admitted:
        state = seen.state if seen.root == "ours" else None
        runs = state is not None and state.state == "running"
        return "ready" if runs and not queue.holds("PodsReady") else "none"
    if not seen.is_stopped:
        return "suspend"
    if queue.holds("Evicted") and queue.holds("QuotaReserved"):
        return "release"
    return "none" if queue.is_asked or refusal is not None else "ask"


def _lingers(seen: ResourceSeen, conditions: Sequence[Mapping[str, Any]], now: float) -> float:
    """Return for how many seconds the cluster is still to stay.

    Its control pod does not end it by itself: the job's end would not be on record then.
    """
    is_there = seen.root == "ours" and not seen.resource.is_deleted
    if not is_there or not seen.has_ended or seen.linger is None:
        return math.inf
    (running,) = (each for each in conditions if each["type"] == "Running")
    return pod_reading.seconds(running["lastTransitionTime"]) + seen.linger - now


def _refusal(seen: ResourceSeen) -> SpecRefusal | None:
    name = seen.resource.name
    if seen.root == "other":
        return SpecRefusal(
            "NameTaken",
            f"there is another cluster {name}: take it down with `spotelastic down {name} --kube`, "
            "or give this resource another name",
        )
    mark = seen.mark
    changed = (
        mark is not None and mark.digest and not mark.has(seen.resource.generation, seen.digest)
    )
    if seen.has_ended and changed and not seen.refusal:
        return SpecRefusal(
            "JobEnded",
            "the job has ended, and its specification was changed: delete the resource and apply "
            "it again; it goes on from its checkpoints",
        )
    return seen.refusal


def _announced(seen: ResourceSeen, step: OperatorStep) -> tuple[JobEvent, ...]:
    """Return what is said of a step. Its key is the same if the step is repeated."""
    resource = seen.resource
    given = seen.mark.digest if seen.mark is not None else ""
    texts = {
        "create": ("Creating", "makes the control pod and the workers"),
        "change": ("Changing", "; ".join(seen.drift) or "pods that start from now on"),
        "take down": ("Ending", "ends the pods, which have their grace to save"),
    }
    key: tuple[object, ...] = (step, given, seen.digest, *seen.drift)
    if seen.queue is not None:
        texts["ask"] = ("Queued", f"asks for a place in the queue {resource.queue}")
        texts["suspend"] = ("Suspended", f"{seen.queue.message}: its pods save and end")
        times = (seen.queue.condition(each).get("lastTransitionTime") for each in LASTING)
        key += (*times,)
    if step not in texts:
        return ()
    reason, message = texts[step]
    return (JobEvent.of(resource, reason, message, key),)
