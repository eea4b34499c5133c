"""Performs what `decide.py` decided: one method per action, each returning the new `Local`.

Nothing here decides. A store that does not answer postpones further writes (`Local.write_at`); a
daemon that does not answer is started again.
"""

import contextlib
import os
import select
import signal
import sys
import uuid
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import singledispatchmethod
from pathlib import Path
from typing import Any

from spotelastic_checkpoints.client import DaemonClient
from spotelastic_checkpoints.errors import DaemonUnavailable
from spotelastic_checkpoints.wire import WorkerStep

from spotelastic.agent import actions, environment
from spotelastic.agent.checkpoints import Checkpoints, newest_commit, snapshots
from spotelastic.agent.config import AgentConfig
from spotelastic.agent.observe import (
    GONE_WITHIN,
    Local,
    LocalEvent,
    RoundStore,
    StorageClaim,
    Workers,
    look,
)
from spotelastic.agent.workers.logs import Logs
from spotelastic.agent.workers.pool import Order, Zygote, read_error_file, read_stack
from spotelastic.agent.workers.process import END_WITHIN, STACKS, end_marked, mark
from spotelastic.agent.workers.zygote import Plan
from spotelastic.clock import unbroken
from spotelastic.errors import EnvironmentFailure, LeaseLost, Unavailable, UsageError
from spotelastic.model.agreement import Proposal, Vote
from spotelastic.model.job import Failure, Finished
from spotelastic.model.node import Node
from spotelastic.model.notice import Drain, Notice
from spotelastic.model.progress import Event, Progress
from spotelastic.model.round import (
    Acknowledgement,
    Commit,
    Member,
    Offer,
    Round,
)
from spotelastic.rendezvous import membership
from spotelastic.rendezvous.view import Seen
from spotelastic.store.codec import encode
from spotelastic.store.election import campaign
from spotelastic.store.keys import Keys
from spotelastic.store.port import Store
from spotelastic.store.session import Session

PRELOAD = (
    "torch",
    "torch._dynamo",  # the first optimizer imports it: 1.0 to 1.3 s in each fork otherwise
    "torch.distributed.checkpoint.state_dict",
    "torch.nn.parallel",
    "spotelastic.training.checkpointer",
)
NEEDED = ("torch.distributed",)
"""By a round's store; all that is imported where workers are not forked."""
FALSE_STARTS = 3
"""Zygotes that end before they are ready; the last is tried without the user's modules."""
WRITE_RETRY = 0.2
FLUSH_TIMEOUT = 120.0
STORE_TIMEOUT = 10.0

Post = Callable[[LocalEvent], None]


class Actor:
    """Holds what an agent owns: its session, zygote, daemon, logs. Used by the main thread only."""

    def __init__(self, config: AgentConfig, store: Store, session: Session, post: Post) -> None:
        self.config = config
        self.keys = Keys(config.run)
        self._store = store
        self._session = session
        self._post = post
        self._shared_env = environment.base({**os.environ, **config.env}, config.address)
        self._shared_env |= mark(config.state)
        end_marked(
            mark(config.state), END_WITHIN
        )  # left by an agent that was killed with its zygote
        self._zygote: Zygote | None = None
        self._false_starts = 0
        self._checkpoints = Checkpoints(config, post)
        line = config.line or (lambda _rank, _line: None)
        self._logs = Logs(line, config.error_line, config.output)

    def perform(self, local: Local, seen: Seen, action: actions.Action) -> Local:
        """`local` after the action. What could not be done is tried again by the next decision."""
        try:
            return self._do(action, local, seen)
        except (Unavailable, LeaseLost):
            return replace(local, write_at=unbroken() + WRITE_RETRY)
        except DaemonUnavailable:
            return replace(local, daemon="")

    def close(self) -> None:
        """End everything this agent started; nothing of it is left."""
        if self._zygote is not None:
            self._zygote.close()
        self._checkpoints.close()
        self._logs.close()

    @singledispatchmethod
    def _do(self, action: actions.Action, local: Local, seen: Seen) -> Local:
        raise TypeError(f"no handler for {action!r}")

    # -- processes ----------------------------------------------------------------------------

    @_do.register
    def _(self, action: actions.StartZygote, local: Local, seen: Seen) -> Local:
        if self._zygote is not None:
            self._zygote.close()
            self._false_starts = 0 if self._zygote.warm else self._false_starts + 1
        if self._false_starts >= FALSE_STARTS:
            raise EnvironmentFailure(
                "the process that imports torch ended each time before it was ready: "
                f"see whether `{sys.executable} -c 'import torch'` works here"
            )
        preload = self.config.preload
        if preload and self._false_starts == FALSE_STARTS - 1:
            self.config.say(f"importing --preload {','.join(preload)} failed: left to the workers")
            preload = ()
        plan = Plan(
            agent=os.getpid(),
            path=str(environment.folder(self.config)),
            warm=self.config.warm,
            base=PRELOAD if self.config.warm else NEEDED,
            preload=preload,
        )
        self._zygote = Zygote(plan, self._shared_env, mark(self.config.state), self._post)
        return replace(local, zygote=True, fingerprint=None)

    @_do.register
    def _(self, action: actions.StartDaemon, local: Local, seen: Seen) -> Local:
        local = replace(local, daemon=self._checkpoints.open())
        workers, round_ = local.workers, seen.round
        if workers is not None and round_ is not None and round_.incarnation == workers.round:
            member = round_.member(self.config.node)
            if member is not None:
                self._checkpoints.begin(round_, member)
        return local

    @_do.register
    def _(self, action: actions.KillWorkers, local: Local, seen: Seen) -> Local:
        workers = local.workers
        if workers is None or self._zygote is None:
            return local
        self._zygote.end(sorted(workers.alive), action.signal)
        now, never = unbroken(), float("inf")
        if action.signal == signal.SIGTERM:
            kill_at, gone_by = now + self.config.grace, never
        else:
            kill_at, gone_by = never, min(workers.gone_by, now + GONE_WITHIN)
        workers = replace(workers, killed=True, kill_at=kill_at, gone_by=gone_by)
        return replace(local, workers=workers)

    @_do.register
    def _(self, action: actions.DumpStacks, local: Local, seen: Seen) -> Local:
        """A program that is not Python would be ended by the signal."""
        workers = local.workers
        if workers is None or self._zygote is None:
            return local
        if self.config.entry != "program":
            self._zygote.send_signal(sorted(workers.alive), STACKS)
        return replace(local, workers=replace(workers, dumped_at=unbroken()))

    @_do.register
    def _(self, action: actions.LookAtSteps, local: Local, seen: Seen) -> Local:
        workers = local.workers
        if workers is None:
            return local
        pace = look(workers.pace, self.daemon.status().workers, unbroken())
        return replace(local, workers=replace(workers, pace=pace))

    @_do.register
    def _(self, action: actions.EndRound, local: Local, seen: Seen) -> Local:
        workers = local.workers
        if workers is None:
            return local
        local = replace(local, workers=None, vote=None)
        with contextlib.suppress(DaemonUnavailable):
            self.daemon.end()
            return replace(local, end=self._checkpoints.round_end(workers))
        return local

    @_do.register
    def _(self, action: actions.OpenStore, local: Local, seen: Seen) -> Local:
        """Fork a store; its port comes through a pipe once it listens."""
        name = f"store/{action.round.incarnation}"
        read, write = os.pipe2(os.O_CLOEXEC)
        try:
            self.zygote.start(Order(name, "store", host=self.config.address), write)
            os.close(write)
            ready, _, _ = select.select([read], [], [], STORE_TIMEOUT)
            port = os.read(read, 64).decode().strip() if ready else ""
        except OSError:
            port = ""
        finally:
            os.close(read)
        if not port:
            self.zygote.end([name])
            return local
        address = f"{self.config.address}:{port}"
        return replace(local, store=RoundStore(action.round.incarnation, name, address))

    @_do.register
    def _(self, action: actions.CloseStore, local: Local, seen: Seen) -> Local:
        if local.store is not None and not local.store.dead:
            self.zygote.end([local.store.id])
        return replace(local, store=None)

    @_do.register
    def _(self, action: actions.StartWorkers, local: Local, seen: Seen) -> Local:
        round_, member, settings = action.round, action.member, seen.settings
        if settings is None:
            return local
        self._checkpoints.begin(round_, member)
        folder = self.config.round_logs(round_.number)
        first, alive = round_.first_rank(member.slot), []
        for local_rank in range(member.workers):
            name = f"{round_.incarnation}/{local_rank}"
            error_file = folder / f"error-{first + local_rank}.json"
            streams = self._logs.open(folder, first + local_rank, local_rank)
            error_file.unlink(missing_ok=True)
            env = environment.worker(
                self._shared_env,
                self.config,
                settings,
                round_,
                member,
                local_rank,
                daemon=self._checkpoints.socket,
                error_file=error_file,
            )
            command = environment.command(self.config, local_rank)
            order = Order(
                name,
                "worker",
                command,
                env,
                str(self.config.workdir),
                entry=self.config.entry,
                numa=self.config.numa,
                stacks=str(_stacks(folder, first + local_rank)) if settings.stall_timeout else "",
            )
            with contextlib.suppress(OSError):
                self.zygote.start(order, *streams)
            for stream in streams:
                os.close(stream)
            alive.append(name)
        self.config.say(_describe(round_, member))
        workers = Workers(
            round_.incarnation,
            round_.number,
            first,
            round_.epoch,
            unbroken(),
            frozenset(alive),
            resumed=round_.resume.step,
        )
        return replace(local, workers=workers, vote=None, step=round_.resume.step)

    @_do.register
    def _(self, action: actions.AdoptEpoch, local: Local, seen: Seen) -> Local:
        self._checkpoints.begin(action.round, action.member)
        if local.workers is None:
            return local
        return replace(local, workers=replace(local.workers, epoch=action.round.epoch))

    # -- belonging to the run -----------------------------------------------------------------

    @_do.register
    def _(self, action: actions.Register, local: Local, seen: Seen) -> Local:
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
            incarnation=uuid.uuid4().hex,
            address=self.config.address,
            zone=self.config.zone,
            fingerprint=local.fingerprint,
            daemon=local.daemon,
            spot=self.config.spot,
            node_rank=self.config.node_rank,
            registered_at=unbroken(),
        )
        settings = self.config.settings
        refused = membership.join(self._store, self.keys, node, settings, self._session.lease)
        if refused is None:
            return replace(local, node=node, registered=True, offered="", refused_at=0.0)
        since = local.refused_at or unbroken()
        if not refused.passing or unbroken() >= since + 2 * settings.lease:
            raise UsageError(refused.reason)
        return replace(local, refused_at=since, write_at=unbroken() + WRITE_RETRY)

    @_do.register
    def _(self, action: actions.Campaign, local: Local, seen: Seen) -> Local:
        leadership = campaign(
            self._store, self.keys.holder, self.config.node.encode(), self._session.lease
        )
        if leadership is None:
            return replace(local, write_at=unbroken() + 0.05)
        return replace(local, leadership=leadership, nodes_seen=False, lead_after=0)

    @_do.register
    def _(self, action: actions.Lead, local: Local, seen: Seen) -> Local:
        if local.leadership is None:
            return local
        now = unbroken()
        outcome = membership.perform(
            self._store, self.keys, seen, action.actions, local.leadership.compare, now
        )
        after = outcome.revision if outcome.succeeded else seen.revision + 1
        return replace(local, lead_after=after, lead_at=now + 0.5)

    @_do.register
    def _(self, action: actions.WriteDrain, local: Local, seen: Seen) -> Local:
        notice = local.notice
        if notice is None:
            return local
        notice = replace(notice, node=self.config.node)
        if notice.kind != "rebalance":
            membership.write_drain(self._store, self.keys, Drain(notice.node, notice))
            if notice.deadline is not None and notice.kind != "leave":
                with contextlib.suppress(DaemonUnavailable):
                    self.daemon.hurry(notice.deadline)
        self._record(
            Event(
                notice.seen_at,
                notice.kind if notice.kind in ("rebalance", "leave") else "notice",
                _describe_notice(notice),
                notice.node,
                {
                    "kind": notice.kind,
                    "source": notice.source,
                    "at": notice.at,
                    "seen_at": notice.seen_at,
                    "deadline": notice.deadline,
                },
            )
        )
        return replace(local, drained=True)

    # -- rounds -------------------------------------------------------------------------------

    @_do.register
    def _(self, action: actions.Acknowledge, local: Local, seen: Seen) -> Local:
        round_, node = action.round, local.node
        if node is None:
            return local
        epoch = 0
        ack = Acknowledgement(node.id, node.incarnation, round_.incarnation, "seen")
        if action.ready:
            status = self.daemon.status()
            if local.claim is not None and local.claim.round == round_.incarnation:
                epoch = local.claim.epoch
            ack = replace(
                ack,
                phase="ready",
                daemon=local.daemon,
                snapshots=snapshots(status),
                commit=newest_commit(status, local.commit),
                store=local.store.address if local.store is not None else "",
                epoch=epoch,
                end=local.end,
            )
        self._store.put(self.keys.ack(node.id), encode(ack), self._session.lease)
        return replace(local, acknowledged=(round_.incarnation, ack.phase, epoch))

    @_do.register
    def _(self, action: actions.ClaimStorage, local: Local, seen: Seen) -> Local:
        self._checkpoints.claim(action.round.incarnation)
        return replace(local, claim=StorageClaim(action.round.incarnation, unbroken()))

    @_do.register
    def _(self, action: actions.OfferSlots, local: Local, seen: Seen) -> Local:
        offer = Offer(action.round, local.daemon, snapshots(self.daemon.status()))
        key = self.keys.snapshots(self.config.node)
        self._store.put(key, encode(offer), self._session.lease)
        return replace(local, offered=action.round)

    @_do.register
    def _(self, action: actions.ReportFailure, local: Local, seen: Seen) -> Local:
        workers = local.workers
        if workers is None:
            return local
        folder = self.config.round_logs(workers.number)
        first = min((e for e in workers.exits if e.code), key=lambda e: e.at)
        rank = workers.first_rank + first.local_rank
        message, trace = read_error_file(folder / f"error-{rank}.json")
        failure = Failure(
            id=uuid.uuid4().hex,
            node=self.config.node,
            round=workers.round,
            rank=rank,
            local_rank=first.local_rank,
            at=first.at,
            exit_code=first.code,
            message=message or _describe_exit(first.code),
            traceback=trace,
            log=str(self._logs.path(folder, rank, first.local_rank)),
        )
        return self._report(local, failure, f"rank {rank}: {failure.message}")

    @_do.register
    def _(self, action: actions.ReportStall, local: Local, seen: Seen) -> Local:
        workers = local.workers
        if workers is None or seen.settings is None:
            return local
        pace, folder = workers.pace, self.config.round_logs(workers.number)
        rank = workers.first_rank + pace.behind
        failure = Failure(
            id=uuid.uuid4().hex,
            node=self.config.node,
            round=workers.round,
            rank=rank,
            local_rank=pace.behind,
            at=pace.step_at,
            exit_code=0,
            message=f"has executed no step after step {pace.step} "
            f"for {seen.settings.stall_timeout:g} s; "
            f"the stacks of this node's ranks are in {_stacks(folder, '*')}",
            traceback=read_stack(_stacks(folder, rank)),
            log=str(self._logs.path(folder, rank, pace.behind)),
            stalled=True,
        )
        return self._report(local, failure, f"rank {rank} {failure.message}")

    @_do.register
    def _(self, action: actions.ReportStoreDeath, local: Local, seen: Seen) -> Local:
        failure = Failure(
            uuid.uuid4().hex, self.config.node, action.round.incarnation, -1, -1, unbroken(), 0,
            "the round's store ended",
        )  # fmt: skip
        return self._report(local, failure, failure.message)

    def _report(self, local: Local, failure: Failure, message: str) -> Local:
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
        self.config.say(message)
        if local.workers is None:
            return local
        return replace(local, workers=replace(local.workers, failed=True))

    @_do.register
    def _(self, action: actions.Flush, local: Local, seen: Seen) -> Local:
        within = FLUSH_TIMEOUT
        if local.notice is not None and local.notice.deadline is not None:
            within = min(within, max(local.notice.deadline - unbroken(), 1.0))
        self._checkpoints.flush(action.round, within)
        return replace(local, flushing=action.round)

    @_do.register
    def _(self, action: actions.ReportFinished, local: Local, seen: Seen) -> Local:
        workers = local.workers
        if workers is None:
            return local
        end = self._checkpoints.round_end(workers)
        finished = Finished(
            self.config.node,
            workers.round,
            unbroken(),
            end_step=max(end.last_step, action.round.resume.step),
            first_step_at=end.first_step_at,
            last_step_at=end.last_step_at,
        )
        self._store.put(self.keys.finished(workers.round, self.config.node), encode(finished))
        return replace(local, finished=workers.round, finished_at=unbroken())

    @_do.register
    def _(self, action: actions.Say, local: Local, seen: Seen) -> Local:
        self.config.say(action.line)
        return replace(local, said=local.said | {action.topic})

    # -- agreement on a save step -------------------------------------------------------------

    @_do.register
    def _(self, action: actions.AnswerSteps, local: Local, seen: Seen) -> Local:
        steps = self.daemon.status().workers
        return self._vote(local, action.proposal, steps, Vote(self.config.node, "", 0))

    @_do.register
    def _(self, action: actions.Aim, local: Local, seen: Seen) -> Local:
        """Target first, then steps: a worker that had not seen it must still be two steps short."""
        proposal = action.proposal
        steps = self.daemon.set_target(proposal.round, proposal.id, proposal.target)
        sure = _highest(local, steps) <= proposal.target - 2
        vote = Vote(
            self.config.node,
            "",
            0,
            aimed=proposal.target,
            confirmed=proposal.target if sure else 0,
        )
        return self._vote(local, proposal, steps, vote)

    @_do.register
    def _(self, action: actions.VoteSealed, local: Local, seen: Seen) -> Local:
        target = action.proposal.target
        vote = Vote(self.config.node, "", 0, aimed=target, confirmed=target, sealed=target)
        return self._vote(local, action.proposal, self.daemon.status().workers, vote)

    @_do.register
    def _(self, action: actions.Refuse, local: Local, seen: Seen) -> Local:
        vote = Vote(self.config.node, "", 0, refused=True, plain=action.plain)
        return self._vote(local, action.proposal, (), vote)

    @_do.register
    def _(self, action: actions.Release, local: Local, seen: Seen) -> Local:
        self.daemon.set_target(action.proposal.round, action.proposal.id, 0)
        return replace(local, vote=None)

    def _vote(self, local: Local, proposal: Proposal, steps: Any, vote: Vote) -> Local:
        times = [worker.step_time for worker in steps if worker.step_time > 0]
        vote = replace(
            vote,
            proposal=proposal.id,
            step=_highest(local, steps),
            step_time=max(times, default=0.0),
        )
        self._store.put(self.keys.vote(vote.node), encode(vote), self._session.lease)
        return replace(local, vote=vote)

    # -- telling ------------------------------------------------------------------------------

    @_do.register
    def _(self, action: actions.TellProgress, local: Local, seen: Seen) -> Local:
        status = self.daemon.status()
        commit = newest_commit(status, local.commit)
        step = max((w.step for w in status.workers), default=local.step)
        progress = Progress(
            node=self.config.node,
            round=seen.round.number if seen.round is not None else 0,
            step=step,
            at=unbroken(),
            points=local.points,
            committed=commit.step if commit is not None else 0,
            uploading=status.uploading,
        )
        key = self.keys.progress(self.config.node)
        self._store.put(key, encode(progress), self._session.lease)
        return replace(local, points=(), step=step, told_at=progress.at, told_step=step)

    def tell_commit(self, commit: Commit, at: float) -> None:
        """A commit that this node's daemon has seen becomes part of the run's story."""
        with contextlib.suppress(Unavailable):
            membership.tell_commit(self._store, self.keys, self.config.node, commit, at)

    def _record(self, event: Event) -> None:
        membership.record(self._store, self.keys, event)

    @property
    def daemon(self) -> DaemonClient:
        return self._checkpoints.client

    @property
    def zygote(self) -> Zygote:
        if self._zygote is None:
            raise OSError("the zygote is being started")
        return self._zygote


def _stacks(folder: Path, rank: int | str) -> Path:
    """Where the worker of that rank writes the stacks of its threads when asked to."""
    return folder / f"rank-{rank}.stack"


def _highest(local: Local, steps: Iterable[WorkerStep]) -> int:
    """That a worker has finished; one that has not restored yet will go on from the round's."""
    resumed = local.workers.resumed if local.workers is not None else 0
    return max(resumed, *(worker.step for worker in steps), 0)


def _describe(round_: Round, member: Member) -> str:
    source = {
        "fresh": "from the start",
        "memory": f"from step {round_.resume.step} in memory",
        "store": f"from step {round_.resume.step} in the object store",
    }[round_.resume.kind]
    return (
        f"round {round_.number} ({round_.reason}): node {member.slot + 1} of "
        f"{len(round_.members)}, {round_.world_size} workers, {source}"
    )


def _describe_notice(notice: Notice) -> str:
    if notice.kind == "rebalance":
        return f"{notice.node} may be interrupted soon"
    if notice.kind == "leave":
        return f"{notice.node} was asked to leave"
    left = "" if notice.deadline is None else f" in {notice.deadline - notice.seen_at:.0f} s"
    return f"{notice.node} will be taken{left} (from its metadata service)"


def _describe_exit(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"ended by signal {-code}"
