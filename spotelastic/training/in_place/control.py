"""The worker's end of the connection to its agent: it hears that it is to rest, and where to go on.

A thread reads what the agent says, because the main thread may wait in a collective then. It wakes
the main thread by closing the groups, and leaves the rest to it.
"""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import NoReturn

import msgspec

from spotelastic.errors import SpotelasticError
from spotelastic.model.in_place import (
    Enter,
    FromWorker,
    Listening,
    Present,
    Rest,
    Resting,
    SavesFirst,
    Standing,
    ToWorker,
)

VARIABLE = "SPOTELASTIC_CONTROL"
"""Variable with the path of the agent's socket. Without it, workers cannot rest."""
PACKET = 1 << 20
"""Bytes of the longest message: it has all variables of a worker's environment."""
CONNECT_WITHIN = 5.0
"""Seconds within which the agent has to accept the connection."""
REPLACED_WITHIN = 30.0
"""Seconds within which the agent ends a worker that it cannot tell to rest: by far enough."""
_DECODER: msgspec.json.Decoder[ToWorker] = msgspec.json.Decoder(ToWorker)
AGAIN = 0.05
"""Seconds after which the main thread is woken again: it may just be making a group."""


class Control:
    """A connection on which this worker can be told to rest. Raises `OSError` without an agent."""

    def __init__(self, path: str, round_: str, local_rank: int, wake: Callable[[], None]) -> None:
        """`wake` wakes the main thread.

        It is called by another thread, whenever a rest is asked for.
        """
        self.round = round_
        """The last round that the worker was in, or was told to enter."""
        self._wake_main = wake
        self._asked = False
        self._resting = False
        """Whether the main thread waits for a round."""
        self._order: Enter | None = None
        self._changed = threading.Condition()
        self._answering = threading.Lock()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, PACKET)
        self._socket.settimeout(CONNECT_WITHIN)
        try:
            self._socket.connect(path)
        except OSError:
            self._socket.close()
            raise
        self._socket.settimeout(None)
        self._tell(Listening(round_, local_rank))
        threading.Thread(target=self._read, name="rounds", daemon=True).start()

    @property
    def asked(self) -> bool:
        """Whether the agent wants this worker to leave the round that it is in."""
        return self._asked

    def rest(self, standing: Standing, broken: str = "", traceback: str = "") -> Enter:
        """Say where the worker stands, and wait until a round is there to go on in.

        A round that is over before the worker has entered it is left as well. Where the agent is
        gone, this never returns: others end the process then.
        """
        with self._changed:
            self._resting = True
            self._changed.notify_all()
            while True:
                left = self.round
                self._tell(Resting(left, standing, broken, traceback))
                while self._order is None and self.round == left:
                    self._changed.wait()
                if self._order is not None:
                    order, self._order, self._resting = self._order, None, False
                    return order
                broken = traceback = ""

    @contextlib.contextmanager
    def unanswered(self) -> Iterator[None]:
        """Answer the agent after the block alone. It replaces this worker if that takes too long.

        Otherwise questions are answered whatever the main thread does.
        """
        with self._answering:
            yield

    def saves_first(self) -> None:
        """Say that this worker rests a little later."""
        self._tell(SavesFirst(self.round))

    def give_up(self) -> NoReturn:
        """Say that this worker cannot rest any more, and wait until the agent replaces it."""
        self.close()
        threading.Event().wait(REPLACED_WITHIN)
        raise SpotelasticError("the agent has not replaced this worker, which cannot rest any more")

    def close(self) -> None:
        """End the connection."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _read(self) -> None:
        with self._socket:
            while data := self._received():
                message = _DECODER.decode(data)
                with self._changed:
                    match message:
                        case Enter(round=round_):
                            self._order, self.round, self._asked = message, round_, False
                        case Rest():
                            self._order, self._asked = None, True
                    self._changed.notify_all()
                if isinstance(message, Rest):
                    self._wake()
                else:
                    with self._answering:
                        self._tell(Present(self.round))

    def _wake(self) -> None:
        """Wake the main thread until it has noticed."""
        while True:
            self._wake_main()
            with self._changed:
                if self._changed.wait_for(lambda: self._resting, AGAIN):
                    return

    def _received(self) -> bytes:
        try:
            return self._socket.recv(PACKET)
        except OSError:
            return b""

    def _tell(self, message: FromWorker) -> None:
        with contextlib.suppress(OSError):
            self._socket.send(msgspec.json.encode(message))
