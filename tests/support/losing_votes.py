"""Has step votes fail for one rank alone, or ends a rank in the middle of one."""

import os
import signal
import socket
from collections.abc import Callable
from typing import Any

from spotelastic.training.in_place.voting import Votes


def lose_a_vote(is_lost: Callable[[], bool]) -> None:
    """Has the vote fail after which this returns True, though all ranks have voted. It is asked
    until then.
    """
    vote = Votes.vote

    def lost(votes: Votes) -> None:
        vote(votes)
        if is_lost():
            Votes.vote = vote  # type: ignore[method-assign]
            raise RuntimeError("[x/gloo/transport/tcp/pair.cc:1] Connection closed by peer")

    Votes.vote = lost  # type: ignore[method-assign]


def die_having_told_one(is_now: Callable[[], bool], *, connecting: bool) -> None:
    """Ends this process in a vote, when it has told the next rank and no other that it is there, or
    has connected with it.
    """
    name = "sendall" if connecting else "send"
    send = getattr(socket.socket, name)

    def sends(connection: socket.socket, data: Any, *flags: int) -> Any:
        sent = send(connection, data, *flags)
        if is_now() and connection.family == socket.AF_INET:
            os.kill(os.getpid(), signal.SIGKILL)
        return sent

    setattr(socket.socket, name, sends)
