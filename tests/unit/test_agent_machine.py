"""What an agent's machine does when a process of it has gone just now."""

import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

from test_worker_environment import CONFIG, MEMBERS, ROUND

from spotelastic.agent import actions
from spotelastic.agent.machine import Machine
from spotelastic.agent.observe import Local, LocalEvent, observe
from spotelastic.agent.workers.pool import Exited, Order
from spotelastic.rendezvous.view import Seen


class Gone:
    """A zygote that has been killed, which its reader has told already."""

    def start(self, order: Order, *output: int) -> None:
        raise BrokenPipeError

    def close(self) -> None:
        pass


class Idle:
    """A checkpoint daemon that does as it is told."""

    socket = Path("/daemon.sock")

    def begin(self, *told: object) -> None:
        pass

    def close(self) -> None:
        pass


def test_workers_that_no_zygote_was_there_to_start_have_ended(tmp_path: Path) -> None:
    posted: list[LocalEvent] = []
    config = replace(CONFIG, state=tmp_path, logs=tmp_path, say=lambda line: None)
    machine: Any = Machine(config, posted.append)
    machine._zygote, machine._checkpoints = Gone(), Idle()
    try:
        start = actions.StartWorkers(ROUND, MEMBERS[1])
        local = machine.do(start, Local(), Seen(settings=config.settings))
    finally:
        machine.close()
    assert local.workers.alive == {"r3/0", "r3/1"}
    assert posted == [Exited(name, -signal.SIGKILL) for name in ("r3/0", "r3/1")]
    for event in (*posted, *posted):  # the reader may tell of them as well
        local = observe(local, event, 1.0)
    assert not local.workers.alive
    assert [each.local_rank for each in local.workers.exits] == [0, 1]
