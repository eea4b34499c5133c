"""Performs what `decide.py` decided: one method per action, each returning the new `NodeState`.

Nothing here decides. Actions on this machine alone are in `node_processes.py`; here are those that
write to etcd. Further writes wait while etcd does not answer (`NodeState.write_at`). A checkpoint
daemon that does not answer is started again; one that refuses is asked again (`NodeState.ask_at`).
"""

import contextlib
import logging
import signal
from dataclasses import replace
from functools import singledispatchmethod
from typing import Any

from spotelastic_checkpoints.errors import CheckpointsError, DaemonUnavailable
from spotelastic_checkpoints.types import Commit

from spotelastic.agent import actions
from spotelastic.agent.checkpoints import newest, newest_commit
from spotelastic.agent.config import AgentConfig
from spotelastic.agent.decide import BLIND, RESTARTED
from spotelastic.agent.node_processes import NodeProcesses, Post, stacks
from spotelastic.agent.observe import NodeState, StorageClaim
from spotelastic.agent.progress import highest, progress
from spotelastic.agent.workers.pool import read_error_file, read_stack
from spotelastic.clock import unbroken
from spotelastic.errors import LeaseLost, Unavailable, UsageError
from spotelastic.model.agreement import Proposal, Vote
from spotelastic.model.ids import new_id
from spotelastic.model.job import Failure, Finished, beginning
from spotelastic.model.node import Node
from spotelastic.model.notice import Drain
from spotelastic.model.progress import Event
from spotelastic.model.protocol import PROTOCOL
from spotelastic.model.round import Acknowledgement, Round, SlotOffer
from spotelastic.redaction import redactor
from spotelastic.rendezvous import membership
from spotelastic.rendezvous.view import RunState
from spotelastic.store.codec import encode, readable
from spotelastic.store.election import campaign
from spotelastic.store.keys import Keys
from spotelastic.store.port import Store
from spotelastic.store.session import Session

logger = logging.getLogger(__name__)

WRITE_RETRY = 0.2
ASK_RETRY = 0.5


class AgentExecutor:
    """Performs actions. It owns the agent's session and its node's processes. Used by the main
    thread only.
    """

    def __init__(self, config: AgentConfig, store: Store, session: Session, post: Post) -> None:
        self.config = config
        self.keys = Keys(config.run)
        self._store = store
        self._session = session
        self._machine = NodeProcesses(config, post)

    def perform(self, local: NodeState, seen: RunState, action: actions.Action) -> NodeState:
        """Returns the state after the action. What could not be done is tried again by the next
        decision.
        """
        try:
            return self._do(action, local, seen)
        except (Unavailable, LeaseLost):
            return replace(local, write_at=unbroken() + WRITE_RETRY)
        except DaemonUnavailable:
            return replace(local, daemon="")
        except CheckpointsError as error:
            return self._refused(local, action, error)

    def _refused(
        self, local: NodeState, action: actions.Action, error: CheckpointsError
    ) -> NodeState:
        """Handles the refusal of a daemon that lives, but lacks something: memory, for instance."""
        topic, again = f"refused {type(action).__name__}", unbroken() + ASK_RETRY
        if topic not in local.said:
            logger.warning(f"checkpoints: {error}")
        return replace(local, said=local.said | {topic}, write_at=again, ask_at=again)

    def close(self) -> None:
        self._machine.close()

    @singledispatchmethod
    def _do(self, action: actions.Action, local: NodeState, seen: RunState) -> NodeState:
        return self._machine.do(action, local, seen)

    # -- belonging to the run -----------------------------------------------------------------

    @_do.register
    def _(self, action: actions.Register, local: NodeState, seen: RunState) -> NodeState:
        if not self._session.alive:
            self._session.renew()
        if local.node is not None and not action.anew:
            node = replace(local.node, daemon=local.daemon)
            membership.renew(self._store, self.keys, node, self._session.lease, local.vote)
            return replace(local, node=node, registered=True, offered="", told_step=-1)
        if local.fingerprint is None:
            return local
        node = Node(
            id=self.config.node,
            incarnation=new_id(),
            address=self.config.address,
            zone=self.config.zone,
            fingerprint=local.fingerprint,
            daemon=local.daemon,
            spot=self.config.spot,
            node_rank=self.config.node_rank,
        )
        settings = self.config.settings
        refused = membership.join(self._store, self.keys, node, settings, self._session.lease, seen)
        if refused is None:
            return replace(local, node=node, registered=True, offered="", refused_at=0.0)
        since = local.refused_at or unbroken()
        if not refused.passing or unbroken() >= since + 2 * settings.lease:
            raise UsageError(refused.reason)
        return replace(local, refused_at=since, write_at=unbroken() + WRITE_RETRY)

    @_do.register
    def _(self, action: actions.Campaign, local: NodeState, seen: RunState) -> NodeState:
        leadership = campaign(
            self._store, self.keys.holder, self.config.node.encode(), self._session.lease
        )
        if leadership is None:
            return replace(local, write_at=unbroken() + 0.05)
        return replace(local, leadership=leadership, nodes_seen=False, lead_after=0)

    @_do.register
    def _(self, action: actions.Lead, local: NodeState, seen: RunState) -> NodeState:
        if local.leadership is None:
            return local
        now = unbroken()
        outcome = membership.perform(
            self._store, self.keys, seen, action.actions, local.leadership.compare, now
        )
        after = outcome.revision if outcome.succeeded else seen.revision + 1
        return replace(local, lead_after=after, lead_at=now + 0.5)

    @_do.register
    def _(self, action: actions.WriteDrain, local: NodeState, seen: RunState) -> NodeState:
        notice = local.notice
        if notice is None:
            return local
        notice = replace(notice, node=self.config.node)
        if notice.kind.traits.drains:
            membership.write_drain(self._store, self.keys, Drain(notice.node, notice))
        self._record(notice.event(notice.seen_at))
        return replace(local, drained=True)

    # -- rounds -------------------------------------------------------------------------------

    @_do.register
    def _(self, action: actions.ClaimStorage, local: NodeState, seen: RunState) -> NodeState:
        """Claims the storage for the current round. A claim fences every other round, so a node
        that was cut off must not claim for a round that has been replaced.
        """
        current = self._store.get(self.keys.round)
        incarnation = action.round.incarnation
        found = readable(current.data, Round) if current is not None else None
        if found is None or found.incarnation != incarnation:
            return replace(local, claim=StorageClaim(incarnation, unbroken(), pending=False))
        return self._machine.do(action, local, seen)

    @_do.register
    def _(self, action: actions.Acknowledge, local: NodeState, seen: RunState) -> NodeState:
        round_, node = action.round, local.node
        if node is None:
            return local
        epoch = 0
        ack = Acknowledgement(node.id, node.incarnation, round_.incarnation, "seen")
        if action.ready:
            status = self._machine.daemon.status()
            if local.claim is not None and local.claim.round == round_.incarnation:
                epoch = local.claim.epoch
            commit = newest_commit(status, local.commit)
            if not epoch and round_.members[0].node == node.id:
                commit = newest(commit, membership.told_commit(self._store, self.keys))
            ack = replace(
                ack,
                phase="ready",
                daemon=local.daemon,
                snapshots=status.snapshots,
                commit=commit,
                store=local.store.address if local.store is not None else "",
                epoch=epoch,
                end=local.end,
            )
        self._store.put(self.keys.ack(node.id), encode(ack), self._session.lease)
        told = (round_.incarnation, ack.phase, epoch)
        return replace(local, acknowledged=told, said=local.said - {BLIND})

    @_do.register
    def _(self, action: actions.OfferSlots, local: NodeState, seen: RunState) -> NodeState:
        offer = SlotOffer(action.round, local.daemon, self._machine.daemon.status().snapshots)
        key = self.keys.snapshots(self.config.node)
        self._store.put(key, encode(offer), self._session.lease)
        return replace(local, offered=action.round)

    @_do.register
    def _(self, action: actions.ReportFailure, local: NodeState, seen: RunState) -> NodeState:
        workers = local.workers
        if workers is None:
            return local
        folder = self.config.round_logs(workers.number)
        first = min((e for e in workers.exits if e.code), key=lambda e: e.at)
        rank = workers.first_rank + first.local_rank
        message, trace = read_error_file(folder / f"error-{rank}.json")
        message = message or _describe_exit(first.code)
        # Of a data loader that was killed its worker tells.
        killed = first.code == -signal.SIGKILL or "killed by signal" in message
        if memory := self._machine.lack_of_memory(killed=killed):
            message = f"{message} ({memory})"
        failure = Failure(
            id=new_id(),
            node=self.config.node,
            round=workers.round,
            rank=rank,
            local_rank=first.local_rank,
            at=first.at,
            exit_code=first.code,
            message=message,
            traceback=trace,
            log=str(self._machine.log(workers.number, rank, first.local_rank)),
        )
        return self._report(local, failure, f"rank {rank}: {failure.message}")

    @_do.register
    def _(self, action: actions.ReportStall, local: NodeState, seen: RunState) -> NodeState:
        workers = local.workers
        if workers is None or seen.settings is None:
            return local
        pace, folder = workers.pace, self.config.round_logs(workers.number)
        rank = workers.first_rank + pace.behind
        failure = Failure(
            id=new_id(),
            node=self.config.node,
            round=workers.round,
            rank=rank,
            local_rank=pace.behind,
            at=pace.step_at,
            exit_code=0,
            message=f"has executed no step after step {pace.step} "
            f"for {seen.settings.stall_timeout:g} s; "
            f"the stacks of this node's ranks are in {stacks(folder, '*')}",
            traceback=read_stack(stacks(folder, rank)),
            log=str(self._machine.log(workers.number, rank, pace.behind)),
            stalled=True,
        )
        return self._report(local, failure, f"rank {rank} {failure.message}")

    @_do.register
    def _(self, action: actions.TellSilence, local: NodeState, seen: RunState) -> NodeState:
        workers = local.workers
        if workers is None:
            return local
        silence, now = workers.silence, unbroken()
        for_ = f"for {now - (silence.since or workers.started_at):.0f} s"
        what = f"no step {for_}" if workers.attached else f"no Checkpointer was entered {for_}"
        line = beginning(f"{what}: {self._machine.standing(workers)}")
        more = stacks(self.config.round_logs(workers.number), "*")
        logger.warning(f"{line}; whole stacks are in {more}")
        silence = replace(silence, asked_at=0.0, told=silence.told + 1, line=line)
        local = replace(local, workers=replace(workers, silence=silence))
        with contextlib.suppress(Unavailable, LeaseLost):
            if not workers.first_rank:
                self._record(Event(now, "quiet", line, self.config.node))
            return self._do(actions.TellProgress(), local, seen)
        return local

    @_do.register
    def _(self, action: actions.ReportStoreDeath, local: NodeState, seen: RunState) -> NodeState:
        failure = Failure(
            new_id(), self.config.node, action.round.incarnation, -1, -1, unbroken(), 0,
            "the round's store ended",
        )  # fmt: skip
        return self._report(local, failure, failure.message)

    def _report(self, local: NodeState, failure: Failure, message: str) -> NodeState:
        blot = redactor(self.config.secrets)  # before a cut, which might leave half a secret
        message = beginning(blot(message))
        failure = replace(failure, message=blot(failure.message), traceback=blot(failure.traceback))
        failure = failure.storable()
        self._store.put(self.keys.failure(self.config.node), encode(failure))
        data = {
            "rank": failure.rank,
            "at": failure.at,
            "seen_at": unbroken(),
            "round": failure.round,
            "exit_code": failure.exit_code,
            "log": failure.log,
        }
        self._record(Event(failure.at, "failure", message, self.config.node, data))
        logger.error(message)
        if local.workers is None:
            return local
        return replace(local, workers=replace(local.workers, failed=True))

    @_do.register
    def _(self, action: actions.ReportFinished, local: NodeState, seen: RunState) -> NodeState:
        workers = local.workers
        if workers is None:
            return local
        end = self._machine.round_end(workers)
        finished = Finished(
            self.config.node,
            workers.round,
            unbroken(),
            end_step=end.last_step or action.round.resume.step,
            first_step_at=end.first_step_at,
            last_step_at=end.last_step_at,
        )
        self._store.put(self.keys.finished(workers.round, self.config.node), encode(finished))
        return replace(local, finished=workers.round, finished_at=unbroken())

    @_do.register
    def _(self, action: actions.Say, local: NodeState, seen: RunState) -> NodeState:
        logger.info(action.line)
        return replace(local, said=local.said | {action.topic})

    @_do.register
    def _(self, action: actions.TellRestart, local: NodeState, seen: RunState) -> NodeState:
        incarnation = local.node.incarnation if local.node is not None else ""
        node, data = self.config.node, {"incarnation": incarnation}
        line = f"{node} starts again: the code has changed"
        self._record(Event(unbroken(), "restart", line, node, data))
        return replace(local, said=local.said | {RESTARTED})

    @_do.register
    def _(self, action: actions.TellVersions, local: NodeState, seen: RunState) -> NodeState:
        data = {"topic": action.topic, "protocol": str(PROTOCOL)}
        line = f"{self.config.node} {action.line}"
        self._record(Event(unbroken(), "version", line, self.config.node, data))
        logger.warning(line)
        return replace(local, said=local.said | {action.topic})

    # -- agreement on a save step -------------------------------------------------------------

    @_do.register
    def _(self, action: actions.AnswerSteps, local: NodeState, seen: RunState) -> NodeState:
        steps = self._machine.daemon.status().workers
        return self._vote(local, action.proposal, steps, Vote(self.config.node, "", 0))

    @_do.register
    def _(self, action: actions.SetSaveTarget, local: NodeState, seen: RunState) -> NodeState:
        """Writes the target, then reads the steps: a worker that had not seen the target must be
        two steps short of it.
        """
        proposal = action.proposal
        steps = self._machine.daemon.set_target(proposal.round, proposal.id, proposal.target)
        sure = highest(local, steps) <= proposal.target - 2
        vote = Vote(
            self.config.node,
            "",
            0,
            aimed=proposal.target,
            confirmed=proposal.target if sure else 0,
        )
        return self._vote(local, proposal, steps, vote)

    @_do.register
    def _(self, action: actions.VoteSealed, local: NodeState, seen: RunState) -> NodeState:
        target = action.proposal.target
        vote = Vote(self.config.node, "", 0, aimed=target, confirmed=target, sealed=target)
        return self._vote(local, action.proposal, self._machine.daemon.status().workers, vote)

    @_do.register
    def _(self, action: actions.Refuse, local: NodeState, seen: RunState) -> NodeState:
        vote = Vote(self.config.node, "", 0, refused=True, plain=action.plain)
        return self._vote(local, action.proposal, (), vote)

    @_do.register
    def _(self, action: actions.ReleaseWorkers, local: NodeState, seen: RunState) -> NodeState:
        proposal = action.proposal
        schedule = proposal.schedule if proposal.applied else None
        self._machine.daemon.set_target(proposal.round, proposal.id, 0, schedule)
        if schedule is not None and local.workers is not None and not local.workers.first_rank:
            logger.info(proposal.reason)
        return replace(local, vote=None)

    def _vote(self, local: NodeState, proposal: Proposal, steps: Any, vote: Vote) -> NodeState:
        times = [worker.step_time for worker in steps if worker.step_time > 0]
        vote = replace(
            vote,
            proposal=proposal.id,
            step=highest(local, steps),
            step_time=max(times, default=0.0),
        )
        self._store.put(self.keys.vote(vote.node), encode(vote), self._session.lease)
        return replace(local, vote=vote)

    # -- telling ------------------------------------------------------------------------------

    @_do.register
    def _(self, action: actions.TellProgress, local: NodeState, seen: RunState) -> NodeState:
        status = self._machine.daemon.status()
        told = progress(self.config.node, local, status, unbroken())
        commit = newest_commit(status, local.commit)
        key = self.keys.progress(self.config.node)
        self._store.put(key, encode(told), self._session.lease)
        return replace(
            local,
            points=(),
            step=told.step,
            commit=commit,
            told_at=told.at,
            told_step=told.step,
            step_time=told.step_time,
            told_commit=commit,
        )

    def tell_commit(self, commit: Commit, at: float) -> None:
        """Records a commit that this node's daemon has seen."""
        with contextlib.suppress(Unavailable):
            membership.tell_commit(self._store, self.keys, self.config.node, commit, at)

    def _record(self, event: Event) -> None:
        membership.record(self._store, self.keys, event)


def _describe_exit(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"ended by signal {-code}"
