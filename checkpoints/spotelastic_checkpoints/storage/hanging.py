"""Calls that may never return, given up at a deadline, and room for what they write.

What hangs in somebody else's code cannot be ended, only left behind, in a thread that nothing waits
for, not even the end of the process. It keeps its copy of what it was to write until it ends.
"""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from functools import partial
from typing import TypeVar

MOST = 64
"""Calls at a time, those that were left behind among them: an outage must not fill the memory."""
COPIED = 128 << 20
"""Bytes of copies at a time, of all stores of a process."""
SMALL = 1 << 20
"""Bytes that need no room: calls that were left behind may hold all of it, and a manifest must not
wait for them. Few of such are on their way at a time."""

T = TypeVar("T")


class Copies:
    """Room for copies of what is written, those of calls that were left behind among them."""

    def __init__(self, most: int = COPIED, small: int = SMALL) -> None:
        """There is room for `most` bytes; copies of `small` bytes or less need none."""
        self._small = small
        self._most = self._free = most
        self._changed = threading.Condition()
        self._turn = threading.Lock()

    def room(self, nbytes: int, seconds: float) -> Callable[[], None]:
        """What is to be called once the copy is gone. One that is larger than all of the room has
        it to itself, and a `SMALL` one takes none. Raises `TimeoutError` where there is none at
        the deadline."""
        if nbytes <= self._small:
            return _nothing
        deadline, nbytes = time.monotonic() + seconds, min(nbytes, self._most)
        # One waits at a time: a large one would wait for as long as small ones come.
        if self._turn.acquire(timeout=seconds):
            try:
                with self._changed:
                    left = deadline - time.monotonic()
                    if self._changed.wait_for(lambda: self._free >= nbytes, left):
                        self._free -= nbytes
                        return partial(self._give_back, nbytes)
            finally:
                self._turn.release()
        raise TimeoutError(f"no room within {seconds:g} s beside what is on its way up")

    def _give_back(self, nbytes: int) -> None:
        with self._changed:
            self._free += nbytes
            self._changed.notify_all()


COPIES = Copies()


class Hanging:
    """Runs calls that may hang."""

    def __init__(self, most: int = MOST, copies: Copies = COPIES) -> None:
        self._copies = copies
        self._room = threading.BoundedSemaphore(most)
        self._most = most

    def within(self, seconds: float, call: Callable[[], T]) -> T:
        """What `call` returns or raises; `TimeoutError` at the deadline. What it does later on
        happens all the same, so that it must not look at memory that may be another's by then."""
        with ExitStack() as held:
            return self._within(seconds, call, held)

    def copied(self, seconds: float, data: memoryview, call: Callable[[bytes], T]) -> T:
        """`within`, for a call that looks at a copy of `data`. The copy may wait for its room as
        long as the call for its answer."""
        with ExitStack() as held:
            held.callback(self._copies.room(len(data), seconds))
            return self._within(seconds, partial(call, bytes(data)), held)

    def with_room(self, seconds: float, nbytes: int, call: Callable[[], T]) -> T:
        """`within`, for a call that holds `nbytes` of copies at most. They may wait for their room
        as long as the call for its answer."""
        with ExitStack() as held:
            held.callback(self._copies.room(nbytes, seconds))
            return self._within(seconds, call, held)

    def _within(self, seconds: float, call: Callable[[], T], held: ExitStack) -> T:
        """What is `held` is given back when the call has ended, or at once if it cannot begin."""
        if not self._room.acquire(timeout=seconds):
            raise TimeoutError(f"{self._most} calls are without an answer")
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
            if answer.done():  # its own
                raise
            raise TimeoutError(f"no answer within {seconds:g} s") from error
        finally:
            # What was raised knows this frame: with the answer in it, it would know itself, and
            # keep the copy until garbage is collected.
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
    """Of all that led to it. They are over, and would keep the copy that one of them knew, after
    its room has been given back, for as long as somebody keeps the error."""
    known, left = set(), [error]
    while left:
        found = left.pop()
        if id(found) not in known:
            known.add(id(found))
            found.__traceback__ = None
            left += filter(None, (found.__cause__, found.__context__))


def _nothing() -> None:
    pass
