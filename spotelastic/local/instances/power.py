"""Starts and ends local instances by commands to the hypervisor; futures report completion."""

import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from threading import Lock, Thread
from typing import Any

from spotelastic_checkpoints import isolated

from spotelastic.local.base.processes import CLOUD, INSTANCE
from spotelastic.local.base.remains import Remains

UNIT = ["-m", "spotelastic", "boot"]
"""What `infra/boot/spotelastic.service` runs, after the interpreter."""
SHUTS_DOWN_WITHIN = 30.0
"""Seconds from SIGTERM until an instance is cut off. EC2 and systemd wait longer."""

_LOST = "the local cloud's hypervisor has ended, and all instances with it"


@dataclass(frozen=True, slots=True)
class Layout:
    """The folders and files of an instance."""

    home: Path
    console: Path
    volumes: Path
    """One entry per attached volume, named by its id."""
    shm: Path


class Power:
    """Starts and ends instances. Futures resolve on a separate thread.

    When the hypervisor dies, so do all instances: futures that wait then, and orders after it, fail
    with an `OSError`.
    """

    def __init__(
        self, remains: Remains, command: Sequence[str], environment: Mapping[str, str]
    ) -> None:
        """`command` boots an instance; `environment` is given to all instances."""
        self._remains = remains
        self._command = list(command)
        self._environment = dict(environment)
        self._waiting: dict[tuple[str, str], Future[None]] = {}
        self._lost = False
        """Whether the hypervisor's answers have ended."""
        self._lock = Lock()
        self._process = subprocess.Popen(
            isolated.command("spotelastic.local.instances.hypervisor", remains.dumps()),
            env=isolated.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            text=True,
        )
        self._answers = Thread(target=self._listen, name="hypervisor", daemon=True)
        self.on_lost: Callable[[], None] = lambda: None
        """Called when the hypervisor dies unexpectedly."""
        self.on_shut_down: Callable[[str], None] = lambda instance: None
        """Called with each instance that has shut itself down, but is not ended yet."""

    def start(self) -> None:
        """Start the thread that reads the hypervisor's answers."""
        self._answers.start()

    @property
    def is_on(self) -> bool:
        """Whether the hypervisor lives."""
        return not self._lost and self._process.poll() is None

    def layout(self, instance: str) -> Layout:
        """Return the layout of an instance."""
        folder = Path(self._remains.folder, "instances", instance)
        shm = self._remains.shm / instance
        return Layout(folder / "home", folder / "console.log", folder / "volumes", shm)

    def on(self, instance: str, environment: Mapping[str, str]) -> Future[None]:
        """Start an instance."""
        layout = self.layout(instance)
        for folder in (layout.home, layout.volumes):
            folder.mkdir(parents=True, exist_ok=True)
        marks = {INSTANCE: instance, CLOUD: self._remains.cloud}
        places = {
            "HOME": str(layout.home),
            "TMPDIR": str(layout.home),
            # All instances share the same cores.
            "OMP_NUM_THREADS": "1",
            # All instances would use the same GPU, which NCCL refuses.
            "CUDA_VISIBLE_DEVICES": "",
            "SPOTELASTIC_SHM": str(layout.shm),
            "SPOTELASTIC_VOLUMES": str(layout.volumes),
        }
        return self._order(
            "booted",
            do="boot",
            instance=instance,
            argv=self._command,
            env={**self._environment, **places, **environment, **marks},
            cwd=str(layout.home),
            console=str(layout.console),
            shm=str(layout.shm),
            is_unit=self._command[1:] == UNIT,
        )

    def off(self, instance: str) -> Future[None]:
        """End the instance at once, like a power cut."""
        return self._end(instance, 0.0)

    def shut_down(self, instance: str) -> Future[None]:
        """Have the instance end in order: its first process gets SIGTERM, and some seconds."""
        return self._end(instance, SHUTS_DOWN_WITHIN)

    def hasten(self, instance: str) -> None:
        """Cut off an instance that is shutting down."""
        self._tell(do="hasten", instance=instance)

    def close(self, timeout: float = 30.0) -> None:
        """Shut all instances down, in order, and remove what the cloud has on the machine."""
        self.on_lost = lambda: None
        try:
            self._tell(do="end_all", within=SHUTS_DOWN_WITHIN)
            if self._process.stdin:
                self._process.stdin.close()
            self._process.wait(timeout)
        except (OSError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait(timeout)
        self._remains.remove()

    def _end(self, instance: str, within: float) -> Future[None]:
        shm = str(self.layout(instance).shm)
        return self._order("ended", do="end", instance=instance, shm=shm, within=within)

    def _order(self, answer: str, *, instance: str, **order: Any) -> Future[None]:
        with self._lock:
            if (future := self._waiting.get((answer, instance))) is None:
                future = self._waiting[answer, instance] = Future()
                self._write({"instance": instance, **order})
        return future

    def _tell(self, **order: Any) -> None:
        with self._lock:
            self._write(order)

    def _write(self, order: dict[str, Any]) -> None:
        if self._lost:  # the kernel may still take what nobody will read
            raise BrokenPipeError(_LOST)
        assert self._process.stdin
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()

    def _listen(self) -> None:
        try:
            self._take_answers()
        finally:
            with self._lock:
                self._lost = True
                waiting = [*self._waiting.values()]
                self._waiting.clear()
            for future in waiting:
                future.set_exception(BrokenPipeError(_LOST))
            self.on_lost()

    def _take_answers(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            (answer,) = json.loads(line).items()
            if answer[0] == "shut_down":
                self.on_shut_down(answer[1])
                continue
            with self._lock:
                future = self._waiting.pop(answer)
            future.set_result(None)
