"""Simulates the nodes of a replayed job, under the real decisions about rounds.

Agents, workers and daemons are simulated: they take the times that the scenario gives, and never
fail by themselves. What they answer is what real ones do (`rendezvous.duties`). That is simpler
where a trace of days must be replayed in seconds: all members answer at one moment, without saying
first that they have seen a proposal, and there is always a holder, so that nobody campaigns.
"""

import itertools
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

from spotelastic_checkpoints.types import Commit, Snapshot, WorkerStep

from spotelastic.model.agreement import Proposal
from spotelastic.model.job import Ending, Job
from spotelastic.model.node import Fingerprint, Node
from spotelastic.model.notice import Drain
from spotelastic.model.progress import Progress
from spotelastic.model.round import Round, SlotOffer
from spotelastic.rendezvous import intervals, rounds
from spotelastic.rendezvous.decision import EndJob, WriteProposal, WriteRound
from spotelastic.rendezvous.duties import answers
from spotelastic.rendezvous.view import LiveNode, RunState
from spotelastic.replay.outcome import RunSpan
from spotelastic.replay.scenario import Scenario
from spotelastic.replay.timeline import Soon, Timeline
from spotelastic.replay.training import Training

NETWORK = 0.01
"""Seconds from a change in etcd until the nodes that it concerns have answered."""
SLOTS = 2
"""Number of snapshots that a node keeps."""
MEASURED = 2
"""Steps after which new workers know how long a step takes."""
LOOK = 1.0
"""Shortest time, in seconds, between two looks of the holder at the save intervals."""
SHARE = 0.1
"""Share of a round's age between two such looks. The older it is, the less a second changes."""


class SimulatedNodes:
    """The nodes of the job, and what etcd contains about them."""

    def __init__(
        self,
        timeline: Timeline,
        scenario: Scenario,
        changed: Callable[[], None],
        commit: Commit | None = None,
    ) -> None:
        """Start without nodes, and with the newest commit of an earlier cluster, if there is one.

        `changed` is called when the content of etcd has changed.
        """
        self.seen = RunState(settings=scenario.settings, job=Job("running", 0.0))
        """Content of etcd."""
        self.training: Training | None = None
        """The workers of the current round; None while none train."""
        self.schedule = intervals.first(scenario.settings)
        """Schedule of the newest round."""
        self.stretches: list[RunSpan] = []
        """Past spans in which steps were executed."""
        self._timeline, self._scenario, self._changed = timeline, scenario, changed
        self._ids = itertools.count(1)
        self._slots: dict[str, list[Snapshot]] = {}
        self._commit = commit
        self._commit_time = 0.0
        self._due = (0.0, 0)
        """When the next checkpoint of the schedule is sealed, and at which step."""
        self._epochs = itertools.count(1)
        self._decide = Soon(timeline, NETWORK / 10, self._turn)

    # -- what happens to them ---------------------------------------------------------------------

    def join(self, name: str, zone: str, *, spot: bool = True) -> None:
        """Register a node."""
        node = Node(name, self._new_id(), "", zone, Fingerprint(), daemon=name, spot=spot)
        live = LiveNode(node, next(self._ids), self._timeline.now)
        self._put("nodes", name, live)

    def drain(self, drain: Drain) -> None:
        """Record a notice for a node. Only the first one counts."""
        if drain.node in self.seen.nodes and drain.node not in self.seen.drains:
            self._put("drains", drain.node, drain)
            self._tell()

    def leave(self, name: str) -> None:
        """Deregister a node."""
        for table in ("nodes", "acks", "votes", "offers", "progress"):
            self._drop(table, name)

    def vanish(self, name: str) -> None:
        """Lose a node: the other workers stop at once, and its lease runs out later."""
        training = self.training
        if training is not None and training.round.member(name) is not None:
            training.stop(self._timeline.now)
        self._slots.pop(name, None)
        if self.seen.settings is not None and name in self.seen.nodes:
            self._timeline.after(self.seen.settings.lease, lambda: self.leave(name))

    def ask_to_end(self, ending: Ending) -> None:
        """Ask the nodes to save and to end the job."""
        self.seen = replace(self.seen, ending=ending)
        self._decide()

    def end(self, job: Job) -> None:
        """End the job and all workers. What is committed stays."""
        self.seen = replace(self.seen, job=job)
        self._end_training()
        for name in list(self.seen.nodes):
            self.leave(name)

    @property
    def committed(self) -> int:
        """Step of the newest commit; 0 if there is none."""
        return self._commit.step if self._commit is not None else 0

    def finish(self) -> None:
        """End the replay."""
        self._end_training()

    # -- what the holder does ---------------------------------------------------------------------

    def _turn(self) -> None:
        while True:
            decision = rounds.decide(self.seen, self._timeline.now, self._new_id)
            for action in decision.actions:
                match action:
                    case WriteRound(round_):
                        self._write(round_)
                    case WriteProposal(proposal):
                        self._propose(proposal)
                    case EndJob(job):
                        self.end(job)
            if not decision.actions:
                break
        if decision.wake_at is not None and decision.wake_at > self._timeline.now:
            self._timeline.at(decision.wake_at, self._decide)

    def _write(self, round_: Round) -> None:
        now = self._timeline.now
        before = self.seen.round
        self.schedule = round_.schedule
        if before is not None and before.phase == round_.phase == "started":
            # It is the same round with other intervals.
            self.seen = replace(self.seen, round=round_)
            return
        self.seen = replace(self.seen, round=round_, round_at=now)
        if round_.phase == "proposed":
            self._end_training()
            self._timeline.after(NETWORK, lambda: self._answer(round_))
        else:
            self._start(round_)

    def _answer(self, round_: Round) -> None:
        """Acknowledge a round for all members, and offer the slots of other nodes.

        The members' workers wait, or have been killed.
        """
        acks, offers = dict(self.seen.acks), dict(self.seen.offers)
        for name, live in self.seen.nodes.items():
            slots = tuple(self._slots.get(name, ()))
            member = answers.place(live.node, round_)
            if member is None:
                offers[name] = SlotOffer(round_.incarnation, name, slots)
                continue
            first = member.slot == 0
            acks[name] = replace(
                answers.seen(live.node, round_),
                phase="ready",
                daemon=name,
                snapshots=slots,
                commit=self._commit,
                store=f"{name}:1" if first else "",
                epoch=next(self._epochs) if first else 0,
            )
        self.seen = replace(self.seen, acks=acks, offers=offers)
        self._decide()

    def _start(self, round_: Round) -> None:
        machines = self._scenario.machines
        begins = self._timeline.now + machines.start + self._restored_within(round_)
        self.training = training = Training(round_, self._scenario, begins)
        self._tell()
        self._timeline.at(training.executed_at(round_.resume.step + MEASURED), self._tell)
        self._commit_next(training)
        if self._scenario.automatic:
            self._timeline.after(intervals.SETTLE, lambda: self._look(training))
        for name in [name for name in self.seen.drains if name in self.seen.nodes]:
            if round_.member(name) is None:
                upload = self._scenario.uploaded_within(len(round_.members))
                self._timeline.after(upload, partial(self.leave, name))

    def _tell(self) -> None:
        """Update what agents report, when it has changed."""
        training, now, scenario = self.training, self._timeline.now, self._scenario
        if training is None:
            return
        round_, step = training.round, training.step(now)
        measured = step >= round_.resume.step + MEASURED
        progress = {
            member.node: Progress(
                member.node, round_.number, step, now,
                committed=self.committed, epoch=self._commit.epoch if self._commit else 0,
                step_time=training.mean_step if measured else 0.0,
                stall=scenario.copied_within if measured else 0.0,
                commit_time=self._commit_time,
                whole=not scenario.sharded,
                at_risk=member.node in self.seen.drains,
            )
            for member in round_.members if member.node in self.seen.nodes
        }  # fmt: skip
        self.seen = replace(self.seen, progress=progress)

    def _look(self, training: Training) -> None:
        if self.training is not training or training.stopped:
            return
        self._decide()
        age = self._timeline.now - self.seen.round_at
        self._timeline.after(max(LOOK, SHARE * age), lambda: self._look(training))

    def _restored_within(self, round_: Round) -> float:
        """Return the seconds until the slowest node has its state."""
        copied = self._scenario.copied_within
        match round_.resume.kind:
            case "fresh":
                return 0.0
            case "store":
                return self._scenario.fetched_within() + copied
        held = {holder.node for holder in round_.resume.holders}
        if all(member.node in held for member in round_.members):
            return copied
        return self._scenario.state / self._scenario.machines.peer + copied

    # -- saves ------------------------------------------------------------------------------------

    def _propose(self, proposal: Proposal) -> None:
        now, training = self._timeline.now, self.training
        self.seen = replace(self.seen, proposal=proposal, proposal_at=now)
        if training is None or training.stopped:
            return
        if proposal.cancelled:
            training.release(now, proposal.schedule if proposal.applied else None)
            self._tell()
            self._commit_next(training)
        else:
            self._timeline.after(NETWORK, lambda: self._vote(proposal, training, sealed=False))

    def _vote(self, proposal: Proposal, training: Training, *, sealed: bool) -> None:
        if self.seen.proposal is not proposal or self.training is not training:
            return
        resumed = training.round.resume.step
        step = max(training.step(self._timeline.now), resumed)
        page = WorkerStep(0, 0, step, training.mean_step, 0.0, 0.0, attached=True)
        votes, confirmed = dict(self.seen.votes), 0
        for member in training.round.members:
            if member.node in self.seen.nodes:
                vote = answers.vote(member.node, proposal, (page,), resumed, sealed=sealed)
                votes[member.node], confirmed = vote, vote.confirmed
        self.seen = replace(self.seen, votes=votes)
        self._decide()
        if confirmed and not sealed:
            done = training.hold(proposal.target)
            self._timeline.at(done, lambda: self._hold(proposal, training))

    def _hold(self, proposal: Proposal, training: Training) -> None:
        if self.seen.proposal is proposal and not training.stopped:
            self._vote(proposal, training, sealed=True)
            self._upload(training, proposal.target)

    def _end_training(self) -> None:
        """End the workers. What is sealed stays in memory; later steps are lost."""
        training, now = self.training, self._timeline.now
        if training is None:
            return
        training.stop(now)
        self.stretches.append(training.stretch(now))
        sealed = training.sealed(now)
        if sealed > training.round.resume.step or sealed == training.held_at:
            for member in training.round.members:
                if member.node in self.seen.nodes:
                    self._seal(training.round, member.slot, member.node, sealed)
        self.training = None

    def _seal(self, round_: Round, slot: int, node: str, step: int) -> None:
        snapshot = Snapshot(
            round_.incarnation, step, "layout", (slot,), len(round_.members),
            whole=not self._scenario.sharded,
        )  # fmt: skip
        self._slots[node] = [*self._slots.get(node, ()), snapshot][-SLOTS:]

    def _commit_next(self, training: Training) -> None:
        """Schedule the next checkpoint, and then the one after it.

        Has to be called again when the intervals have changed, or when training has waited.
        """
        every = training.schedule.checkpoint_every
        now = max(self._timeline.now, training.begins)
        step = (training.step(now) // every + 1) * every
        due = self._due = training.executed_at(step), step

        def reached() -> None:
            waits = training.step(self._timeline.now) < step
            if self._due is due and self.training is training and not training.stopped | waits:
                self._upload(training, step)
                self._commit_next(training)

        self._timeline.at(due[0], reached)

    def _upload(self, training: Training, step: int) -> None:
        members = [member.node for member in training.round.members]
        commit = Commit(training.round.epoch, step)
        seconds = self._scenario.uploaded_within(len(members))

        def done() -> None:
            if self._all_live(members) and (self._commit is None or _older(self._commit, commit)):
                self._commit, self._commit_time = commit, seconds
                told = {
                    name: replace(progress, committed=step, epoch=commit.epoch, commit_time=seconds)
                    for name, progress in self.seen.progress.items()
                }
                self._set("progress", told)

        self._timeline.after(seconds, done)

    def _all_live(self, names: Iterable[str]) -> bool:
        """Return whether all these nodes live. Each of them uploads a part of its own."""
        return all(name in self.seen.nodes for name in names)

    # -- etcd -------------------------------------------------------------------------------------

    def _put(self, table: str, name: str, value: object) -> None:
        self._set(table, {**getattr(self.seen, table), name: value})

    def _drop(self, table: str, name: str) -> None:
        kept = {key: value for key, value in getattr(self.seen, table).items() if key != name}
        self._set(table, kept)

    def _set(self, table: str, values: dict[str, Any]) -> None:
        changed: dict[str, Any] = {table: values}
        self.seen = replace(self.seen, **changed)
        self._decide()
        self._changed()

    def _new_id(self) -> str:
        return f"id{next(self._ids)}"


def _older(one: Commit, other: Commit) -> bool:
    return (one.epoch, one.step) < (other.epoch, other.step)
