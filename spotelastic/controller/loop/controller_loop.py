"""Runs the controller of one control node: it stands by, and leads while it is elected."""

import contextlib
import logging
import signal
import threading
from collections.abc import Callable
from dataclasses import replace

from spotelastic_checkpoints.threads import minded

from spotelastic.clock import unbroken
from spotelastic.cloud.port import Cloud
from spotelastic.controller.effects import inbox
from spotelastic.controller.effects.executor import ControllerExecutor
from spotelastic.controller.effects.inbox import Inbox
from spotelastic.controller.effects.price_cache import PriceCache
from spotelastic.controller.effects.publisher import Publisher
from spotelastic.controller.etcd.etcd_leader import EtcdLeader
from spotelastic.controller.etcd.etcd_mirror import Mirror
from spotelastic.controller.etcd.snapshots import Snapshots
from spotelastic.controller.loop.leader_calls import Collaborators, LeaderCalls
from spotelastic.controller.loop.leader_loop import LeaderLoop
from spotelastic.controller.loop.leader_state import LeaderState
from spotelastic.controller.model.config import ControllerConfig
from spotelastic.errors import LeaseLost, Unavailable
from spotelastic.metrics import controller as controller_metrics
from spotelastic.metrics.catalogue import Sample
from spotelastic.metrics.job import PublishedFacts
from spotelastic.metrics.scrape_server import MetricsServer
from spotelastic.notifications.notifier import Notifier
from spotelastic.store import etcd_access
from spotelastic.store.election import Leadership, campaign
from spotelastic.store.etcd import EtcdStore
from spotelastic.store.keys import Keys
from spotelastic.store.port import Store
from spotelastic.store.session import Session

logger = logging.getLogger(__name__)

LEASE = 2.0
"""Seconds without a sign of life after which another controller leads."""
HELPERS = ("session", "watch", "inbox", "publisher", "snapshots")
"""Beginnings of the names of threads without which it would hear of nothing, or tell nothing."""
SENT_WITHIN = 10.0
"""Seconds that a controller which ends gives to notifications: of the end of its job, above all."""
RETRY = 0.5
"""Seconds until the next try to reach etcd."""


class Controller:
    """One control node's controller.

    It runs on the thread that calls `run` until `stop`, which any thread may call.
    """

    def __init__(self, config: ControllerConfig, cloud: Cloud) -> None:
        self._config = config
        self._cloud = replace(cloud, prices=PriceCache(cloud.prices, logger.warning))
        self._keys = Keys(config.spec.run)
        self._store: Store = EtcdStore(config.spec.etcd, tls=config.tls)
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self.failed = False
        self._mirror = Mirror(self._keys, self._wake.set)
        self._over = threading.Event()
        """Set when a term must end."""
        self._notifier = Notifier(self._cloud.receivers, changed=self._wake.set)
        self._published: PublishedFacts | None = None
        """What was published last; None while this controller does not lead."""

    def stop(self) -> None:
        self._stopping.set()
        self._over.set()
        self._wake.set()

    def fail(self, thread: str, error: str) -> None:
        """End the controller because a thread that it needs has ended.

        Another controller leads, and this one is started again.
        """
        logger.error(f"the thread “{thread}” of this controller ended, and it ends: {error}")
        self.failed = True
        self.stop()

    def samples(self) -> list[tuple[str, list[Sample]]]:
        """Return what this controller knows, as samples. Any thread may ask."""
        known = controller_metrics.samples(self._cloud.calls(), self._published)
        return [(self._config.spec.cluster, list(known))]

    def run(self) -> None:
        session = self._open_session()
        if session is None:
            return
        watch = self._store.watch(self._keys.root, self._mirror)
        try:
            while not self._stopping.is_set():
                self._wake.wait(None if session.alive else RETRY)
                self._wake.clear()
                try:
                    self._stand_by(session)
                except Unavailable as error:
                    logger.warning(str(error))
                    self._stopping.wait(RETRY)
                    self._wake.set()
        finally:
            watch.close()
            session.close()
            self._store.close()
            self._notifier.finish(SENT_WITHIN)

    def _open_session(self) -> Session | None:
        """Wait until etcd answers; returns None if stopped before."""
        while not self._stopping.is_set():
            try:
                session = Session(self._store, LEASE, self._on_lost)
                self._announce(session)
                return session
            except Unavailable as error:
                logger.warning(str(error))
                self._stopping.wait(RETRY)
        return None

    def _announce(self, session: Session) -> None:
        """Register this controller, and see to etcd's roles: this may be another etcd."""
        if self._config.tls is not None:
            etcd_access.restrict(self._config.spec.etcd, self._config.tls, self._keys)
        key = self._keys.controller(self._config.instance)
        self._store.put(key, self._config.address.encode(), session.lease)

    def _on_lost(self, reason: str) -> None:
        logger.warning(reason)
        self._over.set()
        self._wake.set()

    def _stand_by(self, session: Session) -> None:
        """Check once, as a controller that does not lead, whether no other one does."""
        if not session.alive:
            session.renew()
            self._announce(session)
        if self._mirror.leader not in ("", self._config.instance):
            return
        self._over.clear()
        if not session.alive or self._stopping.is_set():
            return  # lost, or told to stop, just now
        name = self._config.instance.encode()
        leadership = campaign(self._store, self._keys.leader, name, session.lease)
        if leadership is None:
            return
        logger.info("leads")
        self._shown(PublishedFacts(self._config.spec.cluster))
        loop = lead_with(
            self._config,
            self._cloud,
            self._store,
            self._mirror,
            leadership,
            self._wake,
            lambda: session.holds,
            self._shown,
            self._notifier,
        )
        try:
            loop.lead(self._over)
            if session.alive:
                loop.finish()
        except LeaseLost as error:
            logger.warning(str(error))
        finally:
            loop.close()
            self._published = None
        if session.alive:
            leadership.resign()

    def _shown(self, facts: PublishedFacts) -> None:
        self._published = facts


def lead_with(
    config: ControllerConfig,
    cloud: Cloud,
    store: Store,
    mirror: Mirror,
    leadership: Leadership,
    wake: threading.Event,
    alive: Callable[[], bool],
    shows: Callable[[PublishedFacts], None] = lambda _facts: None,
    notifier: Notifier | None = None,
) -> LeaderLoop:
    """Return the loop of a leader in this cloud.

    `alive` tells whether the leadership's lease is still held; `shows` is given what is published.
    """
    spec, pace = config.spec, config.pace
    soon = config.policy.command_lifetime / 2  # or commands would be void
    leads = EtcdLeader(spec.etcd, spec.etcd_members, config.tls)
    collaborators = Collaborators(
        executor=ControllerExecutor(cloud, store, leadership, spec.run, alive),
        publisher=Publisher(cloud.objects, leads, alive, shows=shows),
        events=Inbox(cloud.events, inbox.message, wake.set, pace=pace),
        commands=Inbox(cloud.commands, inbox.order, wake.set, pace=pace, retry_at_most=soon),
        snapshots=Snapshots(cloud.objects, spec.etcd, config.tls, pace.snapshots),
        notifier=notifier or Notifier(cloud.receivers),
    )
    state = LeaderState.first(config, cloud.provider.names, unbroken())
    calls = LeaderCalls(config, cloud, mirror, collaborators)
    return LeaderLoop(state, calls, collaborators, wake, pace)


def run(config: ControllerConfig, cloud: Cloud) -> int:
    """Run a controller until SIGTERM, or until one of its threads has ended by an error."""
    controller = Controller(config, cloud)
    signal.signal(signal.SIGTERM, lambda *_: controller.stop())
    with minded(HELPERS, controller.fail), _metrics(config, controller):
        controller.run()
    return 1 if controller.failed else 0


def _metrics(
    config: ControllerConfig, controller: Controller
) -> contextlib.AbstractContextManager[object]:
    port = config.spec.metrics_port
    if not port:
        return contextlib.nullcontext()
    return MetricsServer(config.address, port, controller.samples)
