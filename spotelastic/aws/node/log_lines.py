"""Lines on their way to CloudWatch Logs: cut to what it takes, in batches, and while they wait.

CloudWatch counts bytes of UTF-8. It takes at most 10,000 lines or 1 MiB per call, of at most 24
hours, and 256 KiB per line, each with overhead.
"""

from collections import Counter, deque
from collections.abc import Iterator, Sequence

from spotelastic.model.counting import counted

LINE_BYTES = 200_000
"""Most bytes of a line; a longer one is sent in pieces."""
OVERHEAD = 26
"""Bytes that each line counts for beside its text."""
BATCH_LINES = 5_000
BATCH_BYTES = 900_000
BATCH_SPAN = 23 * 3600 * 1000
"""Most milliseconds between the first and the last line of a batch."""
KEPT_LINES = 50_000
"""Lines that wait while CloudWatch does not answer; the oldest are dropped first."""
KEPT_BYTES = 64 * 2**20

Line = tuple[int, str]
"""A line: milliseconds since the epoch, and its text."""


def pieces(text: str) -> Iterator[str]:
    """Divide a line into pieces that CloudWatch takes; it refuses what is empty.

    No character is divided. What is no Unicode text (a lone surrogate) is replaced.
    """
    data = text.encode(errors="replace")
    begin = 0
    while begin < len(data):
        end = min(begin + LINE_BYTES, len(data))
        while end < len(data) and data[end] & 0xC0 == 0x80:  # within a character
            end -= 1
        piece = data[begin:end].decode()
        if piece.strip():
            yield piece
        begin = end


def size(line: Line) -> int:
    """Return the bytes that a line counts for."""
    return len(line[1].encode()) + OVERHEAD


def batches(lines: Sequence[Line]) -> list[list[Line]]:
    """Divide lines, ordered by time, into batches that CloudWatch accepts."""
    divided: list[list[Line]] = []
    begin = total = 0
    for line in lines:
        length = size(line)
        full = total + length > BATCH_BYTES or line[0] - begin > BATCH_SPAN
        if not divided or full or len(divided[-1]) == BATCH_LINES:
            divided.append([])
            begin, total = line[0], 0
        divided[-1].append(line)
        total += length
    return divided


class Backlog:
    """Lines that wait, by stream. Of too many, the oldest are dropped, and counted."""

    def __init__(self, most_lines: int = KEPT_LINES, most_bytes: int = KEPT_BYTES) -> None:
        self._most_lines = most_lines
        self._most_bytes = most_bytes
        self._lines: deque[tuple[str, Line]] = deque()
        self._bytes = 0
        self._dropped: Counter[str] = Counter()

    def __bool__(self) -> bool:
        return bool(self._lines)

    def add(self, stream: str, line: Line) -> None:
        """Add a new line."""
        self._lines.append((stream, line))
        self._bytes += size(line)
        self._trim()

    def put_back(self, lines: Sequence[tuple[str, Line]]) -> None:
        """Add lines that are older than all others."""
        self._lines.extendleft(reversed(lines))
        self._bytes += sum(size(line) for _, line in lines)
        self._trim()

    def take(self) -> list[tuple[str, Line]]:
        """Return all lines. Where some were dropped before, the first one says how many."""
        taken: list[tuple[str, Line]] = []
        for stream, line in self._lines:
            if dropped := self._dropped.pop(stream, 0):
                told = f"[spotelastic] missing here: {counted(dropped, 'line')}"
                taken.append((stream, (line[0], told)))
            taken.append((stream, line))
        self._lines.clear()
        self._bytes = 0
        return taken

    def _trim(self) -> None:
        while len(self._lines) > self._most_lines or self._bytes > self._most_bytes:
            stream, line = self._lines.popleft()
            self._bytes -= size(line)
            self._dropped[stream] += 1
