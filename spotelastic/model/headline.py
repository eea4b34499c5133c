"""Orders what is wrong with a job, and says what to do about it (pure).

This is the one place that does so: lists, pages, terminals, metrics, events and notifications all
take the headline of a job from here, so that a job which is red in one is red in all of them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

from spotelastic.model.counting import loss, span
from spotelastic.model.job import ENDED
from spotelastic.model.progress import Status

Colour = Literal["red", "yellow"]
"""Red: somebody should look at it now. Yellow: training goes on, but not as it should."""
HeadlineKind = Literal[
    "failed",
    "loss-not-finite",
    "differs",
    "audit-differs",
    "no-step",
    "not-committed",
    "short-of-nodes",
    "no-controller",
    "timed-out",
    "loss-far-out",
    "steps-skipped",
    "slow-node",
    "warning",
]
KINDS: tuple[HeadlineKind, ...] = get_args(HeadlineKind)
"""What can be wrong, the worst first."""
SHORT: HeadlineKind = "short-of-nodes"
TROUBLE = "trouble"
"""Kind of the events that tell when something begins to be wrong."""
WHEN_RED = frozenset({SHORT, "no-step", "not-committed"})
"""What is put on record only where it lasts: all of these happen for some minutes."""
LASTS, SILENT_FOR = 900.0, 300.0
"""Seconds without a step, a commit or enough nodes, and without a controller, until it is red."""


@dataclass(frozen=True, slots=True)
class Headline:
    """One thing that is wrong with a job."""

    kind: HeadlineKind
    colour: Colour
    line: str
    """What is wrong, for people; a text of another program's may have more lines."""
    todo: str = ""
    """What to do about it; empty if the line says so, or nothing can be done."""

    @property
    def short(self) -> str:
        """In two or three words, for a list and a title."""
        return self.kind.replace("-", " ")

    @property
    def weight(self) -> int:
        """How bad it is, for sorting: more is worse, red is worse than any yellow."""
        return len(KINDS) - KINDS.index(self.kind) + (self.colour == "red") * len(KINDS)


def headline(status: Status, now: float) -> Headline | None:
    """Return the worst that is wrong with a job; None if nothing is."""
    return next(iter(headlines(status, now)), None)


def headlines(status: Status, now: float) -> tuple[Headline, ...]:
    """Return all that is wrong with a job, the worst first."""
    found = _of_the_end(status, now) if status.state in ENDED else _of_training(status, now)
    always = (*found, *_always(status))
    return tuple(sorted(always, key=lambda each: each.weight, reverse=True))


def _of_the_end(status: Status, now: float) -> Iterator[Headline]:
    why = status.reason.partition("\n")[0]
    why = why if status.error in why else status.error
    again = f"`spotelastic restart {status.name}` {_goes_on(status)}."
    if status.ends_at is not None and status.ends_at > now:
        again += f" The cluster ends by itself in {span(int(status.ends_at - now))}."
    elif status.ends_at is not None:
        again = f"`spotelastic up` with the same name {_goes_on(status)}."
    if status.state == "failed":
        todo = f"Fix the error, see `spotelastic logs {status.name}`. Then {again}"
        yield Headline("failed", "red", f"The job has failed: {why}", todo)
    if status.state == "timed out":
        yield Headline("timed-out", "yellow", f"The job was ended: {why}", again)
    if status.not_finite:
        yield _not_finite(status, "was", "Send the run")


def _goes_on(status: Status) -> str:
    is_bad = 0 < status.not_finite <= status.committed
    saved = f"goes on from step {status.committed}" if status.committed else "begins again"
    return f"{saved}, where the loss is not finite" if is_bad else saved


def yet(status: Status) -> str:
    """Return the word behind "no checkpoint" while one may come."""
    return "" if status.state in ENDED else " yet"


def _of_training(status: Status, now: float) -> Iterator[Headline]:
    name = status.name
    if status.not_finite:
        yield _not_finite(status, "is", f"`spotelastic stop {name}`, and send the run")
    if status.quiet:
        lasts = now - status.stepped_at if status.stepped_at else 0.0
        yield Headline("no-step", "red" if lasts >= LASTS else "yellow", status.quiet)
    if silent := silence(status, now):
        is_red = status.silent_for(now) >= SILENT_FOR
        yield Headline("no-controller", "red" if is_red else "yellow", silent)
    lasts = 0.0 if status.short_since is None else now - status.short_since
    # Before the first round nodes boot.
    if status.short_since is not None and (status.round or lasts >= LASTS):
        yield Headline(
            SHORT,
            "red" if lasts >= LASTS else "yellow",
            f"There have been fewer nodes than wanted for {span(lasts)}.",
            f"`spotelastic events {name}` says why none comes. Other --instance-types, --zones "
            "spread, a smaller --min or --on-demand fallback let it continue.",
        )
    if status.unsaved:
        since = status.committed_at or status.began_at or now
        there = f"the newest is of step {status.committed}" if status.committed else "there is none"
        yield Headline(
            "not-committed",
            "red" if now - since >= LASTS else "yellow",
            f"Checkpoints are not being committed; {there}: {status.unsaved}",
        )
    if status.usual_loss is not None and status.loss is not None:
        yield Headline(
            "loss-far-out",
            "yellow",
            f"The loss is {loss(status.loss)}, and was about {loss(status.usual_loss)} before.",
        )
    if status.skipped.steps and now - status.skipped.at < LASTS:
        yield Headline("steps-skipped", "yellow", f"{status.skipped.text}.")
    yield from (Headline("slow-node", "yellow", slow.line) for slow in status.slow)


def _not_finite(status: Status, verb: str, todo: str) -> Headline:
    return Headline(
        "loss-not-finite",
        "red",
        f"The loss {verb} NaN or infinite since step {status.not_finite}; the job {verb} at step "
        f"{status.step}.",
        f"{todo} back to an earlier checkpoint: `checkpoint.restore(step=...)`. All are kept.",
    )


def _always(status: Status) -> Iterator[Headline]:
    for found in (status.rehearsal, status.proof):
        if found is not None and found.differs:
            yield Headline("differs", "red", found.text)
    if status.audit is not None:
        yield Headline("audit-differs", "red", status.audit.text)
    yield from (Headline("warning", "yellow", line) for line in status.warnings)


def silence(status: Status, now: float) -> str:
    """Return a warning if the status is old: no controller has published one since."""
    if not (silent := status.silent_for(now)):
        return ""
    return (
        f"No controller has reported for {span(silent)}. Training continues without one, but no "
        "node is bought or replaced."
    )
