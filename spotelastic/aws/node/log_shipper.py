"""Sends log lines to CloudWatch Logs in batches, from a background thread.

Writers are never held up. Must never happen: what CloudWatch refuses for good keeps later lines
from being sent. It is told once, and dropped.
"""

import logging
import random
import threading
from collections import defaultdict, deque
from collections.abc import Sequence

from spotelastic_checkpoints.backoff import Backoff

from spotelastic.aws.base.clients import DENIED, Aws, Rejected, SignedOut, calling, passing
from spotelastic.aws.node.log_lines import Backlog, Line, batches, pieces
from spotelastic.clock import Clock, steady, wall
from spotelastic.errors import SpotelasticError, told
from spotelastic.model.counting import counted

logger = logging.getLogger(__name__)

EVERY = 0.5
"""Most seconds that a line waits for others."""
LONGEST_PAUSE = 15.0
"""Most seconds between two tries while CloudWatch takes nothing."""
UPDATE_EVERY = 10.0
"""Seconds between two updates of a line (a progress bar) that are sent."""
MISSING = "ResourceNotFoundException"
PASSES = frozenset({*DENIED, MISSING, "OperationAbortedException", "LimitExceededException"})
"""Refusals that have nothing to do with the lines: a role that is not known everywhere yet, a
stream that somebody has deleted."""


class LogShipper:
    """Sends lines to one log group. `write` is thread-safe."""

    def __init__(
        self, aws: Aws, group: str, clock: Clock = wall, longest_pause: float = LONGEST_PAUSE
    ) -> None:
        self._aws = aws
        self._group = group
        self._clock = clock
        self._longest_pause = longest_pause
        self._wake = threading.Condition()
        self._backlog = Backlog()
        self._streams: set[str] = set()
        self._told: set[str] = set()
        """What was told; it is not told again until lines are taken."""
        self._refused: set[str] = set()
        """Streams of which a line was refused for good, which is told once."""
        self._closed = False
        self._until = 0.0
        """Steady time until which a closed one tries."""
        self._updated: dict[str, float] = {}
        """When the last update was sent, by stream."""
        self._thread = threading.Thread(target=self._run, name="log-shipper", daemon=True)
        self._thread.start()

    def write(self, stream: str, text: str) -> None:
        """Queue a line. Updates of a progress bar are thinned out."""
        if text.endswith("\r"):  # an update of a progress bar: the next one replaces it
            now, due = self._clock(), self._updated.get(stream, -UPDATE_EVERY) + UPDATE_EVERY
            if now < due or not text.strip():
                return
            self._updated[stream], text = now, text[:-1]
        at = int(self._clock() * 1000)
        with self._wake:
            for piece in pieces(text):
                self._backlog.add(stream, (at, piece))
            self._wake.notify_all()

    def close(self, timeout: float = 5.0) -> None:
        """Send what is left, for at most `timeout` seconds."""
        with self._wake:
            self._closed, self._until = True, steady() + timeout
            self._wake.notify_all()
        self._thread.join(timeout)

    def _run(self) -> None:
        backoff = Backoff(EVERY, self._longest_pause, jitter=(0.7, 1.0))
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._backlog or self._closed)
                pause = max(EVERY, backoff.pause(random.uniform))
                self._wake.wait_for(lambda: self._closed, timeout=pause)
                taken, closed = self._backlog.take(), self._closed
            failed = self._send(taken)
            backoff = backoff.failed() if failed else backoff.succeeded()
            with self._wake:
                self._backlog.put_back(failed)
                if closed:
                    if not failed or steady() + EVERY > self._until:
                        return
                    self._wake.wait(EVERY)

    def _send(self, taken: Sequence[tuple[str, Line]]) -> list[tuple[str, Line]]:
        """Send the lines and return those that are to be sent again."""
        by_stream: dict[str, list[Line]] = defaultdict(list)
        for name, line in taken:
            by_stream[name].append(line)
        failed: list[tuple[str, Line]] = []
        for name, lines in by_stream.items():
            left = deque(batches(sorted(lines, key=lambda line: line[0])))
            try:
                self._create(name)
                self._put_all(name, left)
                self._told.clear()
            except SpotelasticError as error:
                if isinstance(error, Rejected) and error.code == MISSING:
                    self._streams.discard(name)
                self._tell(f"logs: {error}")
                failed += [(name, line) for batch in left for line in batch]
            except Exception as error:  # these lines cannot be sent; others may
                lost = f"{sum(map(len, left))} lines of {name} are not sent"
                logger.warning(f"logs: {told(error)}: {lost}", exc_info=True)
        return failed

    def _put_all(self, name: str, left: deque[list[Line]]) -> None:
        """Send batches, and remove each from `left`, whether it is taken or refused for good.

        Raises an error if the rest is to be sent again.
        """
        while left:
            try:
                self._put(name, left[0])
            except Rejected as error:
                if error.code in PASSES or isinstance(error, SignedOut):
                    raise
                self._tell_refused(name, len(left[0]), str(error))
            left.popleft()

    def _put(self, name: str, batch: Sequence[Line]) -> None:
        with calling(f"write to the log stream {name}"):
            answer = self._aws.logs.put_log_events(
                logGroupName=self._group,
                logStreamName=name,
                logEvents=[{"timestamp": at, "message": text} for at, text in batch],
            )
        if left_out := answer.get("rejectedLogEventsInfo"):  # by their time
            self._tell_refused(name, len(batch), f"CloudWatch leaves lines out: {left_out}")

    def _create(self, name: str) -> None:
        if name in self._streams:
            return
        with passing("ResourceAlreadyExistsException"), calling(f"create the log stream {name}"):
            self._aws.logs.create_log_stream(logGroupName=self._group, logStreamName=name)
        self._streams.add(name)

    def _tell(self, message: str) -> None:
        if message not in self._told:
            self._told.add(message)
            logger.warning(f"{message}; what waits is sent later")

    def _tell_refused(self, name: str, lines: int, why: str) -> None:
        if name not in self._refused:
            self._refused.add(name)
            what = f"logs: {counted(lines, 'line')} of {name}"
            logger.warning(f"{what} cannot all be sent, which is told once: {why}")
