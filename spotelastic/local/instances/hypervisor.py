"""Runs and kills the processes of local instances, in a small process of its own.

It has a single thread and no moto, so that it can fork safely. It adopts orphaned processes of
instances, and outlives the cloud. When the cloud ends in any way, the hypervisor's input ends; it
then removes everything the cloud had on the machine. Instances in turn die with the hypervisor.
Commands arrive as JSON lines on standard input, answers go to standard output:

    {"do": "boot", "instance", "argv", "env", "cwd", "console", "shm", "is_unit"}
                                       -> {"booted": instance}
    {"do": "end", "instance", "shm", "within"}     -> {"ended": instance}
    {"do": "hasten", "instance"}               an end that was ordered is due now; no answer
    {"do": "end_all", "within"}                the input ends after it; no answer
    {"do": "signal", "instance", "number"}     to the first process; no answer

An end without `within`, or with 0, is a power cut. With it, an instance shuts down as EC2 and
systemd do it (KillMode=mixed): its first process gets SIGTERM and has so many seconds to end what
it has started; then all that is left is killed. Any number of instances do so at the same time, and
one without a first process has nothing to wait for.

An instance whose first process exits with `SHUT_DOWN` has shut itself down, as on EC2 by its
systemd unit. This is reported without a command: {"shut_down": instance}. The instance is then
ended by a command. Where it is what that unit runs, and fails otherwise, it is started again.

Where the boot says `tells`, the end of the first process is reported in place of all that:
{"exited": [instance, code]}, with minus the signal for one that was killed.
"""

import json
import os
import selectors
import shutil
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spotelastic.clock import steady
from spotelastic.linux import adopt_orphans, die_with_parent, name_process, reaped
from spotelastic.local.base import processes
from spotelastic.local.base.remains import Remains
from spotelastic.signals import send

SHUT_DOWN = 78
"""Exit code by which `infra/boot/boot.sh` asks for a shutdown of the instance."""
_CLEAN = {0, SHUT_DOWN, -signal.SIGHUP, -signal.SIGINT, -signal.SIGTERM, -signal.SIGPIPE}
"""How a first process ends that has not failed, as systemd's Restart=on-failure has it."""
RESTART_AFTER = 1.0
"""Seconds until a first process that failed is started again, as RestartSec of the unit."""


@dataclass(slots=True)
class _Leaving:
    """An instance that shuts down."""

    shm: str
    until: float
    """When it is cut off, by the steady clock."""


class Hypervisor:
    """Runs until its commands end."""

    def __init__(self, remains: Remains) -> None:
        self._remains = remains
        self._leaders: dict[int, dict[str, Any]] = {}
        """The command to boot, by the pid of an instance's first process."""
        self._ending = ""
        """The instance that is being ended."""
        self._leaving: dict[str, _Leaving] = {}
        """The instances that shut down, by their ids."""
        self._all_by = 0.0
        """When the last instance must have shut down after the input's end; 0: they need not."""
        self._input = b""

    def run(self) -> None:
        """Carry out commands and reap children until the input ends."""
        children, wakeup = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        with selectors.DefaultSelector() as selector:
            selector.register(sys.stdin.fileno(), selectors.EVENT_READ)
            selector.register(children, selectors.EVENT_READ)
            going = True
            while going or (self._leaders and steady() < self._all_by):
                for key, _ in selector.select(self._until_next()):
                    if key.fd == children:
                        os.read(children, 4096)
                        self._reap()
                    elif not (going := self._obey()):
                        selector.unregister(key.fd)
                self._end_due()

    def _obey(self) -> bool:
        """Carry out the commands that have arrived; return False after the last one."""
        data = os.read(sys.stdin.fileno(), 65536)
        *lines, self._input = (self._input + data).split(b"\n")
        for line in lines:
            order = json.loads(line)
            if order["do"] == "boot":
                self._boot(order)
                _answer(booted=order["instance"])
            elif order["do"] == "signal":
                self._signal(order["instance"], order["number"])
            elif order["do"] == "end_all":
                self._shut_down_all(order["within"])
            elif order["do"] == "hasten":
                if leaving := self._leaving.get(order["instance"]):
                    leaving.until = 0.0
            else:
                self._shut_down(order["instance"], order["shm"], order.get("within", 0.0))
        return bool(data)

    def _shut_down(self, instance: str, shm: str, within: float) -> None:
        """Have an instance end, which is answered once it has ended."""
        self._leaving[instance] = _Leaving(shm, steady() + within)
        if within:
            self._signal(instance, signal.SIGTERM)

    def _shut_down_all(self, within: float) -> None:
        """Have all instances end; what is left of them then ends with this process."""
        self._all_by = steady() + within
        for instance in {order["instance"] for order in self._leaders.values()}:
            self._signal(instance, signal.SIGTERM)

    def _until_next(self) -> float | None:
        """Return the seconds until an instance that shuts down has had its time."""
        moments = [leaving.until for leaving in self._leaving.values()]
        moments += [self._all_by] if self._all_by else []
        return max(0.0, min(moments) - steady()) if moments else None

    def _end_due(self) -> None:
        """End the instances whose first process has ended, or whose time is up."""
        led = {order["instance"] for order in self._leaders.values()}
        for instance, leaving in list(self._leaving.items()):
            if instance not in led or steady() >= leaving.until:
                self._end(instance, leaving.shm)
                del self._leaving[instance]
                _answer(ended=instance)

    def _boot(self, order: dict[str, Any], delay: float = 0.0) -> None:
        for folder in (order["cwd"], order["shm"]):
            Path(folder).mkdir(parents=True, exist_ok=True)
        me = os.getpid()
        pid = os.fork()
        if pid == 0:
            _become_instance(order, me, delay)
        self._leaders[pid] = order

    def _signal(self, instance: str, number: int) -> None:
        for pid, order in self._leaders.items():
            if order["instance"] == instance:
                send(pid, number)

    def _end(self, instance: str, shm: str) -> None:
        self._ending = instance
        processes.end(lambda: self._living(instance))
        self._ending = ""
        shutil.rmtree(shm, ignore_errors=True)

    def _living(self, instance: str) -> list[processes.LocalProcess]:
        """Return an instance's processes, including a first process that has no marker yet."""
        self._reap()
        found = processes.marked(self._remains.cloud, instance)
        known = {process.pid for process in found}
        unmarked = [
            processes.LocalProcess(pid, "", instance, self._remains.cloud)
            for pid, order in self._leaders.items()
            if order["instance"] == instance and pid not in known
        ]
        return found + unmarked

    def _reap(self) -> None:
        for pid, code in reaped():
            if order := self._leaders.pop(pid, None):
                self._note_exit(order, code)

    def _note_exit(self, order: dict[str, Any], code: int) -> None:
        """Report the exit of an instance's first process, on its console too.

        As on EC2, the instance itself goes on, and what systemd runs is started again if it failed.
        """
        instance, console = order["instance"], Path(order["console"])
        if order.get("tells"):
            _answer(exited=[instance, code])
            return
        if code == SHUT_DOWN:
            _answer(shut_down=instance)
        cut_off = code == -signal.SIGKILL and self._ends(instance)
        if not cut_off and console.exists():
            with console.open("a") as log:
                log.write(f"\nThe boot process of {instance} exited with {code}.\n")
        if code not in _CLEAN and order["is_unit"] and not self._ends(instance):
            self._boot(order, RESTART_AFTER)

    def _ends(self, instance: str) -> bool:
        return instance == self._ending or instance in self._leaving or self._all_by > 0.0


def _become_instance(order: dict[str, Any], hypervisor: int, delay: float) -> None:
    """In the forked child: become the instance's first process, after so many seconds.

    Never returns.
    """
    try:
        os.setsid()
        die_with_parent(hypervisor)
        for number in (signal.SIGCHLD, signal.SIGPIPE, signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        console = os.open(order["console"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(console, 1)
        os.dup2(console, 2)
        os.chdir(order["cwd"])
        time.sleep(delay)
        os.execvpe(order["argv"][0], order["argv"], order["env"])
    except BaseException as error:
        os.write(2, f"cannot boot {order['argv']}: {error}\n".encode())
    finally:
        os._exit(127)


def _answer(**answer: str | list[str | int]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Run the hypervisor, and clean up after the cloud."""
    remains = Remains.loads(sys.argv[1])
    name_process("se-hypervisor")
    adopt_orphans()
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # it ends with its commands, and not before
    remains.shm.mkdir(exist_ok=True)
    try:
        Hypervisor(remains).run()
    finally:
        remains.remove()
