"""Writes a node's archive to the cluster's bucket: on request, and when its agent ends, unless the
job has succeeded.

It works on threads of its own, also while the agent's main thread hangs. A node outside of a
cluster has no bucket: its event log stays in its log folder.
"""

import logging
import threading
from collections.abc import Callable

from spotelastic.agent.config import AgentConfig
from spotelastic.agent.event_log.log import EventLog, earlier, was_killed
from spotelastic.agent.watches import StoreChanged
from spotelastic.errors import told
from spotelastic.model.requests.dump import LAST, DumpRequest, object_name
from spotelastic.store.codec import readable
from spotelastic.store.keys import Keys
from spotelastic.store.port import Change, Reset, StoredValue, WatchItem

logger = logging.getLogger(__name__)

LAST_WITHIN = 10.0
"""Seconds that the end of an agent waits for its last archive."""


class Dumper:
    """Looks at what etcd delivers for requests, and answers them."""

    def __init__(self, config: AgentConfig, log: EventLog) -> None:
        self._config, self._log = config, log
        self._keys = Keys(config.run)
        self._known: str | None = None
        """Id of the last request; None: etcd has not been read yet. One from before the start of
        this agent is not answered: nobody waits for it any more."""

    def watching(self, post: Callable[[StoreChanged], None]) -> Callable[[StoreChanged], None]:
        """Return what passes on all that etcd delivers, after a look for a request."""

        def look(changed: StoreChanged) -> None:
            for item in changed.items if changed.prefix == self._keys.all else ():
                self._look(item)
            post(changed)

        return look

    def _look(self, item: WatchItem) -> None:
        match item:
            case Change(key, StoredValue() as value) if key == self._keys.dump:
                self._asked(readable(value.data, DumpRequest), is_new=True)
            case Reset(values):
                found = next((each.data for each in values if each.key == self._keys.dump), b"")
                self._asked(readable(found, DumpRequest), is_new=self._known is not None)
                self._known = self._known or ""

    def _asked(self, request: DumpRequest | None, *, is_new: bool) -> None:
        if request is None or request.id == self._known:
            return
        self._known = request.id
        if is_new and request.node in ("", self._config.node):
            self._start(request.id, "it was asked for")

    # -- without being asked ----------------------------------------------------------------------

    def __enter__(self) -> "Dumper":
        if was_killed(earlier(self._log.path)):
            self._start(LAST, "the agent before this one was killed")
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        job = self._log.seen.job
        if kind is None and job is not None and job.state == "succeeded":
            return
        why = "the agent has ended" if kind is None else f"the agent ended by {kind.__name__}"
        thread = self._start(LAST, why)
        if thread is not None:
            thread.join(LAST_WITHIN)

    def _start(self, request: str, why: str) -> threading.Thread | None:
        """Packs and writes the archive beside whatever else happens."""
        put = self._config.put
        if put is None:
            return None
        name = object_name(request, self._config.node)

        def answer() -> None:
            # Not before it is needed: a node's agent is small.
            from spotelastic.agent.event_log.node_archive import pack

            try:
                put(name, pack(self._config, self._log, why))
            except Exception as error:  # the agent has more important things to do
                logger.warning(f"{name} could not be written: {told(error)}")

        thread = threading.Thread(target=answer, name="dump", daemon=True)
        thread.start()
        return thread
