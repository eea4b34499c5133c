"""Starts the store of a round: the process that the ranks of the round meet at."""

import contextlib
import logging
import os
import select
from collections.abc import Collection

from spotelastic_checkpoints import addresses

from spotelastic.agent.config import AgentConfig
from spotelastic.agent.executor import Events
from spotelastic.agent.state import events
from spotelastic.agent.state.values import RoundStore
from spotelastic.agent.workers.pool import StartOrder, Zygote
from spotelastic.errors import EnvironmentFailure
from spotelastic.model.round import Round

logger = logging.getLogger(__name__)

STORE_TIMEOUT = 10.0
STORE_TRIES = 5
"""Number of times that a round's store may fail to start before this node gives up."""


class RoundStores:
    """The stores that one node runs, one after the other."""

    def __init__(self, config: AgentConfig) -> None:
        self._config = config
        self._failed = 0
        self._may_serve = -1

    def open(self, zygote: Zygote, round_: Round, said: Collection[str]) -> Events:
        """Fork a store. It reports a new port through a pipe, or has the given one."""
        name, config = f"store/{round_.incarnation}", self._config
        read, write = os.pipe2(os.O_CLOEXEC)
        wait, self._may_serve = self._renewed_leave()
        try:
            order = StartOrder(name, "store", host=config.address, port=config.master_port)
            zygote.start(order, write, wait)
            os.close(write)
            ready, _, _ = select.select([read], [], [], STORE_TIMEOUT)
            told = os.read(read, 256).decode().strip() if ready else ""
        except OSError:
            told = ""
        finally:
            os.close(read)
            os.close(wait)
        if not told.isdecimal():
            zygote.end([name])
            return self._without(told, said)
        self._failed = 0
        address = addresses.join(config.address, told)
        store = RoundStore(round_.incarnation, name, address, serves=not config.master_port)
        return [events.StoreOpened(store)]

    def serve(self) -> None:
        """Let the store that was opened last listen at its port."""
        with contextlib.suppress(BrokenPipeError):  # it has ended, which is told
            os.write(self._may_serve, b".")

    def _renewed_leave(self) -> tuple[int, int]:
        """Return a pipe on which a store that has its port is told to listen there."""
        if self._may_serve >= 0:
            os.close(self._may_serve)
        return os.pipe2(os.O_CLOEXEC)

    def _without(self, why: str, said: Collection[str]) -> Events:
        topic, port = f"no store: {why}", self._config.master_port
        if why and not port:
            self._failed += 1
            if self._failed >= STORE_TRIES:
                raise EnvironmentFailure(f"the round's store cannot be started here: {why}")
        elif why and topic not in said:
            logger.warning(
                f"--master-port {port}: {why}: no round starts until the store of the workers can "
                "listen there"
            )
        return [events.Said(topic)]
