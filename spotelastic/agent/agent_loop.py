"""The main loop of an agent: it takes in events, decides, acts, and waits for the next event.

One thread (the main one) decides and acts. Watches, the session, the zygote, the daemon and the
notices deliver their events into one queue.
"""

import contextlib
import logging
import math
import os
import queue
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any

from spotelastic_checkpoints import log_records
from spotelastic_checkpoints.threads import minded

from spotelastic.agent.config import AgentConfig
from spotelastic.agent.core import AgentCore
from spotelastic.agent.ending import AgentEnding
from spotelastic.agent.executor import AgentExecutor
from spotelastic.agent.node_processes import NodeProcesses
from spotelastic.agent.notices import NoticePoller
from spotelastic.agent.peer_traffic import PeerTraffic
from spotelastic.agent.state import events
from spotelastic.agent.state.values import NodeState
from spotelastic.agent.watches import StoreChanged, Watches
from spotelastic.agent.workers.pool import Warm
from spotelastic.clock import steady, unbroken
from spotelastic.errors import EnvironmentFailure, Unavailable
from spotelastic.linux import handled, name_process
from spotelastic.metrics import node as node_metrics
from spotelastic.metrics.catalogue import Sample
from spotelastic.metrics.node import NodeFacts
from spotelastic.metrics.scrape_server import MetricsServer
from spotelastic.model.job import ENDED, Failure, Job
from spotelastic.model.node import Fingerprint
from spotelastic.model.notice import Notice
from spotelastic.model.progress import Progress
from spotelastic.redaction import redactor
from spotelastic.store.etcd import EtcdStore
from spotelastic.store.port import Store
from spotelastic.store.session import Session

logger = logging.getLogger(__name__)

CONNECT_WITHIN = 10.0


HELPERS = (
    *("notices", "zygote", "claim", "flush", "watch", "session", "etcd", "daemon-events"),
    *("worker-output", "worker-control", "tenancy", "gpu-health", "kernel-log"),
)
"""Prefixes of the names of an agent's helper threads."""


@dataclass(frozen=True, slots=True)
class HelperEnded:
    """A helper thread was ended by an unforeseen error.

    Without it the agent would wait for ever.
    """

    name: str
    error: str


Happening = events.LocalEvent | Warm | StoreChanged | HelperEnded


def minding(sink: Callable[[HelperEnded], None]) -> contextlib.AbstractContextManager[None]:
    """Tells `sink` of each helper thread of an agent that is ended by an error in the block."""
    return minded(HELPERS, lambda name, error: sink(HelperEnded(name, error)))


def arrivals(
    arriving: queue.SimpleQueue[Happening], wait: float, gathers: float
) -> Iterator[Happening]:
    """Yield the next event, if it comes within `wait` seconds, and all that have arrived already.

    Further ones are awaited until `gathers` seconds after the first.
    """
    with contextlib.suppress(queue.Empty):
        yield arriving.get(timeout=None if wait == math.inf else wait)
        until = steady() + gathers
        while True:
            left = until - steady()
            yield arriving.get(timeout=left) if left > 0.0 else arriving.get_nowait()


@dataclass(frozen=True, slots=True)
class AgentResult:
    """How the run ended for this node."""

    code: int
    """0: the job succeeded; 1: it failed; 2: this machine cannot go on; 128 + n: by signal n."""
    job: Job | None
    """The job at the end, if it was known."""
    finished: str = ""
    """The round in which this node's workers have ended successfully."""


def run(config: AgentConfig) -> AgentResult:
    """Run this node until the job ends or the node leaves. Must be called on the main thread.

    Raises `UsageError` if this node does not match the run, and `EnvironmentFailure` if no etcd
    member answers.
    """
    name_process("se-agent")
    log_records.node(config.node)
    log_records.hide(redactor((*config.secrets, config.token)))
    for folder in (config.state, config.shm, config.logs or config.state):
        folder.mkdir(parents=True, exist_ok=True)
    store = EtcdStore(config.endpoints, timeout=5.0, tls=config.tls)
    try:
        return AgentLoop(config, store).serve()
    finally:
        store.close()


class AgentLoop:
    """One agent over a store: the queue of events, and what fills it."""

    def __init__(self, config: AgentConfig, store: Store) -> None:
        self._config = config
        self._store = store
        self._queue: queue.SimpleQueue[Happening] = queue.SimpleQueue()
        self._session = self._open_session()
        processes = NodeProcesses(config, self._queue.put)
        sent = PeerTraffic(config.node)
        executor = AgentExecutor(config, store, self._session, processes, sent=sent)
        self._keys = executor.keys
        checks = config.health.gpus or config.health.network
        self._executor = executor
        self._core = AgentCore(executor, stays=config.stays, checks=checks)
        self._ending = AgentEnding(self._core.close)
        self._claim_error = ""

    def serve(self) -> AgentResult:
        """Run until a decision says to exit."""
        signals = handled(self._config.signals, self._signalled)
        with signals, minding(self._queue.put), self._metrics():
            poller = watches = None
            try:
                if self._config.notices is not None:
                    poller = NoticePoller(self._config.notices, self._noticed)
                watches = Watches(self._store, self._keys, self._queue.put)
                code = self._loop(watches)
                finished = self._core.local.reports.finished
                return AgentResult(code, self._core.seen.job, finished)
            finally:
                if poller is not None:
                    poller.close()
                if watches is not None:
                    watches.close()
                self._ending.close()
                self._session.close()

    def samples(self) -> list[tuple[str, list[Sample]]]:
        """Return what is known of this node, as samples. Any thread may ask."""
        facts = node_facts(self._config, self._core.local, self._executor.published)
        return [(self._config.run, list(node_metrics.samples(facts)))]

    def _metrics(self) -> contextlib.AbstractContextManager[object]:
        where = self._config.metrics
        return contextlib.nullcontext() if where is None else MetricsServer(*where, self.samples)

    def _loop(self, watches: Watches) -> int:
        while True:
            decision, exit_ = self._core.turn(watches)
            seen = self._core.seen
            if exit_ is not None:
                if exit_.reason:
                    self._session.close()  # the others need not wait for this node
                self._say_goodbye(exit_.reason, seen.job)
                return exit_.code
            if (round_ := seen.round) is not None:
                log_records.entered(round_.number, round_.cause)
            wait = 0.0 if decision.actions else max(0.0, decision.wake_at - unbroken())
            gathers = self._core.gathers if wait else 0.0
            for event in arrivals(self._queue, wait, gathers):
                self._fold(event)

    def _fold(self, event: Happening) -> None:
        match event:
            case HelperEnded(name, error):
                raise EnvironmentFailure(f"the thread “{name}” of this node ended: {error}")
            case Warm(info):
                self._core.fold(self._warm(info))
                return
            case events.Claimed(error=error):
                if error and error != self._claim_error:  # once, however often it is tried again
                    logger.warning(f"nothing can be committed yet: {error}")
                self._claim_error = error
        self._core.fold(event)

    def _warm(self, info: Any) -> events.ZygoteWarm:
        for module, error in info["failed"].items():
            logger.warning(f"could not preload {module}: {error}; workers start without it")
        for module, file in info["shadowed"].items():
            logger.warning(
                f"{file} takes the place of a module {module} that torch imports, too: workers "
                "start as fresh processes, which takes seconds; rename it to have them forked"
            )
        if info["spoiled"]:
            logger.warning(
                f"--preload: {info['spoiled']}, which a fork does not survive: workers start as "
                "fresh processes, and import torch each time; leave it out to have them forked"
            )
        return events.ZygoteWarm(
            Fingerprint(
                python=info["python"],
                torch=info["torch"],
                cuda=info["cuda"],
                code=self._config.code,
                workers=self._config.settings.workers,
                launcher="spotelastic",
                kernels=info["kernels"] if self._config.settings.exact else "",
            )
        )

    def _open_session(self) -> Session:
        give_up = steady() + CONNECT_WITHIN
        while True:
            try:
                return Session(
                    self._store,
                    self._config.settings.lease,
                    lambda reason: self._queue.put(events.SessionLost(reason)),
                )
            except Unavailable as error:
                if steady() >= give_up:
                    members = ", ".join(self._config.endpoints)
                    raise EnvironmentFailure(f"no etcd member answers at {members}") from error

    def _noticed(self, notice: Notice) -> None:
        self._queue.put(events.Noticed(notice))

    def _signalled(self, sig: int, _frame: FrameType | None) -> None:
        if self._core.local.departure.leaving:  # asked twice: at once
            self._ending.at_once(128 + sig)
            return
        self._queue.put(events.Signalled(sig, self._config.killed_after))

    def _say_goodbye(self, reason: str, job: Job | None) -> None:
        if reason:
            logger.info(reason)
        if job is None:
            return
        local = self._core.local
        trains = local.workers is not None and local.workers.round != ""
        if job.state in ENDED and not local.agreement.end and not trains:
            logger.info(f"the job has {job.state}: {job.reason}; nothing is left for this node")
        if job.state != "failed":
            return
        logger.error(f"the job failed: {job.reason}")
        failure = job.failure
        if failure is not None:
            logger.error(f"first failure: rank {failure.rank} on {failure.node}, {failure.log}")
            if not self._has_shown(failure):
                logger.error(failure.traceback or failure.message)

    def _has_shown(self, failure: Failure) -> bool:
        """Whether a person has seen here what the worker wrote of its failure: an exception."""
        config = self._config
        if failure.node != config.node or failure.exit_code <= 0 or config.line is None:
            return False
        route = config.output.route(failure.rank, failure.local_rank, "stderr")
        try:
            return not config.in_cluster and route.shown and os.path.sameopenfile(1, 2)
        except OSError:  # one of them is closed
            return False


def node_facts(config: AgentConfig, local: NodeState, progress: Progress | None) -> NodeFacts:
    """Return what is known of the node. `progress` is what it published last."""
    workers = local.workers or (local.resting.workers if local.resting is not None else None)
    return NodeFacts(
        node=config.node,
        zone=config.zone,
        type=config.type,
        registered=local.membership.registered,
        workers=0 if workers is None else len(workers.alive),
        daemon=bool(local.store.daemon),
        notice=local.departure.notice,
        sick=local.health.fault is not None,
        progress=progress,
    )
