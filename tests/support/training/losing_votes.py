"""Has ranks vote; and has votes fail for one rank alone, or ends a rank in the middle of one."""

import functools
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from support.in_place.resting_agent import Agent, Case, Plan, Script, run

from spotelastic.training.in_place.groups import groups
from spotelastic.training.in_place.voting import Votes
from spotelastic.training.runtime.session import Ranks

RANKS, VOTES = 6, 8


def lose_a_vote(is_lost: Callable[[], bool]) -> None:
    """Has the vote fail after which this returns True, though all ranks have voted. It is asked
    until then.
    """
    vote = Votes.vote

    def lost(self: Votes, value: int = 0) -> int:
        found = vote(self, value)
        if is_lost():
            Votes.vote = vote  # type: ignore[method-assign]
            raise RuntimeError("[x/gloo/transport/tcp/pair.cc:1] Connection closed by peer")
        return found

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


def voting(folder: Path, *, connects: bool) -> Script:
    """Each rank writes when it begins a vote, and looks after it whether all have written that."""

    def script(number: int, tell: Callable[[Any], None]) -> None:
        dist.init_process_group("gloo")
        if not connects and number == 1:
            os.environ["MASTER_ADDR"] = "no.such.host.invalid"
        votes = Votes(Ranks(number, RANKS, 0, f"n{number}", dist.group.WORLD), groups)
        whole = []
        for vote in range(VOTES):
            _come(number, last=vote % RANKS)
            (folder / f"{number}.{vote}").touch()
            mine = (number + 1) * (vote % RANKS == number)  # one rank alone gives more than 0
            assert votes.vote(mine) == vote % RANKS + 1
            if all((folder / f"{each}.{vote}").exists() for each in range(RANKS)):
                whole.append(vote + 1)
        tell(whole)
        tell(len(groups.voting))
        dist.barrier()

    return script


def _come(number: int, last: int) -> None:
    """Return for the last rank when all others have come."""
    word = torch.zeros(1)
    if number != last:
        dist.send(word, last)
    else:
        for other in {*range(RANKS)} - {last}:
            dist.recv(word, other)


def voted(name: str, connects: bool, folder: Path) -> Agent:
    (folder / f"{name} begun").mkdir()
    return run(RANKS, voting(folder / f"{name} begun", connects=connects), folder / name, Plan())


CASES: dict[str, Case] = {
    "votes": functools.partial(voted, "votes", True),
    "votes without connections": functools.partial(voted, "votes without connections", False),
}
