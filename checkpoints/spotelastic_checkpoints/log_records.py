"""What spotelastic's own processes log: lines for people, or JSON records for programs.

Modules log by `logging.getLogger(__name__)`. A process calls `start` once. That gives the loggers
of both packages one handler. The root logger is left alone: it belongs to the user's program, which
may be the same process (`spotelastic.launch`). Workers never call `start`: their output is theirs.
"""

import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec

from spotelastic_checkpoints.decoders import from_json

FORMAT, LEVEL = "SPOTELASTIC_LOG_FORMAT", "SPOTELASTIC_LOG_LEVEL"
"""Environment variables with the format and the level of processes that read no flags."""
TEXT, JSON = "text", "json"
FORMATS = (TEXT, JSON)
LEVELS = ("debug", "info", "warning", "error")
PACKAGES = ("spotelastic", "spotelastic_checkpoints")

Write = Callable[[str], None]
"""Writes one line, which comes without its end."""
Redact = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class LogStyle:
    """How a process logs, and the processes that it starts."""

    format: str = TEXT
    level: str = "info"

    @classmethod
    def of(cls, environ: Mapping[str, str] = os.environ) -> "LogStyle":
        """Return the style that the variables name.

        A value that is none of them counts as not given: a typing error must not keep an instance
        from booting.
        """
        form, level = environ.get(FORMAT, TEXT).lower(), environ.get(LEVEL, "info").lower()
        return cls(form if form in FORMATS else TEXT, level if level in LEVELS else "info")

    def environment(self) -> dict[str, str]:
        return {FORMAT: self.format, LEVEL: self.level}


_style: LogStyle | None = None
_UNKNOWN = {"node": "", "round": None, "cause": ""}
_context: dict[str, object] = dict(_UNKNOWN)
"""What each record of this process carries: its node, the number of its round, and why that was
formed.
"""


def style() -> LogStyle:
    """Return the style of this process, for those that it starts."""
    return _style or LogStyle.of()


def node(name: str) -> None:
    """Set the node that records carry from now on."""
    _context["node"] = name


def entered(round_: int | None, cause: str = "") -> None:
    """Set the round that records carry from now on."""
    _context.update(round=round_, cause=cause)


def start(prefix: str, chosen: LogStyle, write: Write | None = None) -> None:
    """Start logging in this process: to stderr, unless `write` says otherwise.

    Lines for people begin with `prefix`.
    """
    global _style
    stop()
    _style = chosen
    handler = _Handler(write or to_stderr)
    handler.setFormatter(JsonFormatter() if chosen.format == JSON else PeopleFormatter(prefix))
    for package in PACKAGES:
        logger = logging.getLogger(package)
        logger.addHandler(handler)
        logger.setLevel(chosen.level.upper())
        logger.propagate = False


def stop() -> None:
    """Undoes `start`."""
    global _style
    _style = None
    _context.update(_UNKNOWN)
    for package in PACKAGES:
        logger = logging.getLogger(package)
        for handler in [each for each in logger.handlers if isinstance(each, _Handler)]:
            logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)
        logger.propagate = True


@contextmanager
def logging_to(prefix: str, chosen: LogStyle, write: Write | None = None) -> Iterator[None]:
    """Log within the block only."""
    start(prefix, chosen, write)
    try:
        yield
    finally:
        stop()


def hide(redact: Redact) -> None:
    """Apply `redact` to all that is logged from now on."""
    for package in PACKAGES:
        for handler in logging.getLogger(package).handlers:
            if isinstance(handler, _Handler):
                handler.addFilter(RedactingFilter(redact))


def message_of(line: str) -> str | None:
    """Return the message of a JSON record, which may follow what the system puts before a line.

    None: the line has no such record.
    """
    at = line.find('{"time":')
    if at < 0:
        return None
    try:
        return from_json(line[at:], _Record).message
    except msgspec.MsgspecError:
        return None


class _Record(msgspec.Struct):
    message: str


class PeopleFormatter(logging.Formatter):
    """The message alone. What there is to say of an error is in the message."""

    def __init__(self, prefix: str) -> None:
        super().__init__()
        self._prefix = prefix

    def format(self, record: logging.LogRecord) -> str:
        return f"{self._prefix}{record.getMessage()}"


class JsonFormatter(logging.Formatter):
    """One JSON object a line, with the same fields in every record."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        fields: dict[str, object] = {
            "time": at.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_context,
        }
        if record.exc_info and not record.exc_text:
            record.exc_text = self.formatException(record.exc_info)
        if record.exc_text:
            fields["exception"] = record.exc_text
        # A file's name may hold bytes that are no text.
        known = {
            name: value.encode(errors="backslashreplace").decode()
            if isinstance(value, str)
            else value
            for name, value in fields.items()
        }
        return msgspec.json.encode(known).decode()


class RedactingFilter(logging.Filter):
    """Keeps what `redact` knows out of messages and tracebacks."""

    def __init__(self, redact: Redact) -> None:
        super().__init__()
        self._redact = redact

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = self._redact(record.getMessage()), ()
        if record.exc_info and not record.exc_text:
            record.exc_text = logging.Formatter().formatException(record.exc_info)
        if record.exc_text:
            record.exc_text = self._redact(record.exc_text)
        return True


class _Handler(logging.Handler):
    def __init__(self, write: Write) -> None:
        super().__init__()
        self._write = write

    def emit(self, record: logging.LogRecord) -> None:
        """Never raises: training goes on without its log."""
        try:
            self._write(self.format(record))
        except (OSError, ValueError):
            pass


def to_stderr(line: str) -> None:
    """Write a line to stderr, which may take its time."""
    print(line.encode(errors="backslashreplace").decode(), file=sys.stderr, flush=True)
