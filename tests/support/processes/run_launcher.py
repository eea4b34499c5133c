"""Runs `spotelastic run` as real processes, and observes their run through its store."""

import contextlib
import functools
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from spotelastic_checkpoints.commit.commit_protocol import Commits
from spotelastic_checkpoints.memory import slots
from spotelastic_checkpoints.memory.arena import Arena
from spotelastic_checkpoints.storage.open import open_storage
from spotelastic_checkpoints.types import Commit
from support.places import SCRIPTS
from support.processes.network_namespaces import Host
from support.processes.patience import PATIENT
from support.saving.commit_protocol import retried
from support.store.etcd_members import wait_until
from support.store.run_history import Recorder, violations

from spotelastic.clock import steady, wall
from spotelastic.errors import Unavailable
from spotelastic.launcher.run_folders import PREFIX, SHARED_MEMORY
from spotelastic.model.round import Round, RoundRecord
from spotelastic.rendezvous.view import RunState, fold
from spotelastic.store.codec import decode
from spotelastic.store.etcd import EtcdStore
from spotelastic.store.keys import Keys
from spotelastic.store.port import Sink, WatchItem

SCRIPT = SCRIPTS / "train_small.py"
HEEDFUL = ("env", "--default-signal=INT,HUP")
"""A node heeds these also where the tests run below nohup or in the background of a shell."""


class NodeProcess:
    """One `spotelastic run`."""

    def __init__(
        self,
        name: str,
        args: Sequence[str],
        folder: Path,
        host: Host | None = None,
        env: Mapping[str, str] | None = None,
        inside: Sequence[str] = (),
    ) -> None:
        """`inside` is put before the command."""
        self.name = name
        self.log = folder / f"{name}.out"
        # gloo would look for an interface by this machine's name, which no namespace knows.
        interface = {"GLOO_SOCKET_IFNAME": "eth0"} if host else {}
        where = host.entered() if host else contextlib.nullcontext()
        with self.log.open("wb") as output, where:
            self.process = subprocess.Popen(
                [*inside, *HEEDFUL, sys.executable, "-m", "spotelastic", "run", *args],
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                cwd=folder,
                env={**os.environ, **interface, **(env or {})},
                start_new_session=True,
            )

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def wait(self, timeout: float = PATIENT) -> int:
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} did not end: {self.output[-3000:]}") from None

    def kill(self) -> None:
        """The agent alone. Its daemon removes the arena; before there is one, the next run on this
        machine would, which need not come."""
        served = any(_arena(pid) for pid in descendants(self.process.pid))
        self.process.kill()
        self.process.wait()
        for arena in SHARED_MEMORY.glob(f"{PREFIX}{self.process.pid}-*"):
            if not served:
                shutil.rmtree(arena, ignore_errors=True)

    def signal(self, sig: int) -> None:
        os.kill(self.process.pid, sig)

    def workers(self) -> list[int]:
        """Pids of its workers, by their name among its descendants."""
        return [pid for pid in descendants(self.process.pid) if comm(pid).startswith("se-worker")]


def arena_of(node: NodeProcess) -> Path:
    """Where its checkpoint daemon has its slots."""
    [arena] = {found for pid in descendants(node.process.pid) if (found := _arena(pid))}
    return Path(arena)


def replicated(node: NodeProcess, round_: Round) -> int:
    """The newest step of this round of which the node has another's shards; 0 for none."""
    found = slots.replicas(Arena(arena_of(node), 1))
    return max((each.step for each in found if each.incarnation == round_.incarnation), default=0)


def vanish(*nodes: NodeProcess) -> None:
    """As machines that vanish at one moment, with all that runs on them."""
    processes = [node.process for node in nodes]
    everything: set[int] = set()
    # Again, for what was started meanwhile by those that did not stand still yet.
    while new := {pid for process in processes for pid in _tree(process.pid)} - everything:
        _kill(new, signal.SIGSTOP)
        everything |= new
    below = everything - {process.pid for process in processes}
    arenas = [arena for pid in everything if (arena := _arena(pid))]
    _kill(everything, signal.SIGKILL)
    for process in processes:
        process.wait()
    wait_until(lambda: not any(map(comm, below)), "nothing of it is left")
    for arena in arenas:
        with contextlib.suppress(FileNotFoundError):  # another run on this machine was quicker
            shutil.rmtree(arena)


def _tree(root: int) -> list[int]:
    return [root, *descendants(root)]


def _kill(pids: Iterable[int], sig: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, sig)


def descendants(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, ValueError):
                stat = (entry / "stat").read_text().rpartition(")")[2].split()
                children.setdefault(int(stat[1]), []).append(int(entry.name))
    found, todo = [], [root]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def comm(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


LAST_WORDS = 20.0
"""Seconds that a change may take from the store to this process."""
UNSEEN = 10_000
"""States that are kept for a wait: far more than one can be behind."""
EVERY = ("--snapshot-every", "10", "--checkpoint-every", "50")
"""Steps, unless a test says otherwise: nothing happens of itself while it runs."""


def _arena(pid: int) -> str:
    """Where a checkpoint daemon has its slots; empty for any other process."""
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        return words[words.index("--arena") + 1] if "--arena" in words else ""
    return ""


class Run:
    """A run on a store: starts its nodes, and waits for what the store shows.

    `endpoint` is what the nodes are told (etcd members, comma-separated); `view` is where this
    process finds the store, if that is elsewhere. `served`: the store is there before the first
    node; else the nodes bring it. `storage` is a folder of its own if it is not given. `flags` are
    given to every node.
    """

    def __init__(
        self,
        endpoint: str,
        run: str,
        folder: Path,
        *,
        nnodes: str,
        view: str = "",
        served: bool = True,
        storage: str = "",
        flags: Sequence[str] = (),
        script: Sequence[str] = (str(SCRIPT),),
    ) -> None:
        self.endpoint, self.run, self.folder, self.nnodes = endpoint, run, folder, nnodes
        self.storage = storage or str(folder / "checkpoints")
        self._flags, self._script = flags, script
        self.keys = Keys(run)
        self.nodes: dict[str, NodeProcess] = {}
        self._store = EtcdStore((view or endpoint).split(","))
        self._seen = RunState()
        self._unseen: deque[RunState] = deque(maxlen=UNSEEN)
        """States that a wait has not looked at."""
        self._changed = threading.Condition()
        self.history = Recorder()
        self._store.watch(self.keys.root, self.history)
        assert not served or self.history.begins(PATIENT), "the store does not answer"
        for prefix in (self.keys.all, self.keys.nodes):
            self._store.watch(prefix, self._sink(prefix))

    def add(
        self,
        name: str,
        *script: str,
        args: Sequence[str] = (),
        host: Host | None = None,
        env: Mapping[str, str] | None = None,
        inside: Sequence[str] = (),
    ) -> NodeProcess:
        """Start a node, on this machine or on a host of a network of the test's own.

        `inside` is put before its command.
        """
        command = [
            *("--rdzv-endpoint", self.endpoint, "--rdzv-id", self.run, "--nnodes", self.nnodes),
            *("--node-id", name, "--local-addr", host.address if host else "127.0.0.1"),
            *("--storage", self.storage, "--log-dir", str(self.folder / "logs")),
            *EVERY,
            *self._flags,
            *args,
            *(script or self._script),
        ]
        self.nodes[name] = NodeProcess(name, command, self.folder, host, env, inside)
        return self.nodes[name]

    def wait(
        self, condition: Callable[[RunState], object], what: str, timeout: float = PATIENT
    ) -> RunState:
        """The first state that is so. None is overlooked that is shown after the call."""
        deadline = steady() + timeout
        with self._changed:
            self._unseen.clear()
            self._unseen.append(self._seen)
            while True:
                while self._unseen:
                    if condition(seen := self._unseen.popleft()):
                        return seen
                if condition(self._seen):  # of which other things may be a part, such as processes
                    return self._seen
                now = steady()
                if not self._alive():
                    # What they have written last may be on its way to this process.
                    deadline = min(deadline, now + LAST_WORDS)
                assert now < deadline, f"{what}: not so; {self._account()}"
                self._changed.wait(min(deadline - now, 1.0))

    def trains(self, *names: str, beyond: int = 0) -> Round:
        """Waits until exactly these nodes execute steps beyond the given one."""

        def so(seen: RunState) -> bool:
            round_ = seen.round
            return (
                round_ is not None
                and round_.phase == "started"
                and {m.node for m in round_.members} == set(names)
                and any(
                    p.round == round_.number and p.step > max(beyond, round_.resume.step)
                    for p in seen.progress.values()
                )
            )

        round_ = self.wait(so, f"{names} train beyond {beyond}").round
        assert round_ is not None
        return round_

    def seals(self, *names: str) -> Round:
        """Waits until each of exactly these nodes holds a snapshot of its own: who has just arrived
        was filled by others, and has none."""
        begun = self.trains(*names)
        return self.trains(*names, beyond=begun.resume.step + begun.schedule.snapshot_every)

    def lets_pass(self, seconds: float) -> None:
        """Time, in which anything may happen."""
        with self._changed:
            self._changed.wait_for(lambda: False, seconds)

    def record(self, number: int) -> RoundRecord:
        value = self._store.get(self.keys.history(number))
        assert value is not None
        return decode(value.data, RoundRecord)

    def step(self, round_: Round | None = None) -> int:
        """The last step that a node has told; of this round, or of any: who is gone may have been
        further than those who have gone on.
        """
        told = self._seen.progress.values()
        return max(
            (each.step for each in told if round_ is None or each.round == round_.number), default=0
        )

    def newest(self) -> Commit:
        """The newest commit in the object store, which needs no etcd; step 0 for none."""
        commits = Commits(open_storage(self.storage), self.run)
        found = retried(commits.latest)  # moto fails a read that meets a write
        return Commit(found.epoch, found.step) if found is not None else Commit(0, 0)

    def stored(self, epoch: int) -> set[str]:
        """All objects that were written under a storage epoch and are still there."""
        return set(open_storage(self.storage).keys(f"{epoch}/"))

    def commits(self, beyond: int, timeout: float = PATIENT) -> None:
        """Waits until a step beyond the given one is committed: training goes on."""
        wait_until(lambda: self.newest().step > beyond, f"a commit beyond step {beyond}", timeout)

    def stands_still(self, quiet: float = 2.5) -> int:
        """Waits until nobody has told of a new step for so long; the last step."""
        deadline = steady() + PATIENT
        with self._changed:
            while True:
                step = self.step()
                if not self._changed.wait_for(functools.partial(self._beyond, step), quiet):
                    return step
                assert steady() < deadline, f"steps go on: {self._account()}"

    def close(self) -> None:
        for node in self.nodes.values():
            if node.process.poll() is None:
                node.signal(signal.SIGCONT)
                node.kill()
        self._hear_out()
        self._store.close()
        for pid in self._daemons():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)  # a test that failed may have left one frozen
        # Daemons whose agents are gone finish their uploads, clean up, and end by themselves.
        wait_until(lambda: not self._daemons(), "the daemons have ended")

    def check(self) -> None:
        """What must hold over the whole history of every run; after `close`."""
        broken = violations(self.history.entries, self.run)
        broken += [f"a part of the history was missed: {gap}" for gap in self.history.gaps]
        assert not broken, "\n".join(broken) + f"\n{self._account()}"

    def _hear_out(self) -> None:
        """Nobody writes any more: wait for what is on its way to us."""
        with contextlib.suppress(Unavailable):
            last = self.keys.event("last")
            self._store.put(last, b"")
            self.history.wait_for(last, PATIENT)

    def _daemons(self) -> list[int]:
        mine = str(self.folder).encode()
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and comm(int(entry.name)) == "se-daemon":
                with contextlib.suppress(OSError):
                    if mine in (entry / "cmdline").read_bytes():
                        found.append(int(entry.name))
        return found

    def _sink(self, prefix: str) -> Sink:
        def deliver(items: Sequence[WatchItem]) -> None:
            with self._changed:
                self._seen = fold(self._seen, items, self.keys, wall(), prefix)
                self._unseen.append(self._seen)
                self._changed.notify_all()

        return deliver

    def _beyond(self, step: int) -> bool:
        return self.step() > step

    def _alive(self) -> bool:
        return any(node.process.poll() is None for node in self.nodes.values())

    def _account(self) -> str:
        told = [f"--- {n.name}\n{n.output[-2500:]}" for n in self.nodes.values()]
        steps = {name: (each.round, each.step) for name, each in self._seen.progress.items()}
        return f"round {self._seen.round}\nround and step by node: {steps}\n" + "\n".join(told)


@contextlib.contextmanager
def running(
    endpoint: str, run: str, folder: Path, *, nnodes: str, forgets: bool = False, **options: Any
) -> Iterator[Run]:
    """`forgets`: the test makes etcd forget, so that what it tells is no history."""
    started = Run(endpoint, run, folder, nnodes=nnodes, **options)
    try:
        yield started
    finally:
        started.close()
    if not forgets:
        started.check()


def resumed_steps(output: str) -> list[int]:
    """The step that each round of a node's output began at."""
    return [int(step) for step in re.findall(r"begins at (\d+)", output)]
