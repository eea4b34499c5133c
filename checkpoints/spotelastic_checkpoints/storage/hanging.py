"""Abandons calls that may hang at their deadline, and limits the memory that they hold.

A call that hangs in foreign code cannot be ended, only abandoned. It goes on in a thread that
nothing waits for, not even the end of the process. It keeps its copy of the data until it ends.
"""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from functools import partial
from typing import TypeVar

MOST = 64
"""Number of calls at a time, abandoned ones included: an outage must not fill the memory."""
COPIED = 128 << 20
"""Bytes of copies at a time, for all stores of a process."""
SMALL = 1 << 20
"""Bytes up to which a copy takes none of the room.

Abandoned calls may hold all the room, and a manifest must not wait for them. Only few small copies
exist at a time.
"""

T = TypeVar("T")


class Copies:
    """The room for copies of data that is being written, copies of abandoned calls included."""

    def __init__(self, most: int = COPIED, small: int = SMALL) -> None:
        """Give out `most` bytes of room. Copies of `small` bytes or less need none."""
        self._small = small
        self._most = self._free = most
        self._changed = threading.Condition()
        self._turn = threading.Lock()

    def room(self, nbytes: int, seconds: float) -> Callable[[], None]:
        """Take room for a copy, and return a function that gives it back.

        A copy that is larger than all the room gets all of it. Raises `TimeoutError` if there is no
        room within `seconds`.
        """
        if nbytes <= self._small:
            return _nothing
        deadline, nbytes = time.monotonic() + seconds, min(nbytes, self._most)
        # One copy waits at a time. Otherwise a large copy would wait as long as small ones come.
        if self._turn.acquire(timeout=seconds):
            try:
                with self._changed:
                    left = deadline - time.monotonic()
                    if self._changed.wait_for(lambda: self._free >= nbytes, left):
                        self._free -= nbytes
                        return partial(self._give_back, nbytes)
            finally:
                self._turn.release()
        raise TimeoutError(f"no room within {seconds:g} s: earlier uploads hold all of it")

    def _give_back(self, nbytes: int) -> None:
        with self._changed:
            self._free += nbytes
            self._changed.notify_all()


COPIES = Copies()


class Hanging:
    """Runs calls that may hang, each in a thread of its own."""

    def __init__(self, most: int = MOST, copies: Copies = COPIES) -> None:
        self._copies = copies
        self._room = threading.BoundedSemaphore(most)
        self._most = most

    def within(self, seconds: float, call: Callable[[], T]) -> T:
        """Return the result of `call`, or raise its error. Raises `TimeoutError` at the deadline.

        An abandoned call goes on. It must not use memory that may belong to something else by then.
        """
        with ExitStack() as held:
            return self._within(seconds, call, held)

    def copied(self, seconds: float, data: memoryview, call: Callable[[bytes], T]) -> T:
        """Run a call like `within`, and give it a copy of `data`.

        Waiting for room and waiting for the result may take `seconds` each.
        """
        with ExitStack() as held:
            held.callback(self._copies.room(len(data), seconds))
            return self._within(seconds, partial(call, bytes(data)), held)

    def with_room(self, seconds: float, nbytes: int, call: Callable[[], T]) -> T:
        """Run a call like `within` that holds copies of at most `nbytes`.

        Waiting for room and waiting for the result may take `seconds` each.
        """
        with ExitStack() as held:
            held.callback(self._copies.room(nbytes, seconds))
            return self._within(seconds, call, held)

    def _within(self, seconds: float, call: Callable[[], T], held: ExitStack) -> T:
        """Run the call, and release `held` when it has ended, or at once if it cannot start."""
        if not self._room.acquire(timeout=seconds):
            raise TimeoutError(f"{self._most} calls have not been answered yet")
        held.callback(self._room.release)
        answer: Future[T] = Future()
        theirs = held.pop_all()
        try:
            arguments = answer, call, theirs
            threading.Thread(target=_run, args=arguments, name="storage", daemon=True).start()
        except BaseException:
            theirs.close()
            raise
        try:
            return answer.result(seconds)
        except TimeoutError as error:
            if answer.done():  # the call itself raised it
                raise
            raise TimeoutError(f"no answer within {seconds:g} s") from error
        finally:
            # The error refers to this frame. With the answer in it there would be a cycle, which
            # keeps the copy until the next garbage collection.
            del answer, call, arguments


def _run(answer: Future[T], call: Callable[[], T], held: ExitStack) -> None:
    with held:
        try:
            answer.set_result(call())
        except BaseException as error:
            forget_frames(error)
            answer.set_exception(error)
        finally:
            del answer, call  # as above


def forget_frames(error: BaseException) -> None:
    """Drop the tracebacks of an error and of the errors behind it.

    Their frames would keep the copy of the data in memory, after its room was given back, for as
    long as the error is kept.
    """
    known, left = set(), [error]
    while left:
        found = left.pop()
        if id(found) not in known:
            known.add(id(found))
            found.__traceback__ = None
            left += filter(None, (found.__cause__, found.__context__))


def _nothing() -> None:
    pass
