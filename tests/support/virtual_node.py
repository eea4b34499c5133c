"""Simulates a node in virtual time: the real decisions of its agent, with simulated effects."""

import contextlib
import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from spotelastic_checkpoints.types import Snapshot
from support.virtual_training import NETWORK, Training

from spotelastic.agent import actions as do
from spotelastic.agent.decide import BLIND, decide
from spotelastic.agent.observe import (
    Claimed,
    CommitSeen,
    Flushed,
    LocalEvent,
    NodeState,
    Noticed,
    RoundStore,
    SaveSealed,
    SessionLost,
    Signalled,
    StorageClaim,
    Workers,
    observe,
)
from spotelastic.agent.silence import Silence
from spotelastic.agent.watches import StoreChanged, Watches
from spotelastic.agent.workers.pool import Exited
from spotelastic.errors import LeaseLost, Unavailable
from spotelastic.model.agreement import Vote
from spotelastic.model.interruption_kind import InterruptionKind
from spotelastic.model.job import Failure, Finished
from spotelastic.model.node import Fingerprint, Node
from spotelastic.model.notice import Drain, Notice
from spotelastic.model.progress import Event, Progress
from spotelastic.model.round import Acknowledgement, Round, RoundEnd, SlotOffer
from spotelastic.rendezvous import membership
from spotelastic.rendezvous.view import RunState, fold
from spotelastic.store.codec import encode
from spotelastic.store.election import campaign
from spotelastic.store.memory import MemoryStore
from spotelastic.store.port import Change

if TYPE_CHECKING:
    from support.virtual import World

WARM = 3.0
FORK = 0.05


class SimNode:
    """One node: its agent's loop, with simulated effects."""

    def __init__(
        self,
        world: "World",
        name: str,
        zone: str,
        rank: int | None,
        clock: float,
        version: Callable[[MemoryStore], Any],
    ) -> None:
        self.world, self.name, self.zone, self.rank = world, name, zone, rank
        self._clock = clock
        self.client = version(world.store.client())
        self.alive = True
        self.lag = NETWORK
        """Seconds until its agent takes notice of anything."""
        self.message = "x"
        """Of its failures."""
        self.hangs = False
        """Its workers never end by themselves."""
        self.lease = 0
        self.local = NodeState()
        self.seen = RunState()
        self.slots: list[Snapshot] = []
        self.exit_code: int | None = None
        self._inbox: list[LocalEvent | StoreChanged] = []
        self._stirred = False

    @property
    def now(self) -> float:
        """As this node's own clock tells it."""
        return self.world.now + self._clock

    # -- the cloud's side -----------------------------------------------------------------------

    def start(self) -> None:
        self._watches = Watches(self.client, self.world.keys, self._delivered)
        self.stir()

    def kill(self) -> None:
        """The machine vanishes: nothing of it says goodbye."""
        self.alive = False
        self._watches.close()
        for training in self.world.trainings.values():
            training.leave(self.name)
        self.world.nodes.pop(self.name, None)

    def notice(self, seconds: float) -> None:
        now = self.now
        self.post(
            Noticed(
                Notice(
                    InterruptionKind.SPOT_INTERRUPTION, self.name, "imds", now, now, now + seconds
                )
            )
        )
        self.world.after(seconds, self.kill)

    def rebalance(self) -> None:
        """AWS recommends to replace it."""
        self.post(
            Noticed(Notice(InterruptionKind.REBALANCE, self.name, "imds", self.now, self.now))
        )

    def leave(self) -> None:
        """Asked to end, as by SIGTERM."""
        self.post(Signalled(15))

    def worker_exits(self, round_: str, code: int) -> None:
        training = self.world.trainings.get(round_)
        if training is not None and code != 0:
            training.leave(self.name)
        self.post(Exited(f"{round_}/0", code))

    def sealed(self, round_: Round, step: int, waiting: bool) -> None:
        member = round_.member(self.name)
        assert member is not None
        snapshot = Snapshot(
            round_.incarnation, step, "layout", (member.slot,), round_.world_size,
            whole=not self.world.sharded,
        )  # fmt: skip
        self.slots = [*self.slots, snapshot][-2:]
        self.post(SaveSealed(step, waiting))

    # -- the agent's loop ------------------------------------------------------------------------

    def _delivered(self, event: StoreChanged) -> None:
        self.world.delivered += sum(isinstance(item, Change) for item in event.items)
        self.post(event)

    def post(self, event: LocalEvent | StoreChanged) -> None:
        self._inbox.append(event)
        self.stir()

    def stir(self) -> None:
        if not self._stirred:
            self._stirred = True
            self.world.after(self.lag, self._turn)

    def _turn(self) -> None:
        self._stirred = False
        if not self.alive or self.exit_code is not None:
            return
        inbox, self._inbox = self._inbox, []
        for item in inbox:
            self._take(item)
        for _ in range(100):
            decision = decide(self.local, self.seen, self.now, self.world.new_id)
            for action in decision.actions:
                if isinstance(action, do.Exit):
                    self._exit(action.code)
                    return
                try:
                    self.local = self._do(action)
                except (Unavailable, LeaseLost):
                    self.local = replace(self.local, write_at=self.now + 0.2)
            holds = self.local.leadership is not None
            self.seen = self._watches.follow(self.seen, holds=holds)
            if not decision.actions:
                break
        else:
            raise AssertionError(f"{self.name} never comes to rest: {decision.actions}")
        if decision.wake_at < float("inf"):
            self.world.after(max(decision.wake_at - self.now, 0.01), self._turn)

    def _take(self, item: LocalEvent | StoreChanged) -> None:
        keys, now = self.world.keys, self.now
        if isinstance(item, StoreChanged):
            self.seen = fold(self.seen, item.items, keys, now, item.prefix)
            if item.prefix == keys.nodes:
                leads = self.local.leadership is not None
                self.local = replace(self.local, nodes_seen=leads)
        else:
            self.local = observe(self.local, item, now)

    def _exit(self, code: int) -> None:
        self.exit_code = code
        if self.world.nodes.get(self.name) is self and not self.world.done:
            del self.world.nodes[self.name]
        self._watches.close()
        with contextlib.suppress(Unavailable):
            self.client.revoke(self.lease)

    def _refresh(self, lease: int) -> None:
        if not self.alive or self.exit_code is not None or lease != self.lease:
            return
        try:
            left = self.client.refresh(lease)
        except Unavailable:
            left = self.world.settings.lease  # tried again, until the store says that it is gone
        if left <= 0:
            self.lease = 0
            self.post(SessionLost("expired"))
            return
        self.world.after(self.world.settings.lease / 3, lambda: self._refresh(lease))

    # -- effects ---------------------------------------------------------------------------------

    def _do(self, action: do.Action) -> NodeState:
        local, world, keys, now = self.local, self.world, self.world.keys, self.now
        match action:
            case do.StartZygote():
                world.after(WARM, self._warm)
                return replace(local, zygote=True)
            case do.StartDaemon():
                return replace(local, daemon=f"{self.name}:1", hurried=math.inf)
            case do.Register(anew):
                return self._register(anew)
            case do.Campaign():
                leadership = campaign(self.client, keys.holder, self.name.encode(), self.lease)
                if leadership is None:
                    return replace(local, write_at=now + 0.05)
                return replace(local, leadership=leadership, nodes_seen=False, lead_after=0)
            case do.Lead(actions):
                assert local.leadership is not None
                outcome = membership.perform(
                    self.client, keys, self.seen, actions, local.leadership.compare, now
                )
                after = outcome.revision if outcome.succeeded else self.seen.revision + 1
                return replace(local, lead_after=after, lead_at=now + 0.5)
            case do.WriteDrain():
                assert local.notice is not None
                if local.notice.kind.traits.drains:
                    membership.write_drain(self.client, keys, Drain(self.name, local.notice))
                return replace(local, drained=True)
            case do.OfferSlots(round_):
                offer = SlotOffer(round_, local.daemon, tuple(self.slots))
                self.client.put(keys.snapshots(self.name), encode(offer), self.lease)
                return replace(local, offered=round_)
            case do.Say() | do.TellVersions():
                return self._say(action)
            case do.FlushUploads(round_):
                self.post(Flushed(round_))
                return replace(local, flushing=round_)
            case do.TellProgress():
                self.client.put(keys.progress(self.name), encode(self._progress()), self.lease)
                return replace(
                    local,
                    points=(),
                    told_at=now,
                    told_step=local.step,
                    step_time=self._progress().step_time,
                    told_commit=local.commit,
                )
        return self._do_round(action)

    def _say(self, action: do.Say | do.TellVersions) -> NodeState:
        if isinstance(action, do.TellVersions):
            event = Event(self.now, "version", f"{self.name} {action.line}", self.name)
            membership.record(self.client, self.world.keys, event)
        self.world.said.append((self.name, action.line))
        return replace(self.local, said=self.local.said | {action.topic})

    def _do_round(self, action: do.Action) -> NodeState:
        local, world, now = self.local, self.world, self.now
        match action:
            case do.KillWorkers():
                assert local.workers is not None
                for name in local.workers.alive:
                    world.trainings[local.workers.round].leave(self.name)
                    world.after(0.01, lambda name=name: self.post(Exited(name, -9)))
                return replace(local, workers=replace(local.workers, killed=True))
            case do.EndRound():
                assert local.workers is not None
                training = world.trainings[local.workers.round]
                end = RoundEnd(
                    training.round.incarnation, training.first_at, training.step, training.last_at
                )
                return replace(local, workers=None, vote=None, end=end)
            case do.UploadByDeadline(deadline):
                world.hurried[self.name] = deadline
                return replace(local, hurried=deadline)
            case do.OpenStore(round_):
                return replace(
                    local,
                    store=RoundStore(round_.incarnation, f"store/{round_.incarnation}", "s:1"),
                )
            case do.CloseStore():
                return replace(local, store=None)
            case do.ClaimStorage(round_):
                world.after(0.05, lambda: self._claim(round_.incarnation))
                return replace(local, claim=StorageClaim(round_.incarnation, now))
            case do.Acknowledge(round_, ready):
                return self._acknowledge(round_, ready)
            case do.StartWorkers(round_):
                training = world.trainings.setdefault(round_.incarnation, Training(world, round_))
                world.after(FORK, lambda: self._join(training))
                workers = Workers(
                    round_.incarnation, round_.number, 0, round_.epoch, now,
                    frozenset([f"{round_.incarnation}/0"]), resumed=round_.resume.step,
                )  # fmt: skip
                return replace(local, workers=workers, vote=None)
            case do.AdoptEpoch(round_):
                assert local.workers is not None
                world.trainings[round_.incarnation].round = round_
                return replace(local, workers=replace(local.workers, epoch=round_.epoch))
            case do.ReportFailure(round_):
                failure = Failure(
                    world.new_id(), self.name, round_.incarnation, 0, 0, now, 1, self.message
                )
                self.client.put(world.keys.failure(self.name), encode(failure))
                assert local.workers is not None
                return replace(local, workers=replace(local.workers, failed=True))
            case do.ReportFinished(round_):
                training = world.trainings[round_.incarnation]
                finished = Finished(self.name, round_.incarnation, now, training.step)
                self.client.put(
                    world.keys.finished(round_.incarnation, self.name), encode(finished)
                )
                return replace(local, finished=round_.incarnation, finished_at=now)
        return self._do_agreement(action)

    def _do_agreement(self, action: do.Action) -> NodeState:
        local = self.local
        assert local.workers is not None
        training = self.world.trainings[local.workers.round]
        vote = Vote(self.name, "", 0)
        step = training.published or local.workers.resumed
        match action:
            case do.SetSaveTarget(proposal):
                training.target[self.name] = proposal.target
                sure = step <= proposal.target - 2
                confirmed = proposal.target if sure else 0
                vote = replace(vote, aimed=proposal.target, confirmed=confirmed)
            case do.VoteSealed(proposal):
                target = proposal.target
                vote = replace(vote, aimed=target, confirmed=target, sealed=target)
            case do.Refuse(plain=plain):
                vote = replace(vote, refused=True, plain=plain)
            case do.ReleaseWorkers(proposal):
                if proposal.applied and proposal.schedule is not None:
                    training.schedules[self.name] = proposal.schedule
                training.target.pop(self.name, None)
                return replace(local, vote=None)
            case do.AnswerSteps():
                pass
            case do.Listen():  # nobody is silent here
                silence = Silence(self.now, since=self.now)
                return replace(local, workers=replace(local.workers, silence=silence))
            case _:
                raise AssertionError(action)
        vote = replace(vote, proposal=action.proposal.id, step=step, step_time=self.world.step_time)
        self.client.put(self.world.keys.vote(self.name), encode(vote), self.lease)
        return replace(local, vote=vote)

    def _progress(self) -> Progress:
        round_, notice = self.seen.round, self.local.notice
        training = self.world.trainings.get(round_.incarnation) if round_ is not None else None
        workers = self.local.workers
        mine = self.world.trainings.get(workers.round) if workers is not None else None
        return Progress(
            self.name,
            workers.number if workers is not None else 0,
            mine.step if mine is not None and mine.stepped else self.local.step,
            self.now,
            step_time=self.world.step_time if training is not None and training.stepped else 0.0,
            committed=self.local.commit.step if self.local.commit is not None else 0,
            epoch=self.local.commit.epoch if self.local.commit is not None else 0,
            stall=self.world.stall,
            commit_time=self.world.upload,
            whole=not self.world.sharded,
            at_risk=notice is not None and notice.kind is not InterruptionKind.LEAVE,
        )

    def _warm(self) -> None:
        self.local = replace(self.local, fingerprint=Fingerprint("3.11", "2.13"))
        self.stir()

    def _join(self, training: Training) -> None:
        workers = self.local.workers
        current = workers is not None and workers.round == training.round.incarnation
        if self.alive and current and not workers.killed:
            training.join(self)

    def _register(self, anew: bool) -> NodeState:
        local, keys = self.local, self.world.keys
        if self.lease == 0:
            self.lease = self.client.grant(self.world.settings.lease)
            lease = self.lease
            self.world.after(self.world.settings.lease / 3, lambda: self._refresh(lease))
        if local.node is not None and not anew:
            membership.renew(self.client, keys, local.node, self.lease, local.vote)
            return replace(local, registered=True, offered="")
        assert local.fingerprint is not None
        node = Node(
            self.name, self.world.new_id(), "10.0.0.1", self.zone, local.fingerprint, local.daemon,
            node_rank=self.rank,
        )  # fmt: skip
        refused = membership.join(
            self.client, keys, node, self.world.settings, self.lease, self.seen
        )
        if refused is not None:
            assert refused.passing, refused
            return replace(local, write_at=self.now + 0.2)
        return replace(local, node=node, registered=True, offered="")

    def _acknowledge(self, round_: Round, ready: bool) -> NodeState:
        local = self.local
        assert local.node is not None
        epoch = 0
        ack = Acknowledgement(self.name, local.node.incarnation, round_.incarnation, "seen")
        if ready:
            if local.claim is not None and local.claim.round == round_.incarnation:
                epoch = local.claim.epoch
            ack = replace(
                ack,
                phase="ready",
                daemon=local.daemon,
                snapshots=tuple(self.slots),
                commit=local.commit,
                store=local.store.address if local.store else "",
                epoch=epoch,
                end=local.end,
            )
        self.client.put(self.world.keys.ack(self.name), encode(ack), self.lease)
        told = (round_.incarnation, ack.phase, epoch)
        return replace(local, acknowledged=told, said=local.said - {BLIND})

    def _claim(self, round_: str) -> None:
        if not self.world.object_store:
            self.post(Claimed(round_, 0, None, "the object store is away"))
            return
        self.world.epoch += 1
        self.post(Claimed(round_, self.world.epoch, self.world.commit))
        if self.world.commit is not None:
            self.post(CommitSeen(self.world.commit, self.now))
