"""The supervisor of a booted instance, over real child processes."""

import os
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path

from spotelastic.bootstrap.supervisor import Process, SupervisedProcess, supervise


@dataclass
class Starter:
    """Starts processes that do what `scripts` say, one after the other."""

    scripts: list[str]
    pids: list[int] = field(default_factory=list)

    def __call__(self) -> Process:
        script = self.scripts[min(len(self.pids), len(self.scripts) - 1)]
        process = subprocess.Popen([sys.executable, "-S", "-c", script])
        self.pids.append(process.pid)
        return process


WAIT = "import signal; signal.pause()"


def end_self() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def test_a_part_that_is_done_ends_the_supervision_with_its_exit_code() -> None:
    start = Starter(["raise SystemExit(3)"])
    assert supervise([SupervisedProcess("agent", start, ends=lambda code: code == 3)]) == 3
    assert len(start.pids) == 1


def test_a_part_that_is_killed_is_started_again_and_the_death_is_told(said: list[str]) -> None:
    start = Starter(["import os, signal; os.kill(os.getpid(), signal.SIGKILL)", WAIT])
    deaths: list[float] = []

    def restarted(died_at: float) -> None:
        deaths.append(died_at)
        end_self()

    assert supervise([SupervisedProcess("etcd", start, restarted=restarted)]) == 0
    assert len(start.pids) == 2
    assert len(deaths) == 1
    assert said == ["etcd ended with -9: starting it again"]


def test_a_signal_ends_all_parts_even_those_that_do_not_want_to(
    tmp_path: Path, said: list[str]
) -> None:
    ready = tmp_path / "ready"
    os.mkfifo(ready)
    stubborn = (
        "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        f"open({str(ready)!r}, 'w').write('x'); signal.pause()"
    )
    first, second = Starter([WAIT]), Starter([stubborn])

    def tell_when_ready() -> None:
        ready.read_text()
        end_self()

    thread = threading.Thread(target=tell_when_ready)
    thread.start()
    parts = [SupervisedProcess("one", first), SupervisedProcess("two", second)]
    assert supervise(parts, grace=1.0) == 0  # the other one needs some time to end, too
    thread.join()
    assert said == ["two does not end: killed"]
    for pid in (*first.pids, *second.pids):
        assert not Path(f"/proc/{pid}").exists()
