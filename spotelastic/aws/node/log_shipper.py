"""Ships log lines to CloudWatch Logs, in batches, without ever holding up who writes them."""

import logging
import threading
from collections import defaultdict, deque
from collections.abc import Sequence

from spotelastic.aws.base.clients import Aws, Rejected, calling
from spotelastic.clock import Clock, wall
from spotelastic.errors import SpotelasticError, told

logger = logging.getLogger(__name__)

EVERY = 0.5
"""Seconds that a line waits for others at most."""
KEPT = 50_000
"""Lines kept while CloudWatch does not answer; the oldest go first."""
BATCH_LINES = 5_000
BATCH_BYTES = 900_000
UPDATE_EVERY = 10.0
"""Seconds between two updates of a line, as of a progress bar, that are sent."""
LINE_BYTES = 200_000
"""CloudWatch takes 10,000 lines or 1 MiB at once, and 256 KiB a line, counted with overhead."""
OVERHEAD = 26

Line = tuple[int, str]
"""(milliseconds since the epoch, text)"""


def stream(node: str, rank: int) -> str:
    """The log stream of one worker."""
    return f"{node}/rank-{rank}"


class LogShipper:
    """`write` may be called from any thread; sending is done by one of its own."""

    def __init__(self, aws: Aws, group: str, clock: Clock = wall) -> None:
        self._aws = aws
        self._group = group
        self._clock = clock
        self._wake = threading.Condition()
        self._lines: deque[tuple[str, Line]] = deque(maxlen=KEPT)
        self._streams: set[str] = set()
        self._closed = False
        self._updated: dict[str, float] = {}
        """By stream: when the last update was sent."""
        self._thread = threading.Thread(target=self._run, name="log-shipper", daemon=True)
        self._thread.start()

    def write(self, stream: str, text: str) -> None:
        if not text.strip():
            return  # CloudWatch refuses empty lines
        if text.endswith("\r"):  # of a progress bar: the next one takes its place
            now, due = self._clock(), self._updated.get(stream, -UPDATE_EVERY) + UPDATE_EVERY
            if now < due:
                return
            self._updated[stream], text = now, text[:-1]
        line = (int(self._clock() * 1000), text[:LINE_BYTES])
        with self._wake:
            self._lines.append((stream, line))
            self._wake.notify_all()

    def close(self, timeout: float = 5.0) -> None:
        """Sends what is left, for `timeout` seconds at most."""
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
        """Returns what could not be sent."""
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
            except Exception as error:  # of these lines: others may be sent
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
    """Divides lines, in order, into what CloudWatch takes at once (pure)."""
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
