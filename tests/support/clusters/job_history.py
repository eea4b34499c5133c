"""Builds histories of jobs by hand, as the product would leave them."""

from dataclasses import dataclass, field

from spotelastic_checkpoints.types import Resume

from spotelastic.controller.accounting.ledger import report
from spotelastic.controller.accounting.usage import Usage
from spotelastic.model.job import Job
from spotelastic.model.progress import Event, Interruption, Point, Report
from spotelastic.model.round import Cause, Member, Round, RoundRecord

STEP = 0.1


@dataclass
class Story:
    """Builds a job's records the way the product would leave them; `now` is the story's clock."""

    now: float = 1000.0
    records: list[RoundRecord] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    points: list[Point] = field(default_factory=list)
    current: Round | None = None

    def propose(
        self,
        cause: Cause,
        members: str,
        *,
        about: str = "",
        resume: Resume | None = None,
        started: bool = True,
    ) -> "Story":
        """A new round over nodes named by letters; a name in capitals came back as another one."""
        number = len(self.records) + 1
        self.current = Round(
            number=number,
            incarnation=f"round-{number}",
            phase="started" if started else "proposed",
            members=tuple(
                Member(name.lower(), f"{name}-incarnation", slot, "127.0.0.1", "a", 1)
                for slot, name in enumerate(members)
            ),
            cause=cause,
            reason="",
            nodes=tuple(about),
            proposed_at=self.now,
            started_at=self.now if started else 0.0,
            parent="" if cause == "start" else f"round-{number - 1}",
            resume=resume or Resume(),
        )
        return self

    def train(self, until: int, *, after: float, back_to: int | None = None) -> "Story":
        """Run on to step `until`, the next step ending `after` seconds from now; the script may
        have gone back to an earlier step than that which the round resumes from."""
        assert self.current is not None
        mine = [point.step for point in self.points if point.at > self.current.started_at]
        resumed = self.current.resume.step if back_to is None else back_to
        start = mine[-1] if mine and back_to is None else resumed
        self.now += after
        for step in range(start + 1, until + 1):
            self.points.append(Point(step, 1.0, self.now))
            self.now += STEP
        self.now -= STEP
        return self

    def end(self) -> "Story":
        """The round ends with what its members saw of it."""
        assert self.current is not None
        mine = [p for p in self.points if p.at > self.current.started_at]
        self.records.append(
            RoundRecord(
                round=self.current,
                first_step_at=mine[0].at if mine else 0.0,
                last_step=max([self.current.resume.step, *(p.step for p in mine)]),
                last_step_at=mine[-1].at if mine else 0.0,
                ended_at=self.now,
            )
        )
        self.current = None
        return self

    def tell(self, event: str, node: str = "", /, **data: object) -> "Story":
        self.events.append(Event(self.now, event, "", node, dict(data)))
        return self

    def report(self, *, state: str = "succeeded", usage: tuple[Usage, ...] = ()) -> Report:
        final = self.points[-1].step if state == "succeeded" else 0
        job = Job(state, self.now, final_step=final)  # type: ignore[arg-type]
        return report(self.records, self.current, job, self.events, self.points, usage, self.now)


def memory(step: int, round: int = 1) -> Resume:
    return Resume("memory", step, f"round-{round}")


def only(result: Report) -> Interruption:
    assert len(result.interruptions) == 1
    return result.interruptions[0]
