"""Takes part in rounds on behalf of a program that starts its workers itself, such as torchrun.

Membership, the holder's decisions and rounds are the same as for our own agent. They run in a
thread beside the program (`torch_plugin.py`), which only asks now and then. Each turn of the thread
compares what etcd shows with what this node has written. What a node does in a round is the agent's
(`duties/`), but simpler: there is no daemon, so that no snapshot, commit or claim is acknowledged,
and workers publish no steps, so that each proposal is refused. Must never happen:

- the program learns of a round that has not started, or of the same one twice;
- this node says ready while the program's workers of another round may live: it says so only while
  the program waits in `join`;
- leaving ends the job: only `end` writes its state.
"""

import logging
import math
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace

from spotelastic_checkpoints.threads import minded

from spotelastic.clock import steady, unbroken
from spotelastic.errors import EnvironmentFailure, LeaseLost, Unavailable, UsageError
from spotelastic.model.ids import new_id
from spotelastic.model.interruption_kind import InterruptionKind
from spotelastic.model.job import ENDED, Failure, Finished, Job, Settings
from spotelastic.model.node import Node
from spotelastic.model.notice import Drain, Notice
from spotelastic.model.progress import Event
from spotelastic.model.round import Round
from spotelastic.rendezvous import membership
from spotelastic.rendezvous.duties import answers, holding
from spotelastic.rendezvous.duties.holding import HolderStatus
from spotelastic.rendezvous.view import RunState, fold, forget_nodes
from spotelastic.store.codec import encode
from spotelastic.store.election import Leadership, campaign
from spotelastic.store.keys import Keys
from spotelastic.store.port import Store, Watch, WatchItem
from spotelastic.store.session import Session

logger = logging.getLogger(__name__)

RETRY = 0.2
"""Seconds until the next attempt after etcd did not answer, or another node won the election."""
HELPERS = ("session", "watch")
"""Beginnings of the names of threads without which the program would wait for ever."""
_JOIN = 10.0


class Participant:
    """Takes part in rounds from its creation until `leave`.

    The program calls `join`, `report` and `finish`. `open_store` starts a round's store on this
    node, already listening, and returns its host:port.
    """

    def __init__(
        self,
        store: Store,
        run: str,
        node: Node,
        settings: Settings,
        open_store: Callable[[str], str],
        clock: Callable[[], float] = steady,
    ) -> None:
        self._store = store
        self._keys = Keys(run)
        self._node = node
        self._settings = settings
        self._open_store = open_store
        self._clock = clock
        self._changed = threading.Condition()
        # Shared, under `_changed`:
        self._news = 0
        self._seen = RunState()
        self._nodes_seen = False
        self._blind = ""
        """What it could not read since it last answered a proposal; empty: nothing."""
        self._session_lost = False
        self._joining = False
        self._left = False
        self._failure: Failure | None = None
        self._finished = ""
        self._error: Exception | None = None
        # The thread's own:
        self._registered = False
        self._leadership: Leadership | None = None
        self._lead_after, self._lead_at = 0, 0.0
        self._acknowledged = ("", "")
        self._address = ("", "")
        self._vote = ""
        self._helpers = ExitStack()
        self._helpers.enter_context(minded(HELPERS, self._fail))
        self._session = Session(store, settings.lease, self._lost)
        self._watches: dict[str, Watch] = {}
        self._watch(self._keys.all)
        self._thread = threading.Thread(target=self._run, name="participant", daemon=True)
        self._thread.start()

    # -- for the program ----------------------------------------------------------------------

    @property
    def node(self) -> str:
        return self._node.id

    @property
    def job(self) -> Job | None:
        """The job's state once it has ended."""
        job = self._seen.job
        return job if job is not None and job.state in ENDED else None

    def is_over(self, incarnation: str) -> bool:
        """Whether another round is proposed or has started, or the job has failed. Never waits."""
        job, round_ = self.job, self._seen.round
        if job is not None:
            return job.state != "succeeded"
        return round_ is not None and round_.incarnation != incarnation

    def join(self, after: str, deadline: float) -> Round | None:
        """The next round with this node, once it has started; None when the job has ended.

        `after` is the round that the program comes from, whose workers have ended. The deadline (of
        the steady clock) moves along while a round of the most nodes trains without this one: a
        spare waits for as long as it takes. Raises `Unavailable` at the deadline, `UsageError`
        when this node is refused.
        """

        def ready() -> bool:
            return self._error is not None or self.job is not None or self._mine(after) is not None

        with self._changed:
            self._joining = True
            self._stir()
            try:
                came = self._wait(ready, deadline)
            finally:
                self._joining = False
            if self._error is not None:
                raise self._error
            if not came:
                raise Unavailable(f"no round of run {self._keys.run} formed in time")
            return None if self.job is not None else self._mine(after)

    def _wait(self, ready: Callable[[], bool], deadline: float) -> bool:
        """Waits until ready (True) or until the deadline (False)."""
        within, spare = deadline - self._clock(), False
        while not ready():
            was, spare = spare, self._is_spare()
            now = self._clock()
            if was or spare:  # was one until now
                deadline = now + within
            if now >= deadline:
                return False
            self._changed.wait(min(deadline - now, threading.TIMEOUT_MAX))
        return True

    def _is_spare(self) -> bool:
        round_, settings = self._seen.round, self._seen.settings or self._settings
        return (
            self._seen.healthy
            and round_ is not None
            and round_.phase == "started"
            and round_.member(self._node.id) is None
            and len(round_.members) >= settings.max_nodes
        )

    def report(self, failure: Failure) -> None:
        """Reports a failure, so that the holder replaces its round. Returns at once."""
        with self._changed:
            self._failure = failure
            self._stir()

    def finish(self, incarnation: str) -> None:
        """Reports that all workers of this node have succeeded in this round."""
        with self._changed:
            self._finished = incarnation
            self._stir()

    def wait_for_end(self, timeout: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self.job is not None, timeout)

    def end(self, job: Job) -> None:
        """Ends the job for all nodes, unless it has ended."""
        with suppress(Unavailable):
            if membership.create(self._store, self._keys.job, job):
                event = Event(job.at, "job", f"{job.state}: {job.reason}", self._node.id)
                membership.record(self._store, self._keys, event)

    def leave(self) -> None:
        """Leaves the run, which goes on without this node at once. May be called twice."""
        with self._changed:
            if self._left:
                return
            self._left = True
            self._stir()
        self._thread.join(_JOIN)
        with suppress(Unavailable):
            if self.job is None and not self._finished and self._registered:
                notice = Notice(
                    InterruptionKind.LEAVE, self._node.id, "signal", unbroken(), unbroken()
                )
                membership.write_drain(self._store, self._keys, Drain(notice.node, notice))
        self._session.close(revoke=True)
        for watch in self._watches.values():
            watch.close()
        self._store.close()
        self._helpers.close()

    def _mine(self, after: str) -> Round | None:
        round_ = self._seen.round
        if round_ is None or round_.phase != "started" or round_.incarnation == after:
            return None
        return round_ if answers.place(self._node, round_) is not None else None

    # -- the thread ---------------------------------------------------------------------------

    def _fail(self, thread: str, error: str) -> None:
        """Has the program fail, because a thread has ended that tells it of rounds."""
        with self._changed:
            self._error = EnvironmentFailure(f"the thread “{thread}” of this node ended: {error}")
            self._stir()

    def _run(self) -> None:
        try:
            while not self._left:
                news = self._news
                wait = self._turn(self._seen, unbroken()) - unbroken()
                with self._changed:
                    if self._news == news and wait > 0:
                        self._changed.wait(min(wait, threading.TIMEOUT_MAX))
        except Exception as error:
            with self._changed:
                self._error = error
                self._stir()

    def _turn(self, seen: RunState, now: float) -> float:
        """Writes and decides what is due. Returns when to look again if nothing happens."""
        if seen.job is not None and seen.job.state in ENDED:
            return math.inf
        try:
            self._belong(seen)
            wake_at = self._hold(seen, now)
            self._take_part(seen)
            return wake_at
        except (Unavailable, LeaseLost):
            return now + RETRY

    def _belong(self, seen: RunState) -> None:
        if self._session_lost:
            self._session_lost = False
            self._registered, self._leadership = False, None
            self._acknowledged, self._vote = ("", ""), ""
            watch = self._watches.pop(self._keys.nodes, None)
            if watch is not None:
                watch.close()
            with self._changed:
                self._nodes_seen = False
                self._seen = forget_nodes(self._seen)
        missed = answers.missed(self._node, seen.round)
        if missed and self._blind:  # it would come and go with every round
            raise UsageError(
                f"node {self._node.id} cannot read what other nodes have written ({self._blind}): "
                "install the same version of spotelastic on all nodes"
            )
        if (self._registered and not missed) or (missed and self._finished):
            return
        if not self._session.alive:
            self._session.renew()
        if missed:
            self._node = replace(self._node, incarnation=new_id())
        refused = membership.join(
            self._store, self._keys, self._node, self._settings, self._session.lease, seen
        )
        if refused is not None:
            raise UsageError(refused.reason)
        self._registered = True

    def _hold(self, seen: RunState, now: float) -> float:
        """Decides about rounds while this node holds the election key."""
        if not self._registered:
            return math.inf
        leads = self._leadership is not None
        status = HolderStatus(
            self._node.id, leads, self._nodes_seen, self._lead_after, self._lead_at
        )
        duty = holding.duty(status, seen, now, new_id)
        if duty.campaign:
            lease, name = self._session.lease, self._node.id.encode()
            self._leadership = campaign(self._store, self._keys.holder, name, lease)
            if self._leadership is None:
                return now + RETRY
            self._watch(self._keys.nodes)
            return now
        if self._leadership is None or not duty.actions:
            return math.inf if duty.wake_at is None else duty.wake_at
        held = self._leadership.compare
        outcome = membership.perform(self._store, self._keys, seen, duty.actions, held, now)
        self._lead_after, self._lead_at = holding.written(outcome, seen, now)
        return self._lead_at

    def _take_part(self, seen: RunState) -> None:
        if not self._registered or seen.round is None:
            return
        round_ = seen.round
        member = answers.place(self._node, round_)
        if member is None:
            return
        if round_.phase == "proposed" and not self._finished:
            # A node that has finished stays silent: the others decide again without it.
            self._get_ready(round_, member.slot)
        elif round_.phase == "started":
            self._tell(seen, round_)

    def _get_ready(self, round_: Round, slot: int) -> None:
        incarnation = round_.incarnation
        phase = answers.phase_due(self._acknowledged, round_, can_start=self._joining)
        if phase is None:
            return
        ack = answers.seen(self._node, round_)
        if phase == "ready":
            if slot == 0 and self._address[0] != incarnation:
                self._address = (incarnation, self._open_store(incarnation))
            address = self._address[1] if self._address[0] == incarnation else ""
            ack = answers.ready(self._node, round_, store=address)
        self._store.put(self._keys.ack(ack.node), encode(ack), self._session.lease)
        self._acknowledged = (incarnation, phase)
        self._blind = ""

    def _tell(self, seen: RunState, round_: Round) -> None:
        """Tells the holder what it must know of a round that has started."""
        node, failure = self._node.id, self._failure
        if self._finished == round_.incarnation:
            finished = Finished(node, self._finished, unbroken())
            key = self._keys.finished(self._finished, node)
            membership.create(self._store, key, finished)
            return
        if failure is not None:
            if failure.round == round_.incarnation:
                self._store.put(self._keys.failure(node), encode(failure))
            self._failure = None
        asked = seen.proposal
        if asked is not None and asked.round == round_.incarnation and asked.id != self._vote:
            # These workers publish no steps: a planned change need not wait for them.
            vote = answers.refusal(node, asked, plain=True)
            self._store.put(self._keys.vote(node), encode(vote), self._session.lease)
            self._vote = asked.id

    # -- what wakes it ------------------------------------------------------------------------

    def _stir(self) -> None:
        """Wakes the thread: something has changed. Call it under `_changed`."""
        self._news += 1
        self._changed.notify_all()

    def _watch(self, prefix: str) -> None:
        def deliver(items: Sequence[WatchItem]) -> None:
            with self._changed:
                for item in items:  # one by one: what came between counts, too
                    self._seen = fold(self._seen, (item,), self._keys, unbroken(), prefix)
                    self._blind = self._seen.blind or self._blind
                self._nodes_seen = self._nodes_seen or prefix == self._keys.nodes
                self._stir()

        self._watches[prefix] = self._store.watch(prefix, deliver)

    def _lost(self, reason: str) -> None:
        logger.warning(reason)
        with self._changed:
            self._session_lost = True
            self._stir()
