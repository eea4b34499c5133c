"""A stand-in for the agents of a few workers that can rest, which moves them from round to round.

Each worker is a process that is forked before anything else starts here. `run` returns what each
has told by `tell`. Torch, its stores, processes, signals and sockets are real; of the checkpoint
daemon there is only what answers.
"""

import faulthandler
import fcntl
import json
import os
import queue
import select
import selectors
import signal
import socket
import struct
import sys
import termios
import time
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import torch
from spotelastic_checkpoints.messages import Complain, Request
from spotelastic_checkpoints.types import Resume
from support.saving.stand_in_daemon import StandInDaemon
from torch.distributed import TCPStore

from spotelastic.model.in_place import Enter, FromWorker, Listening, Rest, Resting
from spotelastic.rendezvous.sources.in_place import agreed_step

PACKET = 1 << 20
WITHIN = 120.0
"""Seconds within which all has to be over."""
REST_WITHIN = 15.0
"""Seconds within which all workers rest after the first one, or after one was lost."""
LOOK_EVERY = 0.02
STACKS = signal.SIGUSR2
"""Makes a worker write the stacks of all its threads to standard error."""
WRITTEN_WITHIN = 2.0
"""Seconds that living workers have for it."""
_PEER = struct.Struct("3i")
"""Process, user and group of the other side of a Unix socket."""


class NotWokenError(Exception):
    """gloo did not wake a worker whose peers are gone.

    It tells nobody who waits for a send that has failed, as one may whose peer was killed at this
    moment. An agent replaces such workers.
    """


@dataclass
class Worker:
    """One worker, as its agent sees it."""

    number: int
    pid: int
    start: socket.socket
    """Where its variables are sent to it."""
    pidfd: int
    control: socket.socket | None = None
    resting: Resting | None = None
    told: list[Any] = field(default_factory=list)
    gone: bool = False
    """Whether it takes no part any more."""
    ended: bool = False
    started: bool = False


@dataclass
class Plan:
    """What the agent does on its own account."""

    within: float = WITHIN
    asks: bool = True
    """Whether workers are asked to rest when one of them has gone. Otherwise they see it alone."""
    restores_from: Callable[[], Resume] | None = None
    """Returns what workers restore that cannot keep their state."""
    on_told: Callable[["Agent", Worker, Any], None] | None = None
    """Called when a worker tells something."""
    begins: Callable[[str, list[Worker], Resume], None] | None = None
    """Called with a round, its workers by rank, and its source, before workers enter it."""
    looks: Callable[["Agent"], None] | None = None
    """Called now and then."""
    later: Collection[int] = ()
    """Workers that do not take part in the first round."""
    complaints: int = 0
    """How many complaints of workers are waited for at the end."""
    ends_deaf: bool = False
    """Whether workers are killed that end their connection: they cannot rest any more."""
    node: str = ""
    """The node of all workers; otherwise each has its own."""
    daemons: Sequence[str] = ()
    """The daemon of each worker, where they have not one in common."""


class Agent:
    """Moves workers from round to round."""

    def __init__(self, folder: Path, workers: list[Worker], plan: Plan, daemon: str) -> None:
        self.workers, self.plan = workers, plan
        self.rounds = 0
        self.rested: list[list[Resting]] = []
        """By round that was left, what the workers said."""
        self.heard: list[str] = []
        """What workers complained of."""
        self._daemon = daemon
        self._stores: list[Any] = []
        self._leaving_since: float | None = None
        """When the first worker had a reason to leave the round; None: none has."""
        self._selector = selectors.DefaultSelector()
        self.path = folder / "agent.sock"
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(self.path))
        self._listener.listen()
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        for worker in workers:
            self._selector.register(worker.pidfd, selectors.EVENT_READ, worker)
            self._selector.register(worker.start, selectors.EVENT_READ, worker)

    @property
    def living(self) -> list[Worker]:
        """Those that run."""
        return [worker for worker in self.workers if worker.started and not worker.gone]

    def start(self) -> None:
        first = [worker for worker in self.workers if worker.number not in self.plan.later]
        for worker, variables in self._round(first, Resume()):
            self._start(worker, variables)

    def rest(self, but: Sequence[int] = ()) -> None:
        """Asks all living workers to rest."""
        self._begin_to_leave()
        for worker in self.living:
            if worker.control is not None and worker.number not in but:
                _send(worker.control, Rest())

    @staticmethod
    def has_heard(worker: Worker) -> bool:
        """Returns whether a worker has read all that it was told."""
        if worker.control is None:
            return True
        unread = fcntl.ioctl(worker.control, termios.TIOCOUTQ, bytes(4))
        return not int.from_bytes(unread, sys.byteorder)

    def lose(self, worker: Worker) -> None:
        worker.gone = True
        self._begin_to_leave()
        if self.plan.asks:
            self.rest()
        self.meet_again()

    def _begin_to_leave(self) -> None:
        if self._leaving_since is None:
            self._leaving_since = time.monotonic()

    def meet_again(self) -> None:
        """Begins a round once all workers rest."""
        living = self.living
        if not living or any(worker.resting is None for worker in living):
            return
        told = [worker.resting for worker in living if worker.resting is not None]
        self.rested.append(told)
        self._leaving_since = None
        step = agreed_step([each.standing for each in told])
        source = self.plan.restores_from
        resume = source() if source is not None else Resume("memory", step or 0)
        restores = step is None
        if step is None:
            assert source is not None, f"they cannot go on: {told}"
            step = resume.step
        come = [worker for worker in self.workers if not worker.started]
        for worker, variables in self._round([*living, *come], resume):
            if worker in come:
                self._start(worker, variables | {"SPOTELASTIC_IN_PLACE": "keep"})
                continue
            worker.resting = None
            assert worker.control is not None
            order = Enter(variables["SPOTELASTIC_ROUND"], step, restores, variables)
            _send(worker.control, order)

    def serve(self) -> None:
        deadline = time.monotonic() + self.plan.within
        while self.living:
            if self.plan.looks is not None:
                self.plan.looks(self)
            ready = self._selector.select(LOOK_EVERY)
            now = time.monotonic()
            if now >= deadline:
                self._show_stacks()
                raise AssertionError(f"it goes on for too long: {self.living}")
            if self._leaving_since is not None and now > self._leaving_since + REST_WITHIN:
                raise NotWokenError([each.number for each in self.living if each.resting is None])
            for key, _ in ready:
                if callable(key.data):
                    key.data()
                else:
                    self._hear(key)

    def _show_stacks(self) -> None:
        """One after the other, so that nothing is written into what another one writes."""
        for worker in self.living:
            print(f"worker {worker.number}, {worker.resting}:", file=sys.stderr, flush=True)
            os.kill(worker.pid, STACKS)
            select.select([worker.pidfd], [], [], WRITTEN_WITHIN)

    @staticmethod
    def _start(worker: Worker, variables: Mapping[str, str]) -> None:
        worker.started = True
        worker.start.send(json.dumps(variables).encode())

    def _round(self, members: list[Worker], resume: Resume) -> list[tuple[Worker, dict[str, str]]]:
        self.rounds += 1
        if self.plan.begins is not None:
            self.plan.begins(f"r{self.rounds}", members, resume)
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._stores.append(store)
        return [
            (worker, self._variables(worker, rank, len(members), store.port, resume))
            for rank, worker in enumerate(members)
        ]

    def _variables(
        self, worker: Worker, rank: int, world: int, port: int, resume: Resume
    ) -> dict[str, str]:
        return {
            "RANK": str(rank),
            "WORLD_SIZE": str(world),
            "LOCAL_RANK": "0",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "SPOTELASTIC_LOCAL_RANK": str(worker.number) if self.plan.node else "0",
            "SPOTELASTIC_NODE": self.plan.node or f"n{worker.number}",
            "SPOTELASTIC_ROUND": f"r{self.rounds}",
            "SPOTELASTIC_RESUME": msgspec.json.encode(resume).decode(),
            "SPOTELASTIC_DAEMON": (
                self.plan.daemons[worker.number] if self.plan.daemons else self._daemon
            ),
            "SPOTELASTIC_CONTROL": str(self.path),
            "SPOTELASTIC_NCCL_ERRORS": "1",
            # The stand-in of a daemon keeps nothing that a rehearsal could restore.
            "SPOTELASTIC_REHEARSE": os.environ.get("SPOTELASTIC_REHEARSE", "off"),
        }

    def _accept(self) -> None:
        control, _ = self._listener.accept()
        told = control.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
        worker = next(each for each in self.workers if each.pid == _PEER.unpack(told)[0])
        worker.control = control
        self._selector.register(control, selectors.EVENT_READ, None)

    def _hear(self, key: selectors.SelectorKey) -> None:
        worker: Worker | None = key.data
        if worker is not None and key.fd == worker.pidfd:
            self._ended(worker)
            return
        channel = key.fileobj
        assert isinstance(channel, socket.socket)
        try:
            data = channel.recv(PACKET)
        except OSError:
            data = b""
        if not data:
            self._selector.unregister(channel)
            self._deaf(channel)
        elif worker is not None and channel is worker.start:
            self._told(worker, data)
        else:
            self._understand(channel, msgspec.json.decode(data, type=FromWorker))

    def _told(self, worker: Worker, data: bytes) -> None:
        told = json.loads(data)
        worker.told.append(told)
        if self.plan.on_told is not None:
            self.plan.on_told(self, worker, told)

    def _understand(self, channel: socket.socket, message: FromWorker) -> None:
        if isinstance(message, Listening):
            return
        worker = next(each for each in self.workers if each.control is channel)
        if isinstance(message, Resting) and not worker.gone:
            worker.resting = message
            self._begin_to_leave()
            self.meet_again()

    def _deaf(self, channel: socket.socket) -> None:
        for worker in self.workers:
            if worker.control is channel and self.plan.ends_deaf and not worker.gone:
                self._read_rest(worker)
                worker.gone = True
                os.kill(worker.pid, signal.SIGKILL)
                self.meet_again()

    def _read_rest(self, worker: Worker) -> None:
        """Its end may be seen before what it told last."""
        with suppress(OSError):
            while data := worker.start.recv(PACKET, socket.MSG_DONTWAIT):
                self._told(worker, data)

    def _ended(self, worker: Worker) -> None:
        self._selector.unregister(worker.pidfd)
        self._read_rest(worker)
        _, status = os.waitpid(worker.pid, 0)
        worker.ended = True
        if not worker.gone:
            if status == 0:
                worker.gone = True
                self.meet_again()  # of those that it has left behind
            else:
                assert os.WIFSIGNALED(status), f"worker {worker.number} failed"
                self.lose(worker)


def _send(control: socket.socket, message: Rest | Enter) -> None:
    """A worker may have ended at this moment, which its pidfd tells next."""
    with suppress(BrokenPipeError, ConnectionResetError):
        control.send(msgspec.json.encode(message))


Case = Callable[[Path], "Agent"]
"""Takes a folder, and returns the agent when all is over."""
Script = Callable[[int, Callable[[Any], None]], None]
"""Takes the worker's number, and a function that tells something to the agent."""


def run(count: int, script: Script, folder: Path, plan: Plan, daemon: str = "") -> Agent:
    """Returns when all workers have ended. Call it in a process without threads."""
    folder.mkdir()
    workers = [_fork(number, script) for number in range(count)]
    told: queue.SimpleQueue[str] = queue.SimpleQueue()

    def hears(request: Request) -> None:
        if isinstance(request, Complain):
            told.put(request.message)

    stand_in = None if daemon else StandInDaemon(folder, hears)
    try:
        agent = Agent(folder, workers, plan, daemon or str(folder / "daemon.sock"))
        agent.start()
        agent.serve()
        agent.heard = [told.get(timeout=plan.within) for _ in range(plan.complaints)]
        return agent
    finally:
        for worker in workers:
            if not worker.ended:
                os.kill(worker.pid, signal.SIGKILL)
        if stand_in is not None:
            stand_in.close()


def _fork(number: int, script: Script) -> Worker:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for each in ours, theirs:
        each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, PACKET)
    pid = os.fork()
    if pid:
        theirs.close()
        return Worker(number, pid, ours, os.pidfd_open(pid))
    code = 1
    try:
        ours.close()
        os.environ.update(json.loads(theirs.recv(PACKET)))
        torch.set_num_threads(1)
        faulthandler.register(STACKS, all_threads=True)
        script(number, lambda told: _tell(theirs, told))
        code = 0
    except BaseException:
        print(f"worker {number}:", file=sys.stderr)
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _tell(channel: socket.socket, told: Any) -> None:
    channel.send(json.dumps(told).encode())
