"""Starts the store of a round: the process that the ranks of the round meet at.

To fork one takes up to a tenth of a second, for which a round would wait. So a node that may need
one keeps a spare: a store that listens at a port which nobody has been told of.

Must never happen: two rounds meet at one store. A spare is taken once, and ends with its round.
"""

import contextlib
import logging
import os
import select
from collections.abc import Collection

from spotelastic_checkpoints import addresses

from spotelastic.agent.config import AgentConfig
from spotelastic.agent.state import events
from spotelastic.agent.state.ports import Events
from spotelastic.agent.state.values import RoundStore
from spotelastic.agent.workers.pool import StartOrder, Zygote
from spotelastic.errors import EnvironmentFailure
from spotelastic.model.round import Round

logger = logging.getLogger(__name__)

STORE_TIMEOUT = 10.0
SPARE_TIMEOUT = 1.0
"""Seconds that a round waits for the port of a spare store, which may just have been started."""
STORE_TRIES = 5
"""Number of times that a round's store may fail to start before this node gives up."""


class RoundStores:
    """The stores that one node runs, one after the other."""

    def __init__(self, config: AgentConfig) -> None:
        self._config = config
        self._failed = 0
        self._may_serve = -1
        """The pipe on which a store that has its port is told to listen there."""
        self._spare: tuple[str, int] | None = None
        """Name of a store that was started for a round to come, and the pipe for its port."""
        self._spares = 0

    def open(self, zygote: Zygote, round_: Round, spare: str, said: Collection[str]) -> Events:
        """Take the spare store of that name, if there is one, or fork another.

        A store reports a new port through a pipe, or has the given one.
        """
        name, told = self._take(zygote, spare) if spare else ("", "")
        if not told.isdecimal():
            name = f"store/{round_.incarnation}"
            told = self._fork(zygote, name)
        config = self._config
        if not told.isdecimal():
            zygote.end([name])
            return self._without(told, said)
        self._failed = 0
        address = addresses.join(config.address, told)
        serves, number = not config.master_port, round_.number
        store = RoundStore(round_.incarnation, name, address, number=number, serves=serves)
        return [events.StoreOpened(store)]

    def start_spare(self, zygote: Zygote | None) -> Events:
        """Start a store for a round to come, and do not wait for it.

        With a given port there is none: the present round's store has it.
        """
        self.close()
        if self._config.master_port:
            return [events.SpareStoreStarted("", never=True)]
        if zygote is None:
            return [events.SpareStoreStarted("")]
        self._spares += 1
        name = f"store/spare-{self._spares}"
        read, write = os.pipe2(os.O_CLOEXEC)
        self._spare = name, read
        try:
            zygote.start(StartOrder(name, "store", host=self._config.address), write)
        except OSError:  # the zygote is gone
            name = ""
        finally:
            os.close(write)
        return [events.SpareStoreStarted(name)]

    def serve(self) -> None:
        """Let the store that was opened last listen at its port."""
        with contextlib.suppress(BrokenPipeError):  # it has ended, which is told
            os.write(self._may_serve, b".")

    def _take(self, zygote: Zygote, name: str) -> tuple[str, str]:
        """Return the spare's name and port. It is ended if it does not tell its port."""
        told = ""
        if self._spare is not None and self._spare[0] == name:
            told = _told(self._spare[1], SPARE_TIMEOUT)
        if not told.isdecimal():
            zygote.end([name])
        self.close()
        return name, told

    def close(self) -> None:
        """Forget the spare store. It ends with the zygote, as all stores do."""
        if self._spare is not None:
            os.close(self._spare[1])
        self._spare = None

    def _fork(self, zygote: Zygote, name: str) -> str:
        """Return the port that the store has, or why it has none."""
        config = self._config
        read, write = os.pipe2(os.O_CLOEXEC)
        if self._may_serve >= 0:
            os.close(self._may_serve)
        wait, self._may_serve = os.pipe2(os.O_CLOEXEC)
        try:
            order = StartOrder(name, "store", host=config.address, port=config.master_port)
            try:
                zygote.start(order, write, wait)
            finally:
                os.close(write)
            return _told(read, STORE_TIMEOUT)
        except OSError:
            return ""
        finally:
            os.close(read)
            os.close(wait)

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


def _told(read: int, within: float) -> str:
    """Return what a store tells within so many seconds; empty if nothing."""
    ready, _, _ = select.select([read], [], [], within)
    return os.read(read, 256).decode().strip() if ready else ""
