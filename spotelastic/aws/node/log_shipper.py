"""Sends log lines to CloudWatch Logs in batches, from a background thread.

Writers are never held up.
"""

import logging
import threading
from collections import defaultdict, deque
from collections.abc import Sequence

from spotelastic.aws.base.clients import Aws, Rejected, calling
from spotelastic.clock import Clock, wall
from spotelastic.errors import SpotelasticError, told

logger = logging.getLogger(__name__)

EVERY = 0.5
"""Most seconds that a line waits for others."""
KEPT = 50_000
"""Lines kept while CloudWatch does not answer; the oldest are dropped first."""
BATCH_LINES = 5_000
BATCH_BYTES = 900_000
UPDATE_EVERY = 10.0
"""Seconds between two updates of a line (a progress bar) that are sent."""
LINE_BYTES = 200_000
"""Most bytes of a line.

CloudWatch takes at most 10,000 lines or 1 MiB per call, and 256 KiB per line, counted with
overhead.
"""
OVERHEAD = 26

Line = tuple[int, str]
"""A line: milliseconds since the epoch, and its text."""


def stream(node: str, rank: int) -> str:
    """Return the log stream of one worker."""
    return f"{node}/rank-{rank}"


class LogShipper:
    """Sends lines to one log group. `write` is thread-safe."""

    def __init__(self, aws: Aws, group: str, clock: Clock = wall) -> None:
        self._aws = aws
        self._group = group
        self._clock = clock
        self._wake = threading.Condition()
        self._lines: deque[tuple[str, Line]] = deque(maxlen=KEPT)
        self._streams: set[str] = set()
        self._closed = False
        self._updated: dict[str, float] = {}
        """When the last update was sent, by stream."""
        self._thread = threading.Thread(target=self._run, name="log-shipper", daemon=True)
        self._thread.start()

    def write(self, stream: str, text: str) -> None:
        """Queue a line. Updates of a progress bar are thinned out."""
        if not text.strip():
            return  # CloudWatch refuses empty lines
        if text.endswith("\r"):  # an update of a progress bar: the next one replaces it
            now, due = self._clock(), self._updated.get(stream, -UPDATE_EVERY) + UPDATE_EVERY
            if now < due:
                return
            self._updated[stream], text = now, text[:-1]
        line = (int(self._clock() * 1000), text[:LINE_BYTES])
        with self._wake:
            self._lines.append((stream, line))
            self._wake.notify_all()

    def close(self, timeout: float = 5.0) -> None:
        """Send what is left, for at most `timeout` seconds."""
        with self._wake:
            self._closed = True
            self._wake.notify_all()
        self._thread.join(timeout)

    def _run(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._lines or self._closed)
                self._wake.wait_for(lambda: self._closed, timeout=EVERY)
                taken, closed = list(self._lines), self._closed
                self._lines.clear()
            failed = self._send(taken)
            if closed:
                return
            with self._wake:
                self._lines.extendleft(reversed(failed))

    def _send(self, taken: Sequence[tuple[str, Line]]) -> list[tuple[str, Line]]:
        """Send the lines and return those that could not be sent."""
        by_stream: dict[str, list[Line]] = defaultdict(list)
        for name, line in taken:
            by_stream[name].append(line)
        failed: list[tuple[str, Line]] = []
        for name, lines in by_stream.items():
            try:
                self._put(name, lines)
            except SpotelasticError as error:
                logger.warning(f"logs: {error}")
                failed += [(name, line) for line in lines]
            except Exception as error:  # these lines cannot be sent; others may
                lost = f"{len(lines)} lines of {name} are not sent"
                logger.warning(f"logs: {told(error)}: {lost}", exc_info=True)
        return failed

    def _put(self, name: str, lines: Sequence[Line]) -> None:
        if name not in self._streams:
            self._create(name)
        for batch in batches(sorted(lines, key=lambda line: line[0])):
            with calling(f"write to the log stream {name}"):
                self._aws.logs.put_log_events(
                    logGroupName=self._group,
                    logStreamName=name,
                    logEvents=[{"timestamp": at, "message": text} for at, text in batch],
                )

    def _create(self, name: str) -> None:
        try:
            with calling(f"create the log stream {name}"):
                self._aws.logs.create_log_stream(logGroupName=self._group, logStreamName=name)
        except Rejected as error:
            if error.code != "ResourceAlreadyExistsException":
                raise
        self._streams.add(name)


def batches(lines: Sequence[Line]) -> list[list[Line]]:
    """Divide lines, in order, into batches that CloudWatch accepts (pure)."""
    divided: list[list[Line]] = []
    size = 0
    for line in lines:
        length = len(line[1].encode()) + OVERHEAD
        if not divided or len(divided[-1]) == BATCH_LINES or size + length > BATCH_BYTES:
            divided.append([])
            size = 0
        divided[-1].append(line)
        size += length
    return divided
