"""Makes what is said of an `ElasticJob`: its status, its conditions, and Events (pure)."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Self

from spotelastic.client.operator.resource import JobResource
from spotelastic.kubernetes.pods import Manifest
from spotelastic.model.progress import Event, Status

MOST_TEXT = 1024
"""Most characters of an Event's message, and of a reason."""
HINDERED = "Hindered"
"""Reason of what cannot be made now, as the API server or the namespace refuses it."""
WARNINGS = frozenset({"notice", "loss", "failure", "Refused", "Failed", HINDERED})
COMPONENT = "spotelastic-operator"


@dataclass(frozen=True, slots=True)
class SpecRefusal:
    """Why a specification is not carried out."""

    reason: str
    """One word."""
    message: str


@dataclass(frozen=True, slots=True)
class JobEvent:
    """An Event about a resource. Told twice, it has the same name, and is there once."""

    name: str
    reason: str
    message: str
    at: float | None = None
    """When it happened; None: now."""

    @classmethod
    def of(
        cls,
        its: JobResource,
        reason: str,
        message: str,
        key: Sequence[object],
        at: float | None = None,
    ) -> Self:
        """Return the event that `key` tells from all others of the resource."""
        mark = hashlib.sha256("\0".join(map(str, (its.uid, reason, *key))).encode()).hexdigest()
        return cls(f"{its.name}.{mark[:16]}", reason, message[:MOST_TEXT], at)

    def manifest(self, its: JobResource, namespace: str, now: float) -> Manifest:
        """Return the Kubernetes object."""
        at = time_text(now if self.at is None else self.at)
        is_warning = self.reason in WARNINGS or self.reason.lower() in WARNINGS
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": self.name, "namespace": namespace},
            "involvedObject": {**its.reference, "namespace": namespace},
            "type": "Warning" if is_warning else "Normal",
            "reason": self.reason,
            "message": self.message,
            "source": {"component": COMPONENT},
            "firstTimestamp": at,
            "lastTimestamp": at,
            "count": 1,
        }


def hindered(its: JobResource, text: str) -> JobEvent:
    """Return that something is refused. Each try names another pod, and is the same to people."""
    return JobEvent.of(its, HINDERED, text, (its.generation, text.partition(" is forbidden: ")[2]))


def time_text(seconds: float) -> str:
    """Return a time as Kubernetes writes it, in whole seconds."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def status(
    its: JobResource,
    published: Status | None,
    refusal: SpecRefusal | None,
    now: float,
    *,
    is_over: bool,
    waits: tuple[str, str] | None = None,
) -> dict[str, Any]:
    """Return the status. `is_over`: the job has ended, even if nothing is published any more.

    `waits`: the state and the message of a job that its queue keeps from running.
    """
    known = its.status
    if its.is_deleted:
        state, message = "ending", "the resource was deleted: its pods save and end"
    elif waits is not None and refusal is None:
        state, message = waits
    elif published is not None and waits is None:
        state, message = published.state, published.reason
    elif is_over:
        state, message = known.get("state", ""), known.get("message", "")
    elif refusal is not None:
        state, message = "refused", refusal.message
    else:
        state, message = "pending", "the cluster is being made"
    training = () if published is None or waits is not None else published.nodes
    return {
        "state": state,
        "reason": refusal.reason if refusal and state == "refused" else _word(state),
        "message": message[:MOST_TEXT],
        "step": published.step if published is not None else int(known.get("step") or 0),
        "nodes": sum(node.state == "training" for node in training),
        "observedGeneration": its.generation,
        "conditions": _conditions(its, state, message, refusal, now),
    }


def changes(its: JobResource, after: Mapping[str, Any]) -> tuple[JobEvent, ...]:
    """Return what is to be told of conditions that change."""
    found = []
    for each in after["conditions"]:
        was = its.condition(each["type"])
        same = all(was.get(key) == each[key] for key in ("status", "reason"))
        holds = each["status"] == "True"
        if same or not (holds or each["type"] == "Accepted"):
            continue
        word = each["type"] if holds else "Refused"
        key = (each["reason"], its.generation, was.get("lastTransitionTime", ""))
        found.append(JobEvent.of(its, word, each["message"] or word, key))
    return tuple(found)


def from_cluster(its: JobResource, events: Sequence[Event], most: int) -> tuple[JobEvent, ...]:
    """Return the cluster's events that were not told yet, the oldest first."""
    told = int(its.status.get("events") or 0)
    return tuple(
        JobEvent.of(
            its,
            event.kind.title().replace(" ", ""),
            f"{event.node}: {event.message}" if event.node else event.message,
            (event.at, number),
            event.at,
        )
        for number, event in enumerate(events[told : told + most], told)
    )


def _conditions(
    its: JobResource, state: str, message: str, refusal: SpecRefusal | None, now: float
) -> list[dict[str, Any]]:
    word = _word(state)
    accepted = (True, "Valid", "the specification is carried out")
    values = {
        "Accepted": accepted if refusal is None else (False, refusal.reason, refusal.message),
        "Running": (state == "running", word, message),
        "Succeeded": (state == "succeeded", word, message),
        "Failed": (state in ("failed", "timed out"), word, message),
    }
    if its.is_deleted:  # what it asks for is not looked at any more, and how it has ended stays
        for each in its.status.get("conditions", ()):
            if each["type"] in ("Accepted", "Succeeded", "Failed"):
                holds = each["status"] == "True"
                values[each["type"]] = (holds, each["reason"], each["message"])
    return [
        condition(its.status, its.generation, (type_, *value), now)
        for type_, value in values.items()
    ]


def _word(state: str) -> str:
    """Return a state as one word, as Kubernetes has reasons."""
    return state.title().replace(" ", "") or "Unknown"


def condition(
    known: Mapping[str, Any], generation: int, said: tuple[str, bool, str, str], now: float
) -> dict[str, Any]:
    """Return a condition: its type, whether it holds, a reason and a message.

    `known` is the status that it had; its time changes only with its value.
    """
    type_, holds, reason, message = said
    text = "True" if holds else "False"
    before = {each["type"]: each for each in known.get("conditions") or ()}.get(type_, {})
    since = before.get("lastTransitionTime") if before.get("status") == text else None
    return {
        "type": type_,
        "status": text,
        "reason": reason,
        "message": message[:MOST_TEXT],
        "lastTransitionTime": since or time_text(now),
        "observedGeneration": generation,
    }
