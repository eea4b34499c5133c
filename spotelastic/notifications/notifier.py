"""Sends notifications on threads of its own, one for each receiver.

It holds up nothing: a receiver that hangs, refuses or is gone costs its own thread alone. What was
refused, or reached nobody, is tried again with growing pauses, for ten minutes. The status tells.
"""

import logging
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from spotelastic_checkpoints.backoff import Backoff

from spotelastic.clock import Clock, steady
from spotelastic.errors import told
from spotelastic.notifications.notification import Notification, Receiver, SendOutcome

logger = logging.getLogger(__name__)

FIRST_PAUSE, LONGEST_PAUSE = 2.0, 120.0
TRIED_FOR = 600.0
"""Seconds for which a notification is tried again."""
SHOWN = 4
"""Most lines about what could not be delivered."""

FindReceivers = Callable[[Mapping[str, int]], Sequence[Receiver]]
"""Returns the receivers of these names; the numbers tell whether one has changed."""


class Notifier:
    """Sends what it is given, in order, to each receiver. `offer` never waits."""

    def __init__(
        self,
        find: FindReceivers,
        *,
        changed: Callable[[], None] = lambda: None,
        clock: Clock = steady,
        first_pause: float = FIRST_PAUSE,
        tried_for: float = TRIED_FOR,
    ) -> None:
        """`find` may ask a service, and raise; it is called on a thread.

        `changed` is called, on a thread, when `undelivered` has.
        """
        self._find = find
        self._changed = changed
        self._clock = clock
        self._first_pause = first_pause
        self._tried_for = tried_for
        self._over = threading.Event()
        self._busy = threading.Condition()
        self._pending = 0
        self._undelivered: dict[str, str] = {}
        self._offers: queue.SimpleQueue[tuple[Mapping[str, int], Notification] | None]
        self._offers = queue.SimpleQueue()
        self._lines: dict[str, queue.SimpleQueue[tuple[Receiver, Notification] | None]] = {}
        self._thread: threading.Thread | None = None

    @property
    def undelivered(self) -> tuple[str, ...]:
        """What could not be delivered last, one line for each receiver."""
        with self._busy:
            return tuple(self._undelivered.values())[-SHOWN:]

    def offer(self, names: Mapping[str, int], notifications: Sequence[Notification]) -> None:
        """Send these to the receivers of these names."""
        for each in notifications:
            self._count(1)
            self._offers.put((dict(names), each))
        if notifications and self._thread is None:
            self._thread = threading.Thread(target=self._run, name="notifier", daemon=True)
            self._thread.start()

    def finish(self, timeout: float) -> None:
        """Wait until all is sent, for at most so long, and stop."""
        with self._busy:
            self._busy.wait_for(lambda: not self._pending, timeout=timeout)
        self._over.set()
        self._offers.put(None)

    def _count(self, change: int) -> None:
        with self._busy:
            self._pending += change
            self._busy.notify_all()

    # -- the threads -----------------------------------------------------------------------------

    def _run(self) -> None:
        """Find the receivers, and hand each notification to the thread of each."""
        receivers: Sequence[Receiver] = ()
        known: Mapping[str, int] = {}
        while (offer := self._offers.get()) is not None:
            names, notification = offer
            if names != known:
                found = self._found(names)
                receivers, known = (found, names) if found is not None else ((), {})
            for receiver in receivers:
                self._count(1)
                self._line(receiver.name).put((receiver, notification))
            self._count(-1)
        for line in self._lines.values():
            line.put(None)

    def _found(self, names: Mapping[str, int]) -> Sequence[Receiver] | None:
        """Return the receivers; None if nobody can tell."""
        found: list[Sequence[Receiver]] = []

        def look() -> SendOutcome:
            try:
                found.append(self._find(names))
            except Exception as error:
                return SendOutcome(told(error))
            return SendOutcome()

        self._try("the receivers of --notify", look, "nothing could be sent")
        return found[0] if found else None

    def _line(self, name: str) -> "queue.SimpleQueue[tuple[Receiver, Notification] | None]":
        line = self._lines.get(name)
        if line is None:
            line = self._lines[name] = queue.SimpleQueue()
            threading.Thread(
                target=self._send_all, args=(line,), name="receiver", daemon=True
            ).start()
        return line

    def _send_all(self, line: "queue.SimpleQueue[tuple[Receiver, Notification] | None]") -> None:
        while (item := line.get()) is not None:
            receiver, notification = item
            what = f"“{notification.title}” was not delivered"
            self._try(f"--notify {receiver.name}", partial(_sent, receiver, notification), what)
            self._count(-1)

    def _try(self, who: str, attempt: Callable[[], SendOutcome], what: str) -> None:
        """Try until it succeeds, the time for it is over, or there is no more time at all."""
        until = self._clock() + self._tried_for
        backoff = Backoff(self._first_pause, LONGEST_PAUSE)
        while (outcome := attempt()).why:
            self._note(who, f"{who}: {what}: {outcome.why}")
            backoff = backoff.failed()
            if (
                outcome.unsure
                or self._clock() + backoff.bound > until
                or self._over.wait(backoff.bound)
            ):
                return
        self._note(who, "")

    def _note(self, who: str, line: str) -> None:
        with self._busy:
            if self._undelivered.get(who, "") == line:
                return
            if line:
                self._undelivered[who] = line
            else:
                del self._undelivered[who]
        if line:
            logger.warning(line)
        self._changed()


def _sent(receiver: Receiver, notification: Notification) -> SendOutcome:
    try:
        return receiver.send(notification)
    except Exception as error:
        return SendOutcome(told(error))
