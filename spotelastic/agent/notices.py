"""Polls a node's source of interruption notices, once a second, on a thread of its own.

Trouble with the source only lengthens the pause between two polls: the metadata service answers
503, hangs, or answers what nobody has foreseen. The thread never ends by it, because a node that no
longer hears of its end would be taken away while it trains. Each trouble is told once.
"""

import logging
import threading
from collections.abc import Callable

from spotelastic_checkpoints.backoff import Backoff

from spotelastic.cloud.port import NoticeSource
from spotelastic.errors import told
from spotelastic.model.notice import Notice

logger = logging.getLogger(__name__)

POLL = 1.0
BACK_OFF = 5.0


class NoticePoller:
    """Calls `sink` once for each notice of `source`, from its own thread."""

    def __init__(
        self,
        source: NoticeSource,
        sink: Callable[[Notice], None],
        poll: float = POLL,
        back_off: float = BACK_OFF,
    ) -> None:
        """`poll`: seconds between two polls; `back_off`: most seconds while polls fail."""
        self._source = source
        self._sink = sink
        self._every = poll
        self._back_off = Backoff(2 * poll, back_off)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="notices", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join(timeout=5)

    def _run(self) -> None:
        backoff, said = self._back_off, ""
        while not self._stop.wait(backoff.bound or self._every):
            try:
                found = self._source.poll()
            except Exception as error:
                backoff, why = backoff.failed(), told(error)
                if why != said:
                    logger.warning(f"interruption notices for this node cannot be read: {why}")
                said = why
                continue
            backoff, said = backoff.succeeded(), ""
            for notice in found:
                self._sink(notice)
