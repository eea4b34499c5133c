"""Runs a zygote and its workers as real processes, without an agent around them."""

import contextlib
import os
import queue
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from support.processes.patience import PATIENT
from support.store.etcd_members import wait_until

from spotelastic.agent.workers.pool import PoolEvent, StartOrder, Warm, Zygote
from spotelastic.agent.workers.zygote import ZygotePlan
from spotelastic.linux import mark

WITHIN = PATIENT


class Pool:
    """A zygote, its events, and what its workers print."""

    def __init__(self, folder: Path, **plan: object) -> None:
        self.folder = folder
        self.env = {**os.environ, **mark(folder)}
        self._events: queue.SimpleQueue[PoolEvent] = queue.SimpleQueue()
        made = ZygotePlan(os.getpid(), str(folder), **plan)  # type: ignore[arg-type]
        self.zygote = Zygote(made, self.env, mark(folder), self._events.put)
        warm = self.next()
        assert isinstance(warm, Warm)
        self.info: Mapping[str, object] = warm.info

    def next(self) -> PoolEvent:
        return self._events.get(timeout=WITHIN)

    def start(self, rank: int, code: str, **order: Any) -> Path:
        """Run Python `code` as a worker; the file with what it prints."""
        script = self.folder / f"script-{rank}.py"
        script.write_text(code)
        output = self.folder / f"rank-{rank}.log"
        env = {
            **self.env,
            "SPOTELASTIC_LOCAL_RANK": str(rank),
            "FOLDER": str(self.folder),
            "TORCHELASTIC_ERROR_FILE": str(self.folder / f"error-{rank}.json"),
        }
        argv, cwd = (str(script),), str(self.folder)
        with output.open("wb") as file:
            self.zygote.start(
                StartOrder(f"round/{rank}", "worker", argv, env, cwd, **order), file.fileno()
            )
        return output

    def pid(self, name: str) -> int:
        """Of a process that has told its own in a file, once it has."""
        file = self.folder / name
        wait_until(lambda: file.exists() and file.read_text().endswith("\n"), f"{name} runs")
        return int(file.read_text())


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Callable[..., Pool]]:
    with contextlib.ExitStack() as stack:

        def make(**plan: object) -> Pool:
            made = Pool(tmp_path, **plan)
            stack.callback(made.zygote.close)
            return made

        yield make


def lives(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def tell(name: str, pid: str = "os.getpid()") -> str:
    """Code that writes a pid to a file, whole or not at all."""
    file = f"os.environ['FOLDER'] + '/{name}'"
    write = f"open({file} + '.new', 'w').write(f'{{{pid}}}\\n')"
    return f"{write}; os.rename({file} + '.new', {file})"


DETACHED = f"""
import os, signal
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        {tell("detached")}
        while True:
            signal.pause()
    os._exit(0)
os.wait()
"""
"""Leaves a daemon: in a session of its own, and nobody's child."""
WAIT = "\nimport signal\nwhile True:\n    signal.pause()\n"
