"""Keeps the processes of a booted instance running: restarts each as soon as it dies.

One thread waits for all of them, through their pidfds, and for signals. It alone starts processes,
because some are bound to the thread that started them.
"""

import logging
import os
import selectors
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from spotelastic_checkpoints.backoff import Backoff

from spotelastic.clock import steady, wall
from spotelastic.errors import told

logger = logging.getLogger(__name__)

SHORT_LIFE = 2.0
"""Seconds. A process that dies sooner is restarted after a pause that doubles."""
RESTART = Backoff(0.2, 10.0)
GRACE = 10.0
"""Seconds from SIGTERM to SIGKILL."""


class Process(Protocol):
    """A child process. `wait` reaps it and returns its exit code."""

    @property
    def pid(self) -> int: ...

    def wait(self) -> int: ...


@dataclass(frozen=True, slots=True)
class SupervisedProcess:
    """A process that is kept running, and how."""

    name: str
    start: Callable[[], Process]
    """Starts it; called on the supervisor's thread."""
    ends: Callable[[int], bool] = lambda code: False
    """Whether an exit code (negative: the signal) means that it is done for good."""
    restarted: Callable[[float], None] | None = None
    """Called, on a thread of its own, with the time of its death after it was restarted."""


@dataclass(slots=True)
class _Running:
    part: SupervisedProcess
    process: Process | None = None
    pidfd: int = -1
    started_at: float = 0.0
    died_at: float = 0.0
    due: float = 0.0
    """When to start it, by the steady clock."""
    backoff: Backoff = RESTART
    code: int | None = None
    """Its exit code, once it is done for good."""


def supervise(
    parts: Sequence[SupervisedProcess], grace: float = GRACE, *, rests: bool = False
) -> int:
    """Run all parts until they are done for good, or until SIGTERM or SIGINT.

    With `rests`, until such a signal alone, also when all are done. Returns the last exit code, or
    0. What still runs then has `grace` seconds. Must be called on the main thread.
    """
    running = [_Running(part) for part in parts]
    signals, waker = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    told_to_end = threading.Event()
    previous = {
        number: signal.signal(number, lambda *_: told_to_end.set())
        for number in (signal.SIGTERM, signal.SIGINT)
    }
    old_waker = signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(signals, selectors.EVENT_READ)
            while not told_to_end.is_set() and (
                rests or any(each.code is None for each in running)
            ):
                _start_due(running, selector)
                for key, _ in selector.select(_until_next(running)):
                    if key.data is None:
                        os.read(signals, 4096)
                    else:
                        _bury(key.data, selector)
            _end(running, grace)
    finally:
        signal.set_wakeup_fd(old_waker)
        for number, handler in previous.items():
            signal.signal(number, handler)
        os.close(signals)
        os.close(waker)
    return next((each.code for each in reversed(running) if each.code), 0)


def _start_due(running: Sequence[_Running], selector: selectors.BaseSelector) -> None:
    for each in running:
        if each.process or each.code is not None or each.due > steady():
            continue
        each.process = each.part.start()
        each.pidfd = os.pidfd_open(each.process.pid)
        each.started_at = steady()
        selector.register(each.pidfd, selectors.EVENT_READ, each)
        if each.died_at and each.part.restarted:
            _tell(each.part.restarted, each.died_at)


def _tell(restarted: Callable[[float], None], died_at: float) -> None:
    def call() -> None:
        try:
            restarted(died_at)
        except Exception as error:
            logger.warning(told(error), exc_info=True)

    threading.Thread(target=call, name="restarted", daemon=True).start()


def _bury(each: _Running, selector: selectors.BaseSelector) -> None:
    """Reaps a part that died, and decides when it is restarted."""
    selector.unregister(each.pidfd)
    code = _reap(each)
    if each.part.ends(code):
        each.code = code
        return
    lived = steady() - each.started_at
    each.backoff = each.backoff.succeeded() if lived > SHORT_LIFE else each.backoff.failed()
    each.died_at, each.due = wall(), steady() + each.backoff.bound
    logger.warning(f"{each.part.name} ended with {code}: starting it again")


def _reap(each: _Running) -> int:
    assert each.process is not None
    code = each.process.wait()
    os.close(each.pidfd)
    each.process, each.pidfd = None, -1
    return code


def _until_next(running: Sequence[_Running]) -> float | None:
    due = [each.due for each in running if not each.process and each.code is None]
    return max(0.0, min(due) - steady()) if due else None


def _end(running: Sequence[_Running], grace: float) -> None:
    """Send SIGTERM to what still runs, in reverse order, and SIGKILL when its time is up."""
    for each in reversed(running):
        if each.process is None:
            continue
        signal.pidfd_send_signal(each.pidfd, signal.SIGTERM)
        with selectors.DefaultSelector() as selector:
            selector.register(each.pidfd, selectors.EVENT_READ)
            if not selector.select(grace):
                logger.warning(f"{each.part.name} does not end: killed")
                signal.pidfd_send_signal(each.pidfd, signal.SIGKILL)
        _reap(each)
